"""`python -m pipeline.inspect DATA_DIR`: shows a data set, or a step of a run, as tables and as a picture."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from pipeline import manifest, order_flags, step_rows
from pipeline.commands import commandline, quiet
from pipeline.commands.flags import check_all, check_ending, check_needs, fields_with, flag, shown
from pipeline.commands.text import count_of, range_of, shape_of, size_of, table
from pipeline.errors import UsageError, name_of, named, to_run
from pipeline.files.paths import PathLike, folder
from pipeline.input import input_fn
from pipeline.inspect import marks, steps
from pipeline.manifest import Feature, Manifest, columns, gone_in, versions
from pipeline.manifest.manifest import BOXES, IMAGE_FEATURES, MASK, POINTS, rounded_up
from pipeline.manifest.sources import parse_sources
from pipeline.order.views import View
from pipeline.order_flags import InputFlags
from pipeline.read.shards import check_present
from pipeline.read.statistics import Spread, number_bars, spread
from pipeline.request import Request
from pipeline.resolved import ResolvedInput, resolve_all

COMMAND = "pipeline.inspect"
_MOST_SIZES = 20  # most image sizes listed
_CROP = 96  # pixels on a side for images of different sizes in the contact sheet
_IMAGES = 32
_TINY = 4  # pixels on a side: pad_crop_flip could crop a smaller image away entirely


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """Look at a data set made by beam_jobs.convert or pipeline.index, or at the batch of any step of a run."""

    data_dir: str | None = flag(
        None,
        f"the data set's folder; --step and --key also accept several, as in {name_of('trainer.run')} --data_dir, or "
        "none, for the run's",
        positional=True,
        metavar="DATA_DIR",
    )
    png: str | None = flag(None, "contact sheet to write: images as stored and augmented; with --step, all its rows")
    step: int | None = flag(None, "step of a run whose batch to show, from 0: the number of updates before it", least=0)
    key: str | None = flag(None, "key of a record: shows the steps of an epoch that have it, and where")
    epoch: int | None = flag(None, "epoch of --key, from 0; default: 0", least=0, needs="key")
    model_dir: str | None = flag(
        None, f"a run of {name_of('trainer.run')}: --step and --key are of its data, order and augmentation"
    )
    replicas: int | None = flag(None, "number of the run's replicas; default: as in its flags, else 1", least=1)
    order: InputFlags = dataclasses.field(default_factory=InputFlags)
    json: bool = flag(False, "one JSON object instead of tables, for --step and --key")

    def __post_init__(self) -> None:
        check_all(self._check_png, self._check_needed, self._check_step)

    @property
    def is_of_run(self) -> bool:
        """Whether to show a step or a record of a run rather than the data set."""
        return self.step is not None or self.key is not None

    def _check_png(self) -> None:
        check_ending("png", self.png, ".png")
        if self.png is not None and self.key is not None:
            raise UsageError(f"--png={self.png} with --key={self.key}: draws the batch of a --step, or a data set")

    def _check_needed(self) -> None:
        if self.is_of_run:
            return
        if self.data_dir is None:
            raise UsageError("DATA_DIR is missing; see --help")
        order = self.order.given
        on_sheet = [field.name for field in fields_with(self.order, "on_sheet")]
        of_sheet = {name: order.pop(name) for name in on_sheet if name in order}
        if self.png is None and (given := _words(of_sheet)):
            raise UsageError(f"{given[0]}: chooses what --png shows; give --png=FILE.png too")
        of_run = {"model_dir": self.model_dir, "replicas": self.replicas, **order, "json": self.json}
        if given := _words(of_run):
            raise UsageError(f"{given[0]}: is for a step or a record of a run; give --step=NUMBER or --key=KEY too")

    def _check_step(self) -> None:
        if self.step is not None and self.key is not None:
            raise UsageError(f"--step={self.step} and --key={self.key}: give one of them")
        check_needs(self, key="is the epoch of --key; give --key=KEY too")
        if self.is_of_run and self.model_dir is None and None in (self.data_dir, self.order.global_batch_size):
            raise UsageError(
                f"{_words({'step': self.step, 'key': self.key})[0]}: of which run? give its --model_dir, or DATA_DIR, "
                "--global_batch_size and what else shapes its order"
            )


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Returns the given flags in command-line form."""
    return [shown(name, value) for name, value in flags.items() if value is not None and value is not False]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables and writes the picture.

    Raises:
      DataError: there is no valid data set, or a shard is missing or has another size.
      UsageError: a flag cannot work, or the data set has no images to draw.
    """
    config = commandline.parse(COMMAND, "Show what is in a data set, or in a step of a run.", InspectConfig, argv)
    if config.is_of_run:
        _show_run(config)
        return
    assert config.data_dir is not None
    made = manifest.load(config.data_dir)
    for split in made.splits.values():
        check_present(config.data_dir, split.shards)
    numbers = columns.numbers(config.data_dir, made)
    print("\n".join([*_summary(made, numbers), *_versions(config.data_dir, made)]))
    if config.png is not None:
        made.require_images()
        _write_sheet(config, made)


def _versions(data_dir: PathLike, shown: Manifest) -> list[str]:
    """Returns a table of a data set's versions and their authors; empty if there is only one."""
    place = folder(data_dir)
    every, log = versions.all_of(place), versions.log_of(place)
    found = {made.digest: (made.version, f"{made.num_examples:,}", str(made.edit or "")) for made in every}
    found |= {gone.digest: (gone.version, "-", f"gone, {gone.time}") for gone in gone_in(place)}
    rows = []
    for digest, (number, examples, change) in sorted(found.items(), key=lambda each: each[1][0]):
        entry = log.get(digest)
        row = [
            ("version", f"{number}{' *' if digest == shown.digest else ''}"),
            ("digest", digest[:12]),
            ("examples", examples),
            ("made", entry.time if entry else "-"),
            ("by", f"{entry.user or '?'} on {entry.host}" if entry else "-"),
        ]
        rows.append([*row, ("edit", change)] if any(change for _, _, change in found.values()) else row)
    return ["", *table(rows, left=("version", "digest", "made", "by", "edit"))] if len(rows) > 1 else []


def _load_tensorflow() -> None:
    """Loads TensorFlow before an import loads it, so that its start-up notes are hidden."""
    commandline.require("tensorflow")
    with quiet.loading():
        import tensorflow  # noqa: F401, PLC0415


def _write_sheet(config: InspectConfig, made: Manifest) -> None:
    _load_tensorflow()
    assert config.data_dir is not None
    assert config.png is not None
    options = {"split": "train", "seed": 0, "augment": _default_recipe(made), **config.order.options}
    _save(_contact_sheet(config.data_dir, made, options), config.png)
    print(f"\n{config.png}: contact sheet of {options['split']}, as stored and by {options['augment']}")


def _default_recipe(made: Manifest) -> str:
    """Returns a recipe that fits the images: `shift` for grey ones (digits), a crop for others, none for tiny ones."""
    if None in made.features["image"].shape:
        return f"random_resized_crop(size={_CROP})"
    height, width, channels = made.image_shape
    if min(height, width) <= _TINY:
        return "none"
    if channels == 1:
        return "shift"
    return "cifar10_tutorial" if min(height, width) >= 24 else "pad_crop_flip"


def _contact_sheet(data_dir: PathLike, made: Manifest, options: Mapping[str, Any]) -> Image.Image:
    """Draws the first training batch: each image as stored and, below it, as a model gets it, with its class."""
    size = (_CROP, _CROP) if None in made.features["image"].shape else None
    batches = functools.partial(input_fn, data_dir, global_batch_size=_IMAGES, training=True, **options)
    placed = tuple(name for name in (MASK, BOXES, POINTS) if name in made.features)
    batches = functools.partial(batches, features=placed) if placed else batches
    raw, labels, weights = next(batches(augment="none", resize=size).as_numpy_iterator())
    augmented, _, _ = next(batches().as_numpy_iterator())
    if placed:
        raw, augmented = (
            [marks.marked(x["image"][row], {name: x[name][row] for name in x}) for row in range(len(x["image"]))]
            for x in (raw, augmented)
        )
    shown = int((weights > 0).sum())
    classes = View(classes=options.get("classes")).classes or made.class_names
    names = [step_rows.name_of(label, classes) for label in labels.tolist()]
    tiles = [step_rows.Tile(raw[i], augmented[i], (names[i],)) for i in range(shown)]
    split, seed, augment = (options[name] for name in ("split", "seed", "augment"))
    title = f"{made.dataset} {split}, step 0, seed {seed}: above as stored, below {augment}"
    return step_rows.sheet(f"{title} (floats stretched to black..white)", {"": tiles})


def _show_run(config: InspectConfig) -> None:
    """Prints the rows of a step of a run, or where a record is in an epoch."""
    flags = {} if config.model_dir is None else order_flags.flags_of_data(config.model_dir, config.data_dir)
    resolved = resolve_all(_request(config, flags))
    replicas = config.replicas or order_flags.replicas_of_run(flags)
    resolved.request.check_replicas(replicas)
    if flags.get("task") and not config.json:
        print(
            f"the run has --task={flags['task']}: if that parses records itself, the order may be another; if it "
            "augments images, they are shown without that"
        )
    if config.key is not None:
        _show_key(config, resolved, replicas)
    else:
        _show_step(config, resolved, replicas, flags)


def _request(config: InspectConfig, flags: dict[str, Any]) -> Request:
    options = steps.options_of_run(flags) if flags else {}
    options |= config.order.options
    if config.data_dir is not None:
        options["data_dir"] = parse_sources(config.data_dir, "DATA_DIR")
    request = Request(**options, training=True)
    others = [made for source in request.sources if not (made := manifest.load(source.data_dir)).has_images]
    if others:
        for name in ("augment", "resize"):  # the run's code determines these, so flags would be ignored
            if (given := getattr(config.order, name)) is not None:
                raise UsageError(f"--{name}={given}: {others[0].dataset} has records of any kind, not images")
        options |= {"augment": None, "resize": None}
        request = Request(**options, training=True, parse=lambda records: records)  # the parser does not matter
    return request


def _show_step(config: InspectConfig, resolved: ResolvedInput, replicas: int, flags: Mapping[str, Any]) -> None:
    _load_tensorflow()
    assert config.step is not None
    in_epoch, fed = resolved.steps_per_epoch, resolved.in_phase_of(flags.get("phases") or "", config.step)
    rows = step_rows.rows_of_step(fed, config.step, replicas)
    names = resolved.first.class_names
    epoch, step_of_epoch = divmod(config.step, in_epoch)
    title = f"step {config.step}: epoch {epoch}, its step {step_of_epoch} of {in_epoch}"
    phase = steps.phase_of(flags, config.step, in_epoch)
    if config.json:
        shown: dict[str, Any] = {"step": config.step, "epoch": epoch, "step_of_epoch": step_of_epoch}
        shown |= {"steps_per_epoch": in_epoch, "replicas": replicas, "order": resolved.spec.digest}
        shown |= {"phase": phase} if phase else {}
        print(json.dumps({**shown, "rows": [step_rows.json_of(row, names) for row in rows]}))
    else:
        real = sum(row.weight > 0 for row in rows)
        print(f"{title}; {count_of(real, 'real row')} of {len(rows)}, {count_of(replicas, 'replica')}")
        print(*([phase] if phase else []), "", sep="\n")
        print(*table([step_rows.cells_of(row, resolved) for row in rows], left=("key", "label", "shard")), sep="\n")
        for problem in dict.fromkeys(row.problem for row in rows if row.problem):
            alike = [str(row.row) for row in rows if row.problem == problem]
            print(f"not shown as stored, {'rows' if alike[1:] else 'row'} {', '.join(alike)}: {problem}")
    if config.png is not None:
        sheet = step_rows.sheet_of(rows, f"{title}: above as stored, below {fed.request.augment or 'as read'}", names)
        _save(sheet, config.png)
        if not config.json:
            print(f"\n{config.png}: the rows of step {config.step}, as stored and as they are trained on")


def _show_key(config: InspectConfig, resolved: ResolvedInput, replicas: int) -> None:
    assert config.key is not None
    epoch, found = config.epoch or 0, []
    for source, record in steps.find_key(resolved, config.key):
        part = resolved.parts[source]
        file, number = part.selection.locate(record)
        fed = steps.fed_in_epoch(resolved, source, record, epoch, replicas)
        rows = [{**one._asdict(), "weight": 0.0 if one.is_padding else 1.0} for one in fed]
        found.append({"source": source, "record": record, "shard": file, "record_of_shard": number, "rows": rows})
        if not config.json:
            of_source = f" of {os.fspath(part.request.folder)}" if resolved.request.is_mixture else ""
            print(f"{config.key}: record {record} of {part.spec.split}{of_source}, {file} #{number}")
            print(*_places(fed, epoch, replicas), sep="\n")
    if config.json:
        print(json.dumps({"key": config.key, "epoch": epoch, "replicas": replicas, "records": found}))


def _places(fed: Sequence[steps.Fed], epoch: int, replicas: int) -> list[str]:
    if not fed:
        return [
            f"epoch {epoch} does not have it: its view leaves it out, or remainder=drop, as it fills no batch, or the "
            "schedule, by which its source has ended"
        ]
    rows = [
        [
            ("epoch", str(epoch)),
            ("step", str(one.step)),
            ("row", str(one.row)),
            ("replica", f"{one.replica} of {replicas}"),
            ("weight", "0 (padding)" if one.is_padding else "1"),
        ]
        for one in fed
    ]
    return table(rows)


def _save(picture: Image.Image, path: str) -> None:
    with named(f"--png={path}", "cannot be written"):
        picture.save(pathlib.Path(path))


def _summary(made: Manifest, numbers: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[str]:
    """Returns the lines of all tables: splits, shards, labels, and sizes; `numbers` come from `columns.numbers`."""
    splits = [
        [
            ("split", name),
            ("shards", f"{len(split.shards):,}"),
            ("examples", f"{split.num_examples:,}"),
            ("size", size_of(split.num_bytes)),
            ("examples per shard", range_of(shard.num_examples for shard in split.shards)),
            ("rejects", f"{split.num_rejects:,}"),
        ]
        for name, split in made.splits.items()
    ]
    shards = [
        [
            ("shard", shard.file),
            ("examples", f"{shard.num_examples:,}"),
            ("bytes", f"{shard.num_bytes:,}"),
            ("CRC32C", shard.crc32c),
        ]
        for shard in made.shards
    ]
    return [
        f"{made.dataset}: {made.num_examples:,} examples, {_kind(made)}",
        *_more_lines(made),
        "",
        *table(splits),
        "",
        *table(shards),
        *(_label_lines(made, numbers) if made.has_images else []),
    ]


def _kind(made: Manifest) -> str:
    if not made.has_images:
        return "records of any kind, which input_fn reads with a parse function"
    mean, std = (", ".join(f"{v:.1f}" for v in values) for values in (made.image_mean, made.image_std))
    label, count = made.features["label"], count_of(len(made.class_names), "class", "classes")
    labels = count if label.is_class else f"labels {label}" + f" of {count}" * bool(made.class_names)
    image = f"{_image(made)}, {labels}"
    return f"{image}, pixel mean {mean}, standard deviation {std}"


def _image(made: Manifest) -> str:
    image = made.features["image"]
    if None not in image.shape:
        return f"image {_text(image)}"
    height, width, channels = image.shape
    size = "several sizes" if height is None else f"{height}x{width}"
    colours = {1: "grey", 3: "colour"}.get(channels or 0, "grey or colour")
    return f"{'png and jpeg' if image.encoding == 'any' else image.encoding} images of {size}, {colours}"


def _text(feature: Feature) -> str:
    return " ".join(part for part in (shape_of(feature.shape), feature.dtype, feature.encoding) if part)


def _more_lines(made: Manifest) -> Iterator[str]:
    others = [f"{name} ({_text(f)})" for name, f in sorted(made.features.items()) if name not in IMAGE_FEATURES]
    if others:
        yield f"other features: {', '.join(others)}"
    if made.columns:
        listed = (f"{name} ({'string' if c.values else c.dtype})" for name, c in sorted(made.columns.items()))
        yield f"columns: {', '.join(listed)}"
    if made.packing:
        forward = sum(not shard.is_seekable for shard in made.shards)
        limits = f"; {forward} of {len(made.shards)} are read forward only" if forward else ""
        yield f"shards compressed with {made.packing}{limits}"


def _label_lines(made: Manifest, numbers: Mapping[str, Mapping[str, NDArray[Any]]]) -> list[str]:
    histograms = {name: dict(enumerate(split.label_histogram)) for name, split in made.splits.items()}
    rows = [
        [("label", str(label)), ("class", name), *((split, f"{h.get(label, 0):,}") for split, h in histograms.items())]
        for label, name in enumerate(made.class_names)
    ]
    tables = [table(rows)] if rows else []
    for name, of_splits in numbers.items():
        tables.append(table([_spread_row(name, split, spread(values)) for split, values in of_splits.items()]))
        bars = [
            [(name if name == "label" else f"{name} per record", text), *((s, f"{n:,}") for s, n in counts.items())]
            for text, counts in number_bars(of_splits)
        ]
        tables += [table(bars)] if bars else []
    if "label" not in numbers and not rows and made.features["label"].dtype == "float32":
        how = f"to see how they are spread: {to_run('pipeline.index')} DATA_DIR --add_columns=records:label"
        tables.append([f"labels are numbers, and the data set has no column of them; {how}"])
    tables += [lines] if (lines := list(_per_record(made))) else []
    return [*itertools.chain.from_iterable(["", *lines] for lines in tables), *_size_lines(made)]


def _spread_row(name: str, split: str, found: Spread) -> list[tuple[str, str]]:
    figures = {"least": found.least, "mean": found.mean, "most": found.most, "standard deviation": found.std}
    is_label = name == "label"
    return [
        ("split", split),
        ("labels" if is_label else name, f"{found.count if is_label else round(found.total):,}"),
        ("missing" if is_label else "records without", f"{found.missing if is_label else found.zeros:,}"),
        *((name, f"{value:,.6g}" if found.count else "-") for name, value in figures.items()),
    ]


def _per_record(made: Manifest) -> Iterator[str]:
    """Yields a line per split about labels for each class, or about records without a class."""
    label = made.features["label"]
    for name, split in made.splits.items():
        labels = sum(split.label_histogram)
        if label.shape and labels:
            yield f"{name}: {labels / split.num_examples:.2f} labels per example"
        elif label.is_class and labels < split.num_examples:
            yield f"{name}: {count_of(split.num_examples - labels, 'example')} without a label"


def _size_lines(made: Manifest) -> list[str]:
    if None not in made.features["image"].shape[:2]:
        return []
    sizes = [size for size, _ in made.image_sizes]
    rows = [
        [("height x width", size), *((n, f"{s.image_sizes.get(size, 0):,}") for n, s in made.splits.items())]
        for size in sizes[:_MOST_SIZES]
    ]
    more = [f"and {count_of(len(sizes) - _MOST_SIZES, 'more size')}"] if len(sizes) > _MOST_SIZES else []
    sides = {int(side) for size in sizes for side in size.split("x")}
    if all(side == rounded_up(side) for side in sides):
        more.append("of a split with more than 100 sizes, sides are rounded up to a multiple of 64")
    return ["", *table(rows), *more]


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
