"""What a person should know of a data set that was converted, one line each."""

from __future__ import annotations

import itertools

from beam_jobs.report import mixing
from beam_jobs.report.image_facts import ImageFacts
from pipeline.commands.text import count_of
from pipeline.manifest import Manifest

_MOST_LISTED = 10  # labels


def notices(made: Manifest, images: ImageFacts) -> list[str]:
    """Returns the warnings about a data set: each says what, the consequence and the remedy."""
    return [notice for notice in (mixing.warning(made), _gaps(made), _turned(images)) if notice]


def _gaps(made: Manifest) -> str | None:
    """Returns a warning about labels that no example has although a higher one occurs."""
    histograms = [split.label_histogram for split in made.splits.values()]
    totals = [sum(counts) for counts in itertools.zip_longest(*histograms, fillvalue=0)]
    highest = max((label for label, count in enumerate(totals) if count), default=0)
    missing = [label for label in range(highest) if not totals[label]]
    if not missing:
        return None
    listed = ", ".join(_class_of(made, label) for label in missing[:_MOST_LISTED])
    more = f" and {len(missing) - _MOST_LISTED:,} more" if len(missing) > _MOST_LISTED else ""
    return (
        f"no example has label {listed}{more}, although labels go up to {_class_of(made, highest)}: a model has an "
        "output for each of them; if the labels are not meant to have gaps, renumber them in the source"
    )


def _class_of(made: Manifest, label: int) -> str:
    name = made.class_names[label] if label < len(made.class_names) else str(label)
    return str(label) if name == str(label) else f"{label} ({name})"


def _turned(images: ImageFacts) -> str | None:
    if not images.turned:
        return None
    return (
        f"{count_of(images.turned, 'image file')} with an EXIF orientation, which readers of the records ignore: they "
        "see the image turned or mirrored; to store images upright, convert with --image_encoding=raw, png or jpeg"
    )
