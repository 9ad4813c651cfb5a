"""PyTorch's training loops, eager and compiled; they also run where this project and TensorFlow are not installed."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks import torch_models
from benchmarks.feeds import torch_loader
from benchmarks.rounds import Contest, Take


@dataclasses.dataclass(frozen=True)
class Setting:
    """The training to measure.

    Attributes:
      model: name of a built-in model.
      rows: number of rows in a step.
      side: height and width of an image in pixels.
      classes: width of the logits.
      precision: precision: float32 or bfloat16.
      steps: number of updates in a take.
      rate, momentum: learning rate and momentum of the optimizer, SGD.
      nesterov: whether the momentum is Nesterov's.
      recipe: name of the real input's augmentation.
      arrays: folder with images.npy and labels.npy, the real input.
    """

    model: str
    rows: int
    side: int
    classes: int
    precision: str
    steps: int
    rate: float
    momentum: float
    nesterov: bool
    recipe: str
    arrays: str

    @property
    def type(self) -> torch.dtype:
        """The dtype in which layers compute."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


def train(setting: Setting, compiled: bool, constant: bool) -> Contest:
    """Returns a loop over one constant batch, or over `DataLoader`; images are channels_last."""
    model = torch_models.build(setting.model, setting.side, setting.classes).to(memory_format=torch.channels_last)
    called = torch.compile(model) if compiled else model
    groups = [
        {"params": weights, "weight_decay": decay} for decay, weights in torch_models.decayed(setting.model, model)
    ]
    optimizer = torch.optim.SGD(groups, setting.rate, momentum=setting.momentum, nesterov=setting.nesterov, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = images.float().div_(255) if images.dtype == torch.uint8 else images
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting.type == torch.bfloat16):
            loss: torch.Tensor = loss_of(called(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    source = (
        _constant(setting)
        if constant
        else torch_loader.batches(
            setting.arrays, setting.rows, os.cpu_count() or 1, torch_loader.transform(setting.recipe, setting.side)
        )
    )
    return Contest(_taking(step, source, setting), _facts(model))


def limit(setting: Setting) -> Contest:
    """Returns a loop over only the model's convolutions and matrix products, forward and backward."""
    model = torch_models.build(setting.model, setting.side, setting.classes)
    images, _ = next(_constant(setting))
    parts, multiplications = [], 0
    for number, (layer, given) in enumerate(torch_models.layers(model, images.float())):
        made = _product if isinstance(layer, torch.nn.Linear) else _convolution
        forward, backward = made(layer, given, setting.type, number > 0)
        # A convolution uses each weight once per output pixel.
        multiplications += layer.weight.numel() * math.prod(forward().shape[2:])
        parts.append((forward, backward))

    def step(*_: Any) -> torch.Tensor:
        for forward, _ in parts:
            last = forward()
        for _, backward in reversed(parts):
            backward()
        return last.sum()

    facts = {**_facts(model), "multiplications": multiplications}
    return Contest(_taking(step, _constant(setting), setting), facts)


_Halves = tuple[Callable[[], torch.Tensor], Callable[[], Any]]  # a layer's forward and backward pass


def _product(layer: torch.nn.Linear, given: torch.Tensor, kind: torch.dtype, _: bool) -> _Halves:
    weight, given = layer.weight.detach().to(kind), given.to(kind)
    back = torch.rand(len(given), len(weight)).to(kind)
    return lambda: torch.mm(given, weight.T), lambda: (torch.mm(back.T, given), torch.mm(back, weight))


def _convolution(layer: torch.nn.Conv2d, given: torch.Tensor, kind: torch.dtype, needs_input: bool) -> _Halves:
    weight, given = (
        one.detach().to(kind).contiguous(memory_format=torch.channels_last) for one in (layer.weight, given)
    )
    wanted = [needs_input and layer.weight.requires_grad, layer.weight.requires_grad, False]

    def forward() -> torch.Tensor:
        return torch.nn.functional.conv2d(given, weight, None, layer.stride, layer.padding)

    back = torch.rand_like(forward())

    def backward() -> Any:
        sizes = (layer.stride, layer.padding, layer.dilation)
        return torch.ops.aten.convolution_backward(back, given, weight, None, *sizes, False, (0, 0), 1, wanted)

    return forward, backward if any(wanted) else lambda: None


def _constant(setting: Setting) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    shape = (setting.rows, 3, setting.side, setting.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, setting.classes, (setting.rows,))
    while True:
        yield images, labels


def _taking(step: Callable[..., torch.Tensor], source: Iterator[Any], setting: Setting) -> Take:
    def take() -> tuple[int, float]:
        for _ in range(setting.steps):
            value = step(*next(source))
        value.item()
        return setting.steps * setting.rows, 0.0

    return take


def _facts(model: torch.nn.Module) -> dict[str, Any]:
    weights = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {"weights": weights, "version": f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"}


def contest(name: str, flags: Sequence[str]) -> Contest:
    """Returns a loop that has run once; `flags` is a `Setting` as JSON."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its processes would stay and count as memory
    torch.set_num_threads(os.cpu_count() or 1)
    made = CONTESTANTS[name](Setting(**json.loads(flags[0])))
    made.take()  # compiles
    return made


CONTESTANTS: dict[str, Callable[[Setting], Contest]] = {
    "torch eager": functools.partial(train, compiled=False, constant=True),
    "torch compile": functools.partial(train, compiled=True, constant=True),
    "torch eager input": functools.partial(train, compiled=False, constant=False),
    "torch compile input": functools.partial(train, compiled=True, constant=False),
    "torch limit": limit,
}
