"""The test program: the promises, and the verdicts on a peer's runs."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Collection, Iterable
from typing import Any

from benchmarks.conformance import job, records
from benchmarks.conformance.adapter import Job
from benchmarks.conformance.job import Outcome, Peer

RANKS = (1, 2, 3, 5)
GLOBAL_ROWS = 30  # a multiple of each of RANKS, not of the records
PAIR, OTHER = 2, 3  # number of ranks before and after a restart
SAVE_AT = (1, 11)  # numbers of steps of the second epoch after which to save
DAMAGED = 500  # the record with a flipped bit
MANY_DAMAGED = range(480, 520)  # more than a rank's step, so that skipping them can change the number of steps


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A cell of the table.

    Attributes:
      kept: whether the promise was kept; None if the peer's documentation does not make it.
      text: observation in short.
      detail: error, or report of a hang, in full.
    """

    kept: bool | None
    text: str
    detail: str = ""


class Program:
    """All tests of a peer."""

    def __init__(self, peer: Peer, declared: dict[str, Any], folder: pathlib.Path, seconds: float) -> None:
        """Keeps all files in `folder`; a rank that takes more than `seconds` for a batch counts as hung."""
        self._peer, self._declared, self._folder, self._seconds = peer, declared, folder, seconds
        self._data = folder / "data"

    def verdicts(self) -> dict[str, Verdict]:
        """Runs all tests; returns their verdicts by name."""
        self._data.mkdir(parents=True)
        written = job.task(self._peer, ["write", str(self._data)], self._folder)
        if "written" not in written:
            raise RuntimeError(f"write: {written.get('error') or written['hung']}")
        runs = {ranks: self._run(f"ranks-{ranks}", ranks) for ranks in RANKS}
        return {
            "once": once(runs, bool(self._declared["ENDLESS"])),
            "steps": equal_steps(runs),
            "resume": self._resumed(runs, PAIR, "RESUMES"),
            "elastic": self._resumed(runs, OTHER, "ELASTIC"),
            "same": same_batches(runs),
            "flip": self._flipped(),
            "skip": self._skipping(runs[PAIR]),
        }

    def _run(self, name: str, ranks: int, data: pathlib.Path | None = None, **options: Any) -> Outcome:
        """Runs a job in its own scratch folder; a job of PAIR ranks saves its states on the way."""
        scratch = self._folder / name
        scratch.mkdir()
        port, rows = job.free_port(), GLOBAL_ROWS // ranks
        jobs = [
            Job(str(data or self._data), str(scratch), rank, ranks, rows, port=port, **options) for rank in range(ranks)
        ]
        save_at = SAVE_AT if ranks == PAIR and self._declared["RESUMES"] and not options else None
        return job.run(self._peer, jobs, self._seconds, save_at)

    def _resumed(self, runs: dict[int, Outcome], ranks: int, offered: str) -> Verdict:
        whole, alike = runs[PAIR], runs.get(ranks, runs[PAIR])
        if not self._declared[offered]:
            return Verdict(None, "not offered")
        epoch, steps = SAVE_AT
        saved = job.saved_in(str(self._folder / f"ranks-{PAIR}"), PAIR)
        if not all(pathlib.Path(path).exists() for path in saved):
            return Verdict(False, _trouble(whole) or "no state was saved")
        rest = self._run(f"resumed-{ranks}", ranks, epoch=epoch, saved=saved)
        return resumed(whole, alike, rest, epoch, steps)

    def _flipped(self) -> Verdict:
        data, file = self._damaged("flipped", [DAMAGED])
        if not file:
            return Verdict(None, "not tried: the files are compressed")
        return flipped(self._run("flip", PAIR, data, epochs=3), file)

    def _skipping(self, whole: Outcome) -> Verdict:
        if not self._declared["SKIPS"]:
            return Verdict(None, "not offered")
        data, _ = self._damaged("damaged", MANY_DAMAGED)
        return skipped(self._run("skip", PAIR, data, epochs=1, skip=True), whole)

    def _damaged(self, name: str, numbers: Iterable[int]) -> tuple[pathlib.Path, str]:
        """Returns a copy of the data set with damaged records, and the file that contains the last of them."""
        data = self._folder / name
        shutil.copytree(self._data, data)
        return data, [records.flip_bit(data, number) for number in numbers][-1]


def once(runs: dict[int, Outcome], endless: bool) -> Verdict:
    """Returns whether every record occurred once in each epoch, for every number of ranks."""
    if troubles := {ranks: _trouble(outcome) for ranks, outcome in runs.items() if _trouble(outcome)}:
        return Verdict(False, _by_ranks(troubles))
    counts = {ranks: _counts_endless(outcome) if endless else _counts(outcome) for ranks, outcome in runs.items()}
    wrong = {ranks: count for ranks, count in counts.items() if any(count)}
    texts = []
    for what, values in zip(("lost", "repeated"), zip(*wrong.values(), strict=True), strict=False):
        if any(values):
            texts.append(f"{_span(values)} {what}")
    return Verdict(not wrong, f"{', '.join(texts)} (on {_listed(wrong)})" if wrong else "kept")


def _span(values: Collection[int]) -> str:
    return f"{min(values)} to {max(values)}" if min(values) < max(values) else str(min(values))


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _counts(outcome: Outcome) -> tuple[int, int]:
    """Returns the records lost and repeated in the worse epoch."""
    return max(_lost_of(outcome.batches(epoch)) for epoch in outcome.steps)


def _counts_endless(outcome: Outcome) -> tuple[int, int]:
    """Returns the same as `_counts`, over all epochs; the last batch may contain records of the next one."""
    epochs = len(outcome.steps)
    seen = _seen(batch for epoch in outcome.steps for batch in outcome.batches(epoch))
    lost = sum(max(0, epochs - seen[number]) for number in range(records.COUNT))
    beyond = max(0, seen.total() - epochs * records.COUNT)
    return lost, sum(max(0, count - epochs) for count in seen.values()) - beyond


def equal_steps(runs: dict[int, Outcome]) -> Verdict:
    """Returns whether all ranks got a batch at every step."""
    texts = {ranks: _trouble(outcome) or ("hangs" if outcome.uneven else "") for ranks, outcome in runs.items()}
    details = [outcome.uneven for outcome in runs.values() if outcome.uneven]
    return Verdict(not any(texts.values()), _by_ranks(texts), "; ".join(details))


def same_batches(runs: dict[int, Outcome]) -> Verdict:
    """Returns whether step t has the same records for every number of ranks."""
    if troubles := {ranks: _trouble(outcome) for ranks, outcome in runs.items() if _trouble(outcome)}:
        return Verdict(False, _by_ranks(troubles))
    alone = [sorted(batch) for batch in runs[1].batches(0)]
    same = {}
    for ranks, outcome in runs.items():
        mine = [sorted(batch) for batch in outcome.batches(0)]
        if mine != alone:
            same[ranks] = sum(one == other for one, other in zip(alone, mine, strict=False))
    return Verdict(not same, f"{_span(same.values())} of {len(alone)} steps (on {_listed(same)})" if same else "kept")


def resumed(whole: Outcome, alike: Outcome, rest: Outcome, epoch: int, steps: int) -> Verdict:
    """Returns whether an interrupted epoch has the same records as one without interruption.

    Records that a peer loses or repeats even without interruption, with either number of ranks, are not counted again.

    Args:
      whole: run that saved its state in this epoch and continued.
      alike: run without interruption, with the same number of ranks as after the restart.
      rest: run after the restart.
      epoch: epoch in which the state was saved.
      steps: number of steps before the restart.
    """
    if trouble := _trouble(rest):
        return Verdict(False, trouble, rest.error or rest.hung)
    if rest.uneven and not alike.uneven:
        return Verdict(False, "hangs", rest.uneven)
    before, together = whole.batches(epoch), [*whole.batches(epoch)[:steps], *rest.batches(epoch)]
    same = sum(sorted(one) == sorted(other) for one, other in zip(before, together, strict=False))
    if same == len(before) == len(together):
        return Verdict(True, "kept")
    lost, repeated = (
        max(0, value - max(usual))
        for value, *usual in zip(*(_lost_of(one) for one in (together, before, alike.batches(epoch))), strict=True)
    )
    return Verdict(
        not lost and not repeated,
        _lost_and_repeated(lost, repeated) or f"the same records, {same} of {len(before)} batches unchanged",
    )


def _lost_of(batches: list[list[int]]) -> tuple[int, int]:
    """Returns the records lost and repeated in an epoch's batches."""
    seen = _seen(batches)
    return records.COUNT - len(seen), seen.total() - len(seen)


def flipped(outcome: Outcome, file: str) -> Verdict:
    """Returns whether a flipped bit was noticed and the file or record was named."""
    if outcome.hung:
        return Verdict(False, "hangs", outcome.hung)
    if not outcome.error:
        return Verdict(False, f"silent: {'wrong bytes delivered' if outcome.wrong else 'the record never came'}")
    if outcome.wrong:
        return Verdict(False, "wrong bytes delivered, then an error", outcome.error)
    named = file in outcome.error or re.search(rf"\b{DAMAGED}\b", outcome.error)
    return Verdict(bool(named), "noticed and named" if named else "noticed, not named", outcome.error)


def skipped(outcome: Outcome, whole: Outcome) -> Verdict:
    """Returns whether skipping damaged records kept the steps even, and lost no more records than the whole run.

    A peer that draws records with replacement loses and repeats some in every run, and different ones each time.
    """
    if trouble := _trouble(outcome):
        return Verdict(False, trouble, outcome.error or outcome.hung)
    if outcome.wrong:
        return Verdict(False, "silent: wrong bytes delivered")
    seen, usual = (set(_seen(one.batches(0))) | set(MANY_DAMAGED) for one in (outcome, whole))
    lost = 0 if all(_lost_of(whole.batches(0))) else max(0, len(usual) - len(seen))
    texts = ["hangs, as without skipping"] if whole.uneven else ["hangs"] if outcome.uneven else []
    texts += [f"{lost} good records lost"] if lost else []
    return Verdict(not texts, ", ".join(texts) or "kept", outcome.uneven)


def _seen(batches: Iterable[list[int]]) -> collections.Counter[int]:
    return collections.Counter(number for batch in batches for number in batch)


def _trouble(outcome: Outcome) -> str:
    """Returns what prevented a job from finishing; empty if nothing did."""
    if outcome.hung:
        return "hangs"
    return f"error: {outcome.error.splitlines()[0][:90]}" if outcome.error else ""


def _lost_and_repeated(lost: int, repeated: int) -> str:
    return ", ".join(f"{count} {what}" for count, what in ((lost, "lost"), (repeated, "repeated")) if count)


def _by_ranks(texts: dict[int, str]) -> str:
    """Returns the texts with their numbers of ranks, merging equal ones."""
    if not any(texts.values()):
        return "kept"
    groups: dict[str, list[int]] = {}
    for ranks, text in texts.items():
        groups.setdefault(text or "kept", []).append(ranks)
    return "; ".join(f"{text} (on {_listed(ranks)})" for text, ranks in groups.items())
