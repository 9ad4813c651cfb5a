"""The command `validate`, from its flags to its report."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from beam_jobs import flag_values
from beam_jobs.report import card
from beam_jobs.runs import entry
from beam_jobs.sink.present import notes
from beam_jobs.validation.drift import COMPARED, MOST_DRIFT, SHARED, Other
from beam_jobs.validation.findings import DRIFT, KINDS, NEAR, doubts_of
from pipeline import manifest as manifests
from pipeline.commands import commandline, quiet
from pipeline.commands.flags import check_all, check_needs, flag
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.files import paths
from pipeline.files.paths import StoragePath
from pipeline.manifest import Manifest, naming, versions

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_jobs.validation.job import Report

_ABOUT_PIXELS = "is about the images' pixels, which only --deep looks at"
_SHOWN_PLACES = 3  # places listed per finding
# Measured seconds of one core, to tell whether several processes pay: for each record and byte; for each byte of raw
# pixels, which are summed; for each decoded image and byte of it (a JPEG of 500x500: 2.6 ms for 158 kB).
_RECORD_SECONDS, _BYTE_SECONDS = 15e-6, 1e-9
_NEAR_SECONDS = 150e-6
_RAW_BYTE_SECONDS, _DECODED_SECONDS, _DECODED_BYTE_SECONDS = 3e-9, 80e-6, 20e-9


@dataclasses.dataclass(frozen=True)
class ValidateConfig:
    """Every other flag goes to Beam, as --flag=value: --runner (default FnApiRunner), --direct_num_workers, ..."""

    data_dir: str = flag(text="the data set's folder", positional=True, metavar="DATA_DIR")
    deep: bool = flag(
        False, "whether to check pixels (sizes, mean, standard deviation), columns, and the folders below, too"
    )
    card: bool = flag(
        False,
        "whether to rewrite croissant.json from the manifest and, if nothing is wrong, card.html, the data set on one "
        "page; a conversion writes both itself; with deep the page shows equal images, too",
    )
    near: bool = flag(
        False,
        "with deep: whether to find nearly equal images, too, by a perceptual hash (0.15 ms per image); needs the "
        "package imagehash",
        needs="deep",
    )
    fail_on: str = flag(
        "",
        f"findings that make the command fail, and are listed: {', '.join(KINDS)} (equal images in two splits, in one "
        "split, with different labels; nearly equal ones in two splits; drift from the data set of --compare); several "
        "with commas; all but drift need deep",
    )
    compare: str = flag(
        "",
        "another data set, or a version, DIR@1, to show what has drifted from it: classes, sizes, brightness, contrast "
        "and columns, by split; with deep also which images are in both",
        metavar="DIR",
    )
    most_drift: float = flag(
        MOST_DRIFT,
        "with compare: the population stability index, and the distance of means in standard deviations, beyond which "
        "data have drifted",
        needs="compare",
    )
    report: str = flag("", "file to also write the report to, as JSON; on a cluster, all its machines must reach it")

    def __post_init__(self) -> None:
        check_all(
            self._check_data_dir,
            lambda: flag_values.check_path("report", self.report),
            lambda: self.kinds_to_fail_on,
            lambda: check_needs(self, deep=f"{_ABOUT_PIXELS}; give it, too"),
            self._check_kinds,
            self._check_most_drift,
        )

    def _check_kinds(self) -> None:
        kinds = {*self.kinds_to_fail_on}
        if NEAR in kinds and not self.near:
            raise UsageError(f"--fail_on={self.fail_on}: only --near finds nearly equal images; give it, too")
        if DRIFT in kinds and not self.compare:
            raise UsageError(f"--fail_on={self.fail_on}: drift from what? --compare=DIR names the other data set")
        if kinds - {DRIFT} and not self.deep:
            raise UsageError(f"--fail_on={self.fail_on}: {_ABOUT_PIXELS}; give it, too")

    def _check_most_drift(self) -> None:
        if not 0 < self.most_drift < math.inf:
            raise UsageError(f"--most_drift={self.most_drift:g}: must be above 0, such as {MOST_DRIFT:g}")

    @property
    def kinds_to_fail_on(self) -> list[str]:
        """Parsed `fail_on`: kinds of findings."""
        found = [name.strip() for name in self.fail_on.split(",") if name.strip()]
        for name in found:
            if name not in KINDS:
                raise unknown("--fail_on", name, KINDS)
        return found

    def _check_data_dir(self) -> None:
        if not self.data_dir.strip():  # an unset variable would mean the current folder
            raise UsageError(f"DATA_DIR={self.data_dir!r}: must be the folder of a data set; see --help")


def validate(command: str, argv: Sequence[str] | None) -> None:
    """Runs a validation from its command line.

    Args:
      command: name of the command, for --help.
      argv: flags; None for the process's own arguments.

    Raises:
      PipelineError: bad flags, no data set, or a data set that differs from its manifest, in one line of text.
    """
    description = "Checks a data set against its manifest, byte by byte."
    config, beam_arguments, flags = commandline.parse_known(
        command, description, ValidateConfig, argv, others=entry.check_beam_flags
    )
    data_dir, content, shown = _found(config.data_dir)
    if config.card and not versions.is_newest(data_dir, content):
        place, _ = paths.with_version(config.data_dir)
        raise UsageError(f"--card with {shown}: the card of an older version stays as it was written; give {place}")
    other = Other(*_found(config.compare), config.most_drift) if config.compare else None
    if other:
        other.manifest.require_images()
    if config.deep or config.card or other:
        content.require_images()
    commandline.require("apache_beam", *(["imagehash"] if config.near else []))
    with quiet.loading():
        from beam_jobs.runs import runners  # noqa: PLC0415 (2 s to import: after --help and our own flags)
    options = runners.parse(beam_arguments, flags)
    lowered = runners.bound_workers(options, len(content.shards))
    expected = seconds(content, config.deep, config.near)
    expected += seconds(other.manifest, config.deep) if other and config.deep else 0
    workers = runners.use_all_cores(options, expected, len(content.shards))
    with_workers = f" with {workers} processes" if workers > 1 else ""
    what = f"{count_of(content.num_examples, 'record')} in {count_of(len(content.shards), 'shard')}"
    by_edit = f" of version {content.version} ({content.edit})" if content.edit else ""
    print(f"{shown}: checking {what}{by_edit}{with_workers}", flush=True)
    if lowered:
        print(lowered, flush=True)
    if config.card:
        card.renew_croissant(data_dir)
    began = time.monotonic()
    report = _run(config, data_dir, content, options, other)
    checked = lines(report, content, config.deep, time.monotonic() - began)
    others = (f"note: {note}" for note in notes(data_dir, content, are_checked=True))
    for line in (*checked, *_finding_lines(report, config.kinds_to_fail_on), *others):
        print(line)
    if report.num_problems:
        raise DataError(count(report, content), path=shown)
    if config.card:
        of_data = [finding for finding in report.findings if finding.kind not in (COMPARED, SHARED)]
        doubts = doubts_of(data_dir, content, of_data) if config.deep else None
        arguments = sys.argv[1:] if argv is None else argv
        if problem := card.write_card(data_dir, command, arguments, doubts=doubts):
            raise DataError(problem, path=data_dir)
        print(f"look at it: {data_dir / naming.CARD}")
    if bad := [finding for finding in report.findings if finding.kind in config.kinds_to_fail_on]:
        found = "; ".join(finding.text for finding in bad)
        raise DataError(f"--fail_on={config.fail_on}: {found}", path=shown)


def seconds(content: Manifest, decodes: bool, finds_near: bool = False) -> float:
    """Returns an estimate of the seconds that checking a data set takes on one core."""
    records = content.num_examples
    num_bytes = sum(split.num_bytes for split in content.splits.values())
    taken = records * _RECORD_SECONDS + num_bytes * _BYTE_SECONDS + records * _NEAR_SECONDS * finds_near
    if not decodes:
        return taken
    if content.features["image"].encoding == "raw":
        return taken + num_bytes * _RAW_BYTE_SECONDS
    return taken + records * _DECODED_SECONDS + num_bytes * _DECODED_BYTE_SECONDS


def lines(report: Report, content: Manifest, decoded: bool, taken: float) -> list[str]:
    """Returns one line per problem, and a summary."""
    found = list(report.problems)
    if report.num_problems > len(found):
        found.append(f"and {report.num_problems - len(found)} more")
    begin = f"{count(report, content)}:" if report.num_problems else "the data set matches its manifest:"
    pixels = ", pixels looked at" if decoded else ""
    found.append(
        f"{begin} {count_of(report.records, 'record')} in {count_of(len(content.shards), 'shard')}, "
        f"{count_of(report.num_bytes, 'byte')} read{pixels}, "
        f"{taken:.1f} s, {report.records / max(taken, 1e-9):,.0f} records/s"
    )
    return found


def _finding_lines(report: Report, listed: Sequence[str]) -> Iterator[str]:
    """Yields a line for each finding, with some of its records; for kinds in `listed`, all records in the report."""
    for finding in report.findings:
        yield f"{COMPARED if finding.kind == COMPARED else 'found'}: {finding.text}"
        most = len(finding.places) if finding.kind in listed else _SHOWN_PLACES
        for group in finding.places[:most]:
            yield f"  {' = '.join(map(str, group))}"
        if len(finding.places) > most:
            yield f"  and more; --report=FILE lists {len(finding.places):,}"


def count(report: Report, content: Manifest) -> str:
    """Returns the number of problems and of shards that have them, as text."""
    where = (
        f"{report.bad_shards:,} of {count_of(len(content.shards), 'shard')}" if report.bad_shards else "the other files"
    )
    return f"{count_of(report.num_problems, 'problem')} in {where}"


def _found(given: str) -> tuple[StoragePath, Manifest, str]:
    """Returns the folder, the manifest and the name for messages of a data set, or of a version, that a flag names."""
    place, version = paths.with_version(given)
    data_dir = paths.path_of(place)
    shown = str(data_dir) if data_dir.is_remote else given  # without the parts of a URL that may be secret
    return data_dir, manifests.load(given if version else data_dir), shown


def _run(
    config: ValidateConfig, data_dir: StoragePath, content: Manifest, options: PipelineOptions, other: Other | None
) -> Report:
    with quiet.loading():
        from beam_jobs.runs import run  # noqa: PLC0415 (as above)
        from beam_jobs.validation import job  # noqa: PLC0415 (as above)
    with run.temporary_folder() as folder:
        marks = folder / "marks"
        marks.mkdir()
        file = paths.path_of(config.report or f"{folder}/report.json")
        validation = job.Validation(data_dir, content, config.deep, file, marks, config.near, other)
        run.run_job(validation, options, job.Progress(validation.infos, str(marks)))
        try:
            return job.parse_report(file.read_bytes(), str(file))
        except FileNotFoundError:
            raise UsageError(
                "the runner works on other machines: give --report=FILE, a file that they and this one reach"
            ) from None
