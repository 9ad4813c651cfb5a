"""An audit, from flags to verdict: order -> proof -> tables -> picture -> comparison with a run's logs."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline import manifest as manifests
from pipeline import order_flags
from pipeline.audit import observed, proof, schedules
from pipeline.audit.config import LAST_EPOCH, AuditConfig
from pipeline.audit.contract import Contract
from pipeline.audit.observed import compare, read_keys, report_lines
from pipeline.audit.proof import Runs, check_all, order_checks
from pipeline.commands import commandline, quiet
from pipeline.commands.text import count_of, range_of, size_of, sizes_of, table
from pipeline.errors import DataError, UsageError, name_of, named
from pipeline.manifest.sources import VIEWS, Source, Sources, own_views, parse_sources, sources_of
from pipeline.order.key_log import Header
from pipeline.order.order import Order, OrderSpec, sharing_note
from pipeline.order.reading import Reading, Topology
from pipeline.order.views import skips_text
from pipeline.order_flags import OrderFlags
from pipeline.request import Request
from pipeline.resolved import ResolvedInput, ResolvedRequest, resolve, resolve_all

_GIVEN = f"given  the shards hold what the manifest says: {name_of('beam_jobs.validate')} checks that"
_MOST_WORKERS = 16  # most workers listed, half of them from the end
_MOST_FILES = 3  # most files listed per worker
_NAMES, _OF_SPEC = ({field.name for field in dataclasses.fields(kind)} for kind in (OrderFlags, OrderSpec))
_OF_SPEC &= _NAMES  # flags that are also fields of an order's spec


def run(config: AuditConfig) -> None:
    """Prints the proof and the tables; for a mixture, source by source.

    Raises:
      DataError: the proof does not hold, a run saw something else, or there is no valid data set.
      UsageError: a flag cannot work.
    """
    if config.model_dir is not None:
        config = _with_run(config, config.model_dir)
    assert config.data_dir is not None
    given = parse_sources(config.data_dir, "DATA_DIR")
    sources = sources_of(given, config.order.split or "train")
    if len(sources) == 1:
        if config.order.mixture_schedule is not None:
            raise UsageError(
                f"--mixture_schedule with DATA_DIR={config.data_dir}: needs a mixture, such as a=0.7,b=0.3"
            )
        _run(config)
        return
    mixture = _mixture(config, given)
    scheduled = mixture if mixture is not None and mixture.request.schedule else None
    if scheduled is not None:
        size = scheduled.request.global_batch_size
        print(f"mixture of {count_of(len(sources), 'source')}, global batch {size:,}, with a schedule\n", flush=True)
        check_all(schedules.checks(scheduled, _topologies(config, size, None)))
        print()
    parts = [None] * len(sources) if mixture is None else mixture.parts
    for number, (own, part) in enumerate(zip(_of_sources(config, sources), parts, strict=True)):
        print(*([""] if number else []), f"source {number}: {own.data_dir}", sep="\n", flush=True)
        if scheduled is None:
            _run(own, part)
            continue
        print(schedules.span_text(scheduled, number, config.epoch), flush=True)
        _run(own, part, functools.partial(scheduled.request.shares.step_of_unit, number))


def _with_run(config: AuditConfig, model_dir: str) -> AuditConfig:
    flags = order_flags.flags_of_data(model_dir, config.data_dir)
    order = dataclasses.replace(OrderFlags.of_run(flags), **config.order.given)
    config = dataclasses.replace(config, order=order, data_dir=config.data_dir or flags.get("data_dir"))
    if config.observed is None and (config.workers, config.replicas) == (None, None):
        workers, replicas = order_flags.workers_of_run(flags), order_flags.replicas_of_run(flags)
        config = dataclasses.replace(config, workers=workers, replicas=replicas)
    sources = sources_of(parse_sources(str(config.data_dir), "DATA_DIR"), "train")
    if not all(manifests.load(one.data_dir).has_images for one in sources):  # the run's own code parses the records
        config = dataclasses.replace(config, order=dataclasses.replace(order, augment=None, resize=None))
    return config


def _mixture(config: AuditConfig, given: str | Sources) -> ResolvedInput | None:
    """Returns the sources with their orders; None without a batch size, since the orders then come from the logs."""
    if config.evaluation:
        raise UsageError("--evaluation with several sources: an evaluation sees each by itself; audit each by itself")
    if config.order.global_batch_size is None:
        if config.order.mixture_schedule is not None:
            raise UsageError("--mixture_schedule: needs --global_batch_size, which its weights divide")
        return None
    request = Request(given, training=True, **config.order.options)
    for topology in _topologies(config, request.global_batch_size, None):
        request.check_replicas(topology.replicas)
    return resolve_all(request)


def _of_sources(config: AuditConfig, sources: Sequence[Source]) -> Iterator[AuditConfig]:
    """Yields the flags with the folder, view, logs and picture of each source of a mixture."""
    each, for_all = own_views(sources, {name: getattr(config.order, name) for name in VIEWS})
    for number, source in enumerate(each):
        yield dataclasses.replace(
            config,
            data_dir=os.fspath(source.data_dir),
            order=dataclasses.replace(config.order, **{**for_all, **source.options}),
            observed=config.observed and f"{config.observed}/source-{number}",
            png=config.png and f"{config.png.removesuffix('.png')}-{number}.png",
        )


def _run(
    config: AuditConfig, part: ResolvedRequest | None = None, step_of: Callable[[int], int | None] | None = None
) -> None:
    """Proves one source.

    Args:
      config: flags of the source.
      part: the source with its order, if a mixture determines it; None if the flags and logs do.
      step_of: function from a unit of the source to the global step that takes it; None without a schedule.
    """
    logs = observed.find(config.observed) if config.observed is not None else []
    header = observed.header_of_run(logs) if logs else None
    source = _source(config, header, part)
    topologies = _topologies(config, source.spec.global_batch_size, header)
    if config.exhaustive:
        for topology in topologies:
            proof.check_memory(source.order, topology)
    print("\n".join(_heading(source, config.epoch, topologies[0])), flush=True)
    epochs = _prove(config, source, topologies)
    of_source = source.order, source.spec, source.selection
    readings = [Reading(*of_source, config.epoch, topology) for topology in topologies]
    print("\n".join(reading_lines(readings[0], config.list_all)))
    if len(readings) > 1:
        print("\n".join(comparison_lines(readings)))
    if config.png is not None:
        commandline.require("matplotlib")
        from pipeline.audit import picture  # noqa: PLC0415, here because it loads matplotlib

        with named(f"--png={config.png}", "cannot be written"):
            picture.draw(readings[0], source.manifest.dataset, config.png)
        print(f"\n{config.png}: which worker reads what")
    if header is not None:
        _observe(source, logs, step_of)
    print("\n" + _verdict(source.order, topologies[0], epochs) + ("; the run saw just that" if logs else ""))


def _source(config: AuditConfig, header: Header | None, part: ResolvedRequest | None) -> ResolvedRequest:
    """Returns the split with its order, taken from the mixture, the flags or, where neither sets it, the run's log.

    The log states the size of a record, so no record has to be decoded.
    """
    if header is None:
        return part or resolve(_request(config, {}))
    run = dataclasses.asdict(header.spec)
    request = _request(config, run) if part is None else part.request
    request = dataclasses.replace(request, streams=request.streams or header.spec.streams, augment=None, resize=None)
    source = resolve(request, max(1, header.spec.record_bytes))
    differences = source.spec.differences(run, 0)  # skipped steps are compared row by row later
    if "manifest_digest" in differences:
        raise DataError(f"--observed: the run read other data: manifest digest {run['manifest_digest'][:12]}...")
    for name, (here, there) in differences.items():
        raise UsageError(
            f"--observed: the run's order has {name}={there}, not {here}; leave out flags that the log has"
        )
    return source


def _request(config: AuditConfig, run: Mapping[str, Any]) -> Request:
    """Returns the request built from the given flags and, for the rest, from `run`, the fields of an order's spec."""
    assert config.data_dir is not None
    values = {name: run[name] for name in _OF_SPEC if name in run} | config.order.options
    return Request(config.data_dir, training=not config.evaluation and run.get("training", True), **values)


def _topologies(config: AuditConfig, size: int, header: Header | None) -> list[Topology]:
    given = (config.workers, config.replicas)
    if header is not None and given == (None, None):
        given = (header.workers, header.replicas)
    against = (config.against_workers, config.against_replicas)
    each = [given] if against == (None, None) else [given, against]
    numbers = [(1 if workers is None else workers, replicas) for workers, replicas in each]
    return [Topology(workers, workers if replicas is None else replicas, size) for workers, replicas in numbers]


def _prove(config: AuditConfig, source: ResolvedRequest, topologies: Sequence[Topology]) -> dict[int, bool]:
    """Prints each claim with its evidence; returns whether every window was replayed, for each epoch."""
    contract, first = Contract.of(source), topologies[0]
    runs = [Runs(source, contract, config.epoch, topology, config.exhaustive) for topology in topologies]
    # One more epoch, with one topology: an order that repeats in every epoch would pass in each one alone.
    other = config.epoch + 1 if config.epoch + 1 < LAST_EPOCH else config.epoch - 1
    again = Runs(source, contract, other, first, exhaustive=False, share=0.5)
    checks = [*order_checks(source, contract), *runs[0].checks()]
    checks += [check for later in runs[1:] for check in later.checks(first)]
    checks += again.checks_again()
    print()
    if config.content:
        commandline.require("tensorflow")
        with quiet.loading():
            from pipeline.audit import content, draws  # noqa: PLC0415, here because they load TensorFlow
        checks.append(content.content_check(source, config.epoch, first))
        checks += draws.checks(_in_phase(config, source), (config.epoch, other), first)
    check_all(checks)
    print(_GIVEN, flush=True)
    replayed = {config.epoch: all(run.is_complete for run in runs)}
    return {**replayed, other: again.is_complete} if again.checks_again() else replayed


def _in_phase(config: AuditConfig, source: ResolvedRequest) -> ResolvedRequest:
    """Returns a run's data set with the image size of the phase in which the epoch begins."""
    text = order_flags.flags_of_run(config.model_dir).get("phases") if config.model_dir else ""
    if not text or config.evaluation or source.request.is_mixture:
        return source
    step = config.epoch * source.order.steps_per_epoch
    return ResolvedInput(source.request, (source,)).in_phase_of(text, step).first


def reading_lines(reading: Reading, list_all: bool) -> list[str]:
    """Returns a table of what each worker reads, with the totals below."""
    workers, half = reading.topology.workers, _MOST_WORKERS // 2
    shown = [w for w in range(workers) if list_all or workers <= _MOST_WORKERS or not half <= w < workers - half]
    rows = [_worker_row(reading, worker, list_all) for worker in shown]
    if len(shown) < workers:
        hidden = f"{workers - len(shown):,} more: --list_all"
        rows.insert(half, [("worker", "..."), *[("", "")] * (len(rows[0]) - 2), ("shards", hidden)])
    order = reading.order
    # A worker that reads all streams, each in one window, keeps them in memory across epochs.
    is_kept = order.windows == 1 and bool((np.diff(reading.streams) == order.streams).all())
    once = ", once per run" if is_kept else ""
    note = sharing_note(reading.spec, order, workers)
    return [
        "",
        *table(rows, left=("shards",)),
        f"read amplification {reading.amplification:.2f}: all workers together read "
        f"{size_of(reading.worker_bytes.sum())} of a split of {size_of(reading.split_bytes)}; a "
        f"worker reads {sizes_of(reading.worker_bytes)}{once}",
        *([f"note: {note}"] if note else []),
        f"memory: 2 x shuffle_bytes x a worker's streams / K, at most {size_of(reading.memory.max())} of decoded "
        f"images; the two largest windows of each stream take {size_of(reading.windows_memory.max())}",
        f"padding: {int(reading.padding.sum()):,} of the last step's {reading.spec.global_batch_size:,} rows "
        f"have weight 0; a worker has {range_of(reading.padding)} of them",
    ]


def comparison_lines(readings: Sequence[Reading]) -> list[str]:
    """Returns the table that compares topologies, one line each."""
    rows = [
        [
            ("topology", str(r.topology)),
            ("rows per replica", f"{r.topology.global_batch_size // r.topology.replicas:,}"),
            ("streams per worker", range_of(np.diff(r.streams)[:, 0])),
            ("shards per worker", range_of(np.diff(r.worker_shards)[:, 0])),
            ("read per worker", sizes_of(r.worker_bytes)),
            ("read in all", size_of(r.worker_bytes.sum())),
            ("amplification", f"{r.amplification:.2f}"),
            ("memory per worker", sizes_of(r.memory)),
        ]
        for r in readings
    ]
    return ["", *table(rows)]


def _worker_row(reading: Reading, worker: int, list_all: bool) -> list[tuple[str, str]]:
    files = [name.split("-of-")[0] for name in reading.shards_of(worker)]
    listed = files if list_all else files[:_MOST_FILES]
    more = f" and {len(files) - len(listed):,} more" if len(files) > len(listed) else ""
    return [
        ("worker", f"{worker:,}"),
        ("rows", _span(*reading.topology.worker_rows()[worker])),
        ("streams", _span(*reading.streams[worker])),
        ("records", f"{np.diff(reading.positions[worker])[0]:,}"),
        ("reads", size_of(reading.worker_bytes[worker])),
        ("of the split", f"{reading.worker_bytes[worker] / reading.split_bytes:.1%}"),
        ("memory", size_of(reading.memory[worker])),
        ("padding", f"{reading.padding[worker]:,}"),
        ("shards", f"{len(files):,}: {' '.join(listed)}{more}"),
    ]


def _span(first: int, stop: int) -> str:
    return f"{first:,}" if stop == first + 1 else f"{first:,}-{stop - 1:,}"


def _observe(source: ResolvedRequest, logs: list[pathlib.Path], step_of: Callable[[int], int | None] | None) -> None:
    made = source.manifest
    if made.key_feature is None:
        raise UsageError(f"--observed: the records of {made.dataset} have no keys, so no run can have logged them")
    keys = read_keys(source.request.folder, source.selection, made.key_feature)
    report = compare(Contract.of(source), observed.read_run(logs, keys, source.spec, step_of))
    print("\n".join(report_lines(report, source.order.steps_per_epoch)))
    if report.first is not None:
        print("\nproof holds, but the run saw something else")
        step, row, text = report.first
        where = f"the first at step {step}, row {row} of the global batch, {text}"
        raise DataError(f"--observed: {count_of(report.differences, 'difference')}; {where}")


def _heading(source: ResolvedRequest, epoch: int, topology: Topology) -> list[str]:
    spec, order, segments = source.spec, source.order, source.selection.segments
    kind = f"training, seed {spec.seed}, epoch {epoch}" if spec.training else f"evaluation, epoch {epoch}"
    streams = f"{count_of(spec.streams, 'stream')} of {count_of(order.rows_per_stream, 'row')}"
    return [
        f"{source.manifest.dataset}, split {spec.split}: {count_of(order.num_stored, 'record')} in "
        f"{count_of(len(segments), 'shard')}",
        *([f"view: {count_of(order.num_records, 'row')} per epoch; {spec.view}"] if spec.view else []),
        *([f"skipped steps: {skips_text(spec.skip_steps)}"] if spec.skip_steps else []),
        f"order: {kind}, global batch {spec.global_batch_size:,}, {streams}, shuffle_bytes {spec.shuffle_bytes:,}, "
        f"remainder {spec.remainder}",
        f"topology: {topology}",
    ]


def _verdict(order: Order, topology: Topology, epochs: dict[int, bool]) -> str:
    """Returns the last line of a successful proof; records were counted in `epochs`, which were replayed completely."""
    number, *others = epochs
    if not epochs[number]:
        return "no fault in what was checked; --exhaustive replays every window and counts every record"
    replayed = f"; epoch {number} replayed"
    if others:
        other = others[0]
        replayed = (
            f"; epochs {number} and {other} replayed" if epochs[other] else f"{replayed}, and parts of epoch {other}"
        )
    seen = min(order.num_records, order.steps_per_epoch * order.global_batch_size)
    if order.times is not None or order.skip_steps:
        return (
            f"proof holds: every record as often as the view says, {seen:,} rows per epoch but for skipped steps; "
            f"{order.steps_per_epoch:,} full steps on each of {topology.replicas:,} replicas{replayed}"
        )
    each = f"each of {seen:,} records" if seen == order.num_records else f"{seen:,} of {order.num_records:,} records"
    return (
        f"proof holds: {each} once per epoch, by one replica; {order.steps_per_epoch:,} full steps on each of "
        f"{topology.replicas:,} replicas{replayed}"
    )
