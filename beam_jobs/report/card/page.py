"""`card.html`: a data set on one page, for people: samples, labels, shards, source, and the command that made it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

import jinja2

from beam_jobs.report import notices
from beam_jobs.report.card import contents
from beam_jobs.report.card import samples as card_samples
from beam_jobs.report.image_facts import ImageFacts
from beam_jobs.report.summary import by_size
from beam_jobs.storage import write
from beam_jobs.storage.paths import StoragePath
from pipeline import manifest
from pipeline.commands.text import count_of, size_of
from pipeline.manifest import Manifest, naming

_JOINERS = "\u200c\u200d"  # not printable by Python's rule, but parts of words (Persian, Hindi) and emoji
_LONGEST = 20_000  # characters of one text
_IDENTITY = re.compile(rb"<footer>SHA-256 that identifies the data: <code>([0-9a-f]{64})</code></footer>")
_SEAL = b"\n<!-- SHA-256 of all before this line:"
# What can be a secret in a URL: user and password, and an object store's options.
_USER, _QUERY = re.compile(r"(?<=://)[^/@\s]+@"), re.compile(r"(?<=\?).+", re.DOTALL)


def write_card(folder: StoragePath, command: str, arguments: Sequence[str], images: ImageFacts) -> str | None:
    """Writes the card beside a manifest; returns None, or why there is none: the data set is whole without it.

    The command is the module that was run, with its arguments as they were given.
    """
    try:
        text = make_card(folder, manifest.load(folder), command_line(command, arguments), images)
        page = text.encode(errors="backslashreplace")
        write.publish(folder / naming.CARD, page + _seal_of(page))
    except Exception as error:  # whatever it is: hours of conversion are worth more than a page
        reason = str(error).replace(f"{folder}/", "")  # of files that will have moved
        return f"there is no {naming.CARD}: {type(error).__name__}: {reason}"
    return None


def problem_of(page: bytes, made: Manifest) -> str | None:
    """Returns what is wrong with a card beside a manifest: it is another data set's, or was altered; else None.

    Cards of earlier releases have no seal: of these, only the data set is compared.
    """
    found = _IDENTITY.search(page)
    if not found:
        return "is not a card that a conversion wrote"
    if found[1].decode() != made.digest:
        return "belongs to another data set: the SHA-256 at its end is not that of the manifest"
    start = page.rfind(_SEAL)
    if start >= 0 and page[start:] != _seal_of(page[:start]):
        return "was altered: its bytes are not those that the conversion wrote"
    return None


def _seal_of(page: bytes) -> bytes:
    return _SEAL + b" %s -->\n" % hashlib.sha256(page).hexdigest().encode()


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Returns a command as a shell takes it, one line per argument, without what may be a secret in a URL."""
    quoted = [shlex.quote(_without_secrets(argument)) for argument in arguments]
    return " \\\n    ".join([f"python -m {command}", *quoted])


def make_card(folder: StoragePath, made: Manifest, command: str, images: ImageFacts) -> str:
    """Returns the page of the data set that a command made, with samples from the shards in its folder.

    Raises:
      DataError, OSError, EOFError, zlib.error: a shard cannot be read or holds a record that is not an example.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count_of": count_of,
        "encoding": contents.encoding,
        "number": "{:,}".format,
        "shape": contents.shape,
        "size": size_of,
    }
    return environment.get_template("card.html.jinja").render(
        made=made,
        command=command,
        splits=by_size(made),
        rejects=any(split.num_rejects for split in made.splits.values()),
        notices=notices.notices(made, images),
        samples=contents.figures(made, card_samples.take(folder, made)),
        labels=contents.labels(made),
        sizes=contents.sizes(made, images),
    )


def _visible(value: Any) -> Any:
    """Returns text, cut if very long, in which what cannot be seen (controls, bad Unicode) is as Python writes it."""
    if hasattr(value, "__html__"):  # markup: what a macro gives, and what `safe` is said of
        return value
    text = str(value)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
    return "".join(c if c.isprintable() or c in _JOINERS or c == "\n" else repr(c)[1:-1] for c in shown)


def _without_secrets(argument: str) -> str:
    return _QUERY.sub("...", _USER.sub("...@", argument)) if "://" in argument else argument
