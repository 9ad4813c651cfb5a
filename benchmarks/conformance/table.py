"""The table of verdicts as Markdown."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.conformance.checks import Verdict

COLUMNS = {
    "once": "every record once per epoch, on 1, 2, 3, 5 ranks",
    "steps": "equal steps on all ranks",
    "resume": "resume in the middle of an epoch",
    "elastic": "resume with 3 ranks instead of 2",
    "same": "same global batches on 1, 2, 3, 5 ranks",
    "flip": "a flipped bit",
    "skip": "skipping 40 damaged records keeps steps even",
}
_MARKS = {True: "yes", False: "**no**", None: ""}


@dataclasses.dataclass(frozen=True)
class Row:
    """A peer's results: its adapter's declarations and its verdicts, or why it was not tested."""

    name: str
    declared: dict[str, Any]
    verdicts: dict[str, Verdict]
    reason: str = ""


def markdown(rows: list[Row]) -> str:
    """Returns the table, one column per test, followed by how each peer was set up or why it was skipped."""
    tested, absent = [row for row in rows if row.verdicts], [row for row in rows if not row.verdicts]
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in tested:
        cells = " | ".join(_cell(row.verdicts[name]) for name in COLUMNS)
        lines.append(f"| {row.declared['TITLE']} | {cells} |")
    lines.append("")
    for row in tested:
        versions = ", ".join(f"{name} {version}" for name, version in row.declared["versions"].items())
        lines.append(f"- **{row.declared['TITLE']}**{f' ({versions})' if versions else ''}: {row.declared['NOTE']}")
        lines += [f"  <{url}>" for url in row.declared["DOCS"]]
    return "\n".join([*lines, *(f"- {row.name}: skipped, {row.reason}" for row in absent)])


def _cell(verdict: Verdict) -> str:
    if verdict.kept is None:
        return verdict.text
    plain = verdict.text in ("kept", "")
    return _MARKS[verdict.kept] if plain else f"{_MARKS[verdict.kept]}: {verdict.text.replace('|', '/')}"
