"""`card.html`: a data set on one page, for people: samples, labels, shards, source, and the command that made it.

The page holds all that it shows: no script, no link, nothing that a browser would fetch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from beam_jobs.examples.images import BadImageError
from beam_jobs.report.card import pictures as card_pictures
from beam_jobs.report.card import samples as card_samples
from beam_jobs.report.card import sections as card_sections
from beam_jobs.report.card.html import Html, element
from beam_jobs.report.card.pictures import Picture
from beam_jobs.report.card.samples import PER_CLASS, Samples
from beam_jobs.report.card.style import STYLE
from beam_jobs.storage import write
from beam_jobs.storage.paths import AnyPath
from pipeline import manifest
from pipeline.manifest import Manifest, naming

_PICTURES = 1 << 20  # 1 MiB, of all pictures: a third more in the page
_LARGEST_PICTURE = 64 << 10  # 64 KiB
_WORK = 1 << 27  # pixels decoded, of files: a few seconds
_SIDE = 96  # CSS pixels: what there is room for on a wide screen, five in a row
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # were there a hole, nothing would come in
# What can be a secret in a URL: user and password, and an object store's options.
_USER, _QUERY = re.compile(r"(?<=://)[^/@\s]+@"), re.compile(r"(?<=\?).+", re.DOTALL)


def write_card(folder: AnyPath, command: str, arguments: Sequence[str]) -> str | None:
    """Writes the card beside a manifest; returns None, or why there is none: the data set is whole without it.

    Args:
      folder: of the shards and the manifest.
      command: the module that was run.
      arguments: of the command, as they were given.
    """
    try:
        page = make_card(folder, manifest.load(folder), command_line(command, arguments))
        write.publish(folder / naming.CARD, page.encode(errors="backslashreplace"))
    except Exception as error:  # whatever it is: hours of conversion are worth more than a page
        reason = str(error).replace(f"{folder}/", "")  # of files that will have moved
        return f"there is no {naming.CARD}: {type(error).__name__}: {reason}"
    return None


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Returns a command as a shell takes it, a line for each argument, but for what may be a secret in a URL."""
    quoted = [shlex.quote(_without_secrets(argument)) for argument in arguments]
    return " \\\n    ".join([f"python -m {command}", *quoted])


def make_card(folder: AnyPath, made: Manifest, command: str) -> str:
    """Returns the page.

    Args:
      folder: of the shards, from which samples are read.
      made: the manifest.
      command: that made the data set.

    Raises:
      DataError, OSError, EOFError, zlib.error: a shard cannot be read or holds no example.
    """
    body = element(
        "body",
        card_sections.head(made),
        card_sections.warning(made),
        _samples(made, card_samples.take(folder, made)),
        card_sections.splits(made),
        card_sections.labels(made),
        card_sections.sizes(made),
        card_sections.features(made),
        card_sections.shards(made),
        card_sections.source(made),
        card_sections.options(made, command),
        element("footer", f"{naming.MANIFEST} has the SHA-256 ", element("code", made.digest)),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", made.dataset),
        element("style", Html(STYLE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _samples(made: Manifest, samples: Samples) -> Html:
    histogram = made.splits[samples.split].label_histogram
    images, bad = _images(made, samples)
    figures = []
    for label, of_class in images.items():
        name, count = element("b", card_sections.class_name(made, label)), f"{histogram[label]:,}"
        caption = element("figcaption", name, element("span", count, class_="soft"))
        figures.append(element("figure", caption, element("div", *of_class, class_="strip")))
    classes = sum(1 for n in histogram if n)
    which = "each class" if len(figures) == classes else f"each of {len(figures)} of the {classes:,} classes"
    text = f"Up to {PER_CLASS} images of {which} of {samples.split}, as stored; the number is how many there are."
    undecodable = f" {bad} of those looked at cannot be decoded." if bad else ""
    return card_sections.section(
        "Samples",
        element("p", text + undecodable, class_="soft"),
        element("div", *figures, class_="classes", style=_cell(made)),
    )


def _cell(made: Manifest) -> str | None:
    """Returns how wide a picture is at most: a multiple of a tiny image's pixels, so that each is a square of one size.

    None: as wide as there is room, for images that differ or are not that small.
    """
    height, width, _ = made.features["image"].shape
    if height is None or width is None or max(height, width) > _SIDE // 2:
        return None
    return f"--cell:{_SIDE // max(height, width) * max(height, width)}px"


def _images(made: Manifest, samples: Samples) -> tuple[dict[int, list[Html]], int]:
    """Returns {label: images}, and how many are none: first one of each class, then more, while work is left."""
    most_bytes = min(_LARGEST_PICTURE, _PICTURES // max(1, sum(map(len, samples.by_label.values()))))
    shown: dict[int, list[Html]] = {label: [] for label in samples.by_label}
    bad, work = 0, _WORK
    for turn in range(PER_CLASS):
        for label, of_class in samples.by_label.items():
            if turn >= len(of_class) or work < 0:
                continue
            try:
                picture = _picture(made, of_class[turn].image, most_bytes)
            except BadImageError:
                bad += 1
                continue
            work -= picture.work
            shown[label].append(_as_element(picture, card_sections.class_name(made, label), of_class[turn].key))
    return shown, bad


def _picture(made: Manifest, image: bytes, most_bytes: int) -> Picture:
    if made.features["image"].encoding == "raw":
        return card_pictures.of_pixels(image, made.image_shape, most_bytes)
    return card_pictures.of_file(image, most_bytes)


def _as_element(picture: Picture, name: str, key: str) -> Html:
    kind = "tiny" if max(picture.height, picture.width) <= card_pictures.TINY else None
    size = {"width": picture.width, "height": picture.height}
    title = f"{key}, {picture.height}{card_sections.TIMES}{picture.width}"
    return element("img", src=picture.uri, alt=name, title=title, class_=kind, **size)


def _without_secrets(argument: str) -> str:
    return _QUERY.sub("...", _USER.sub("...@", argument)) if "://" in argument else argument
