"""The summary that the converter prints at its end."""

from __future__ import annotations

from beam_jobs.report import image_facts, notices
from beam_jobs.report.image_facts import ImageFacts
from pipeline.commands.text import count_of, size_of
from pipeline.manifest import Manifest, SplitInfo, naming, storage
from pipeline.manifest.splits import EVALUATED

_TRAIN, _TEST = "train", "test"  # the trainer's own defaults
_TUTORIAL_SIDE = 24  # pixels: cifar10_cnn's default distortion cuts 24x24 out
_LENET_SIDE = 12  # pixels: what its layers need
_SIDE = 32  # pixels that images of several sizes are stretched to
_LISTED_SIZES = 3


def summary(
    made: Manifest,
    data_dir: str,
    writing_seconds: float,
    total_seconds: float,
    *,
    resumed: float = 0.0,
    has_card: bool = False,
    images: ImageFacts | None = None,
    url: str = "",
) -> str:
    """Returns a few lines for a person: what was written, how fast, where, and the next commands.

    Args:
      made: the manifest that was published.
      data_dir: the folder, as the user named it.
      writing_seconds: from the start of the Beam pipeline to its end.
      total_seconds: from the start of the command.
      resumed: the part of the work, 0 to 1, that an earlier run had done: the rate is without it.
      has_card: whether there is a card.html.
      images: what is known of the images; by default what the manifest says.
      url: of a store, the folder with the store's options, which the next commands need.
    """
    images = images or image_facts.of_manifest(made)
    examples = sum(split.num_examples for split in made.splits.values())
    rate = examples * (1 - resumed) / max(writing_seconds, 1e-9)
    earlier = f"; an earlier run had done {resumed:.0%}" if resumed else ""
    lines = [
        f"{made.dataset} is in {data_dir}:",
        *(
            f"  {name}: {count_of(split.num_examples, 'example')}, {count_of(len(split.shards), 'shard')}, "
            f"{size_of(split.num_bytes)}"
            for name, split in by_size(made)
        ),
        f"  {image_text(made, images)}",
        f"  {writing_seconds:.1f} s, {rate:,.0f} examples/s ({total_seconds:.1f} s with start-up and checks){earlier}",
    ]
    if rejects := sum(split.num_rejects for split in made.splits.values()):
        lines.append(f"  {count_of(rejects, 'invalid row')} left out, listed in {_inside(data_dir, naming.REJECTS)}")
    lines += [f"warning: {notice}" for notice in notices.notices(made, images)]
    return "\n".join([*lines, *_next_lines(made, data_dir, url or data_dir, has_card)])


def image_text(made: Manifest, images: ImageFacts) -> str:
    """Returns how the images are stored, in words: `raw images of 28x28x1`."""
    image = made.features["image"]
    kind = "png and jpeg" if image.encoding == "any" else image.encoding
    compressed = f", shards compressed with {made.compression}" if made.compression else ""
    if None not in image.shape:
        return f"{kind} images of {'x'.join(map(str, image.shape))}{compressed}"
    sizes = images.by_count
    listed, more = ", ".join(sizes[:_LISTED_SIZES]), ""
    if len(sizes) > _LISTED_SIZES:
        more = f" and {len(sizes) - _LISTED_SIZES:,} more, the largest {images.largest}"
    channels = {1: "grey", 3: "colour"}.get(image.shape[2] or 0, "grey or colour")
    return f"{kind} images, {channels}, of {count_of(len(sizes), 'size')}: {listed}{more}{compressed}"


def by_size(made: Manifest) -> list[tuple[str, SplitInfo]]:
    """Returns the names and splits, the largest first."""
    return sorted(made.splits.items(), key=lambda item: -item[1].num_examples)


def _next_lines(made: Manifest, data_dir: str, address: str, has_card: bool) -> list[str]:
    card = [f"look at it:  {_inside(data_dir, naming.CARD)}"] if has_card else []
    missing = storage.credentials_of(address)
    return [
        *card,
        ("or:" if card else "look at it:").ljust(13) + f"python -m pipeline.inspect {storage.in_command(address)}",
        f"train on it: {_training(made, data_dir, address)}",
        *([f"for both, {missing}"] if missing else []),
    ]


def _training(made: Manifest, data_dir: str, address: str) -> str:
    """Returns the trainer's command; images of several sizes are stretched to one."""
    height, width, channels = made.features["image"].shape
    resize = "" if height and width else f" --resize={_SIDE}x{_SIDE}"
    model = _model((height or _SIDE, width or _SIDE, channels or 3))
    # Checkpoints lie on a disk, also of a run that reads a store.
    run = f"{made.dataset}-run" if "://" in data_dir else f"{data_dir.rstrip('/')}-run"
    where = f"{storage.in_command(address, '--data_dir')} {storage.in_command(run, '--model_dir')}"
    return f"python -m trainer.run {where} --model={model}{resize} --strategy=mirrored{_split_flags(made)}"


def _model(shape: tuple[int, int, int]) -> str:
    height, width, channels = shape
    if channels == 3 and min(height, width) >= _TUTORIAL_SIDE:
        return "cifar10_cnn"
    return "lenet" if min(height, width) >= _LENET_SIDE else "mlp"


def _split_flags(made: Manifest) -> str:
    """Returns the trainer's flags for splits of other names than its defaults."""
    names = [name for name, _ in by_size(made)]
    trained = _TRAIN if _TRAIN in names else names[0]
    others = [name for name in (*EVALUATED, *names) if name in made.splits and name != trained]
    evaluated = others[0] if others else "none"
    train_flag = f" --train_split={trained}" if trained != _TRAIN else ""
    return train_flag + (f" --eval_split={evaluated}" if evaluated != _TEST else "")


def _inside(data_dir: str, name: str) -> str:
    return f"{data_dir.rstrip('/')}/{name}"
