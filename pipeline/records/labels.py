"""The class names of a source: from `labels.txt`, or from the labels that occur in it."""

from __future__ import annotations

import decimal
import re
import sys
import threading
import unicodedata
from collections.abc import Iterable, Sequence

from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.files.reading import unreadable

LABELS_FILE = "labels.txt"

# Texts that pandas.read_csv interprets as missing values.
MISSING = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
_NUMBERED = re.compile(r"(\d{1,9}):\s*(\S.*)")  # a line as written by TF-Slim
_NUMBER = re.compile(r"[0-9]{1,18}")
_MOST_DIGITS = 18  # digits of whole numbers that `in_order` sorts by value
_WHOLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_CODE = re.compile(r"[+-]?0[0-9].*")  # a number with leading zeros is a name: 007
_TIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([T ](?P<clock>[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?) ?(?P<zone>Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_MIDNIGHT, _UTC = "00:00:00", ("Z", "UTC", "+0000", "-0000")


def read_labels(path: StoragePath, offset: int = 0) -> tuple[str, ...]:
    """Returns the class names in a file, one per line; empty if there is no such file.

    If lines are numbered, as in `3:tulips`, the numbers are stored labels, regardless of the order of the lines.
    TF-Slim writes such files; ImageNet's has a class 0 that no record uses.

    Args:
      path: path of the file.
      offset: number to add to stored labels; names of classes that are then negative are left out.

    Raises:
      DataError: the file cannot be read, is not UTF-8 text, or has an empty line.
    """
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError:
        return ()
    except UnicodeDecodeError:
        raise DataError("is not UTF-8 text", path=path) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if not names or not all(names):
        which = f"line {names.index('') + 1} is empty" if names else "it has 0 lines"
        raise DataError(f"must have the name of a class in every line; {which}", path=path)
    numbered = {int(found[1]): found[2] for found in map(_NUMBERED.fullmatch, names) if found}
    if sorted(numbered) != [*range(len(names))]:
        return tuple(names)
    return tuple(numbered.get(label - offset, str(label)) for label in range(max(0, len(names) + offset)))


def beside(
    root: StoragePath, files: Sequence[StoragePath], label: str, offset: int = 0, has_text_labels: bool = False
) -> tuple[str, ...]:
    """Returns the class names in the common folder of files, or else in their own folders; empty if there are none.

    They are in `labels.txt`, or in TensorFlow Datasets' `<label>.labels.txt`, which takes precedence.

    Args:
      root: folder that contains all files.
      files: record files.
      label: name of the label feature.
      offset: number to add to stored labels, as in `read_labels`.
      has_text_labels: whether labels are class names, so that numbers mean nothing.

    Raises:
      DataError: a file is not a list of names; or labels are numbers, and files in different folders number classes
        differently.
    """

    def named_in(place: StoragePath) -> tuple[str, ...]:
        found = (place / f"{label}.{LABELS_FILE}", place / LABELS_FILE)
        return next(filter(None, (read_labels(file, offset) for file in found)), ())

    if (names := named_in(root)) or has_text_labels:
        return names
    by_place = {place: named_in(place) for place in dict.fromkeys(file.parent for file in files)}
    if len(set(by_place.values())) > 1:
        one, other = sorted(by_place, key=lambda place: (not by_place[place], str(place)))[:2]
        if by_place[one] == by_place[other]:
            other = next(place for place in by_place if by_place[place] != by_place[one])
        raise DataError(
            f"the class names of {one.name_in(root)} and of {other.name_in(root)} differ, but the labels of both are "
            "numbers",
            path=root,
            advice=f"write {LABELS_FILE} of all there, or convert each, then both together: converted data sets "
            "are joined by the names of classes",
        )
    return next(iter(by_place.values()))


def in_order(names: Iterable[str]) -> list[str]:
    """Returns class names in label order: by value if all are whole numbers, else by code points.

    So folders "0" to "11" have the labels 0 to 11. Otherwise names are sorted like folders in torchvision and Keras.
    """
    listed = sorted(names)
    return sorted(listed, key=int) if all(map(_NUMBER.fullmatch, listed)) else listed


def whole_number(text: str) -> str:
    """Returns the plain digits of a whole number of at most 18 digits in any form (`1`, `1.0`, `1e0`); else ""."""
    if not _WHOLE.fullmatch(text):
        return ""
    value = decimal.Decimal(text)
    return str(int(value)) if value.adjusted() < _MOST_DIGITS and value == value.to_integral_value() else ""


def as_one_number(texts: Iterable[str]) -> dict[str, str]:
    """Returns {text: plain digits} if all labels are whole numbers; else {text: text}.

    pandas writes 1 as 1.0 if another row of the column has no label. Missing values stay; if one text has leading
    zeros, such as 007, all are names.
    """
    texts = list(texts)
    numbers = {text: whole_number(text) for text in texts if text and text not in MISSING}
    if not all(numbers.values()) or any(map(_CODE.fullmatch, numbers)):
        numbers = {}
    return {text: numbers.get(text, text) for text in texts}


def refusal(text: str) -> str:
    """Returns why a label does not name a class."""
    if text in MISSING:
        return f"is {text!r}, a missing value (--na_is_class makes it a class)"
    return f"is {text!r}, which names no class" if text else "is empty"


def alike(names: Iterable[str], ignore_case: bool = False, as_numbers: bool = False) -> list[tuple[str, str]]:
    """Returns pairs of class names that people would consider the same.

    Args:
      names: class names.
      ignore_case: whether `Cat` and `cat` are the same.
      as_numbers: whether `1`, `1.0` and `1e0` are the same, and a day and its midnight, in any units.
    """
    seen: dict[str, str] = {}
    pairs = [(seen.setdefault(as_seen(name, ignore_case, as_numbers), name), name) for name in sorted(names)]
    return [(other, name) for other, name in pairs if other != name]


def say_alike(names: Iterable[str], source: object) -> None:
    """Prints two class names that differ only in case, if any: they may well be two classes."""
    for one, other in alike(names, ignore_case=True)[:1]:
        print(f"{source}: the classes {one!r} and {other!r} differ only in case", file=sys.stderr, flush=True)


def check_lines(names: Iterable[str], source: object) -> None:
    """Raises DataError if a name of a class holds a line break: TFDS reads names line by line, and would lose all."""
    for label, name in enumerate(names):
        if len(f"{name}.".splitlines()) > 1:
            problem = f"the name of class {label}, {name!r}, holds a line break"
            raise DataError(problem, path=source, advice="rename the class")


def as_seen(name: str, ignore_case: bool = False, as_numbers: bool = False) -> str:
    """Returns a name as people see it: without invisible characters, extra spaces and leading zeros; see `alike`."""
    if as_numbers and (value := whole_number(name) or _time(name)):
        return value
    shown = "".join(each for each in unicodedata.normalize("NFC", name) if unicodedata.category(each) != "Cf")
    shown = " ".join(shown.split())
    shown = str(int(shown)) if _NUMBER.fullmatch(shown) else shown
    return unicodedata.normalize("NFC", shown.casefold()) if ignore_case else shown


def _time(text: str) -> str:
    """Returns one text for all forms of a time (`2020-01-31`, `2020-01-31T00:00:00.000Z`); "" if it is no time."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        return ""
    clock, zone = found["clock"] or _MIDNIGHT, (found["zone"] or "").replace(":", "")
    clock = f"{clock}:00" if clock.count(":") == 1 else clock
    clock = clock.rstrip("0").rstrip(".") if "." in clock else clock
    shown = found["day"] + f" {clock}" * (clock != _MIDNIGHT)
    return shown if zone in ("", *_UTC) else f"{shown} {zone}"


class SeenLabels:
    """Collects a source's labels, from any thread. Each text is a class; numbers are classes up to the highest."""

    def __init__(self, what: str, most: int, advice: str, na_is_class: bool = False) -> None:
        """Makes an empty collection.

        Args:
          what: label column or feature, for errors.
          most: largest number of classes allowed.
          advice: end of error messages.
          na_is_class: whether words for missing values are class names.
        """
        self._what, self._most, self._advice = what, most, advice
        self._no_classes = frozenset(("",) if na_is_class else ("", *MISSING))
        self._texts: set[str] = set()
        self._highest = -1
        self._lock = threading.Lock()

    def add(self, labels: Iterable[str | int], file: object) -> None:
        """Adds a file's labels; empty texts, words for missing values and negative numbers are not classes.

        Raises:
          DataError: there are too many classes.
        """
        with self._lock:
            for label in labels:
                if isinstance(label, int):
                    self._highest = max(self._highest, label)
                elif label not in self._no_classes:
                    self._texts.add(label)
            count = len(self._texts) or self._highest + 1
        if count > self._most:
            problem = f"has {count} classes or more, above the most, {self._most}"
            raise DataError(f"{self._what} {problem}", path=file, advice=self._advice)

    def class_names(self, source: object) -> tuple[str, ...]:
        """Returns the texts, ordered by `in_order`, or "0" to the highest number; prints names that differ in case.

        Raises:
          DataError: no label was added, or two texts look alike.
        """
        if not self._texts and self._highest < 0:
            raise DataError(f"{self._what} has no label that is a text or 0 or more", path=source, advice=self._advice)
        if pairs := alike(self._texts, as_numbers=True):
            labels = " and ".join(map(ascii, pairs[0]))
            raise DataError(
                f"{self._what}: the labels {labels} look alike (spaces, Unicode's form of a letter, the form of a "
                "number) but would be two classes",
                path=source,
                advice="make them equal in the files",
            )
        say_alike(self._texts, source)
        return tuple(in_order(self._texts)) or tuple(map(str, range(self._highest + 1)))
