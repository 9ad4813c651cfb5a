"""Claims that are checked one after the other, each with its evidence or the first thing that contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.errors import DataError

Check = tuple[str, Callable[[], str]]  # a claim, and the function that returns its evidence


class Fault(Exception):  # noqa: N818, no error of the program: what an audit finds
    """The first record, position or row that contradicts a claim."""


class NotCheckedError(Exception):
    """Why a claim could not be checked."""


def check_all(checks: Iterable[Check]) -> None:
    """Prints each claim with its evidence, up to the first that does not hold: those after it rest on it.

    Raises:
      DataError: a claim does not hold.
    """
    for claim, check in checks:
        label, failed = "holds", False
        try:
            evidence = check()
        except NotCheckedError as error:
            label, evidence = "open ", str(error)
        except (Fault, ArithmeticError, LookupError, TypeError, ValueError) as error:
            label, failed = "FAILS", True
            cause = "" if isinstance(error, Fault) else f"cannot be evaluated: {type(error).__name__}: "
            evidence = f"{cause}{error}"
        print(f"{label}  {claim}\n       {evidence}", flush=True)
        if failed:
            print("\nproof FAILS")
            raise DataError(f"the proof fails: {claim}: {evidence}")
