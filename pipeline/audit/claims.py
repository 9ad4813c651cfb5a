"""A claim, what it was checked by, and the first thing that contradicts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable


class Fault(Exception):  # noqa: N818, no error of the program: what an audit finds
    """The first record, position or row that contradicts a claim."""


class NotCheckedError(Exception):
    """Why a claim could not be checked."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim that was checked.

    Attributes:
      text: what is claimed.
      evidence: what was checked, or what contradicts it, or why it could not be checked.
      holds: whether it does; None: it was not checked.
    """

    text: str
    evidence: str
    holds: bool | None = True


def check_all(checks: Iterable[tuple[str, Callable[[], str]]]) -> list[Claim]:
    """Returns the claims up to the first that does not hold: those after it rest on it.

    Args:
      checks: (claim, function that returns its evidence or raises Fault or NotCheckedError).
    """
    claims: list[Claim] = []
    for text, check in checks:
        try:
            claims.append(Claim(text, check()))
        except NotCheckedError as error:
            claims.append(Claim(text, str(error), holds=None))
        except Fault as fault:
            return [*claims, Claim(text, str(fault), holds=False)]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of code that is wrong
            return [*claims, Claim(text, f"cannot be evaluated: {type(error).__name__}: {error}", holds=False)]
    return claims
