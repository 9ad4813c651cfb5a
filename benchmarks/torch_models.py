"""The built-in models for CIFAR-10 and photographs in PyTorch: the same layers, with the same number of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILON = 1e-3  # Keras' default, as is the momentum
_SMALL = 64  # pixels; smaller images get the stem for CIFAR
_LOGIT_SCALE = 1 / 9


def build(name: str, side: int, classes: int) -> nn.Module:
    """Returns the twin of a built-in model, from float images (rows, 3, side, side) in [0, 1] to logits."""
    return MODELS[name](side, classes)


def decayed(name: str, model: nn.Module) -> list[tuple[float, list[nn.Parameter]]]:
    """Returns the model's trainable weights, by the factor of their L2 term's gradient.

    Keras adds the terms to the loss; here the optimizer adds the same gradient. fast_cifar's decay is not part of the
    gradient, since it is decoupled.
    """
    found: dict[float, list[nn.Parameter]] = {}
    for path, weight in model.named_parameters():
        if weight.requires_grad:
            is_decayed = weight.dim() > 1 and (name != "cifar10_cnn" or "local" in path)
            found.setdefault(_DECAY[name] if is_decayed else 0.0, []).append(weight)
    return list(found.items())


def layers(model: nn.Module, images: Tensor) -> list[tuple[nn.Conv2d | nn.Linear, Tensor]]:
    """Returns the convolutions and matrix products of a forward pass in order, each with its input."""
    found: list[tuple[nn.Conv2d | nn.Linear, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        found.append((layer, inputs[0].detach()))

    hooks = [
        layer.register_forward_pre_hook(note) for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))
    ]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found


class _Normalised(nn.Sequential):
    """A convolution without bias, followed by its normalisation; padded equally on all sides."""

    def __init__(self, before: int, width: int, size: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(before, width, size, stride, size // 2, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(width, _EPSILON, 0.01))


class _Residual(nn.Module):
    """A block: convolutions with ReLU between them, added to the shortcut."""

    def __init__(self, convolutions: Sequence[nn.Module], shortcut: nn.Module) -> None:
        super().__init__()
        self.convolutions, self.shortcut = nn.ModuleList(convolutions), shortcut

    def forward(self, values: Tensor) -> Tensor:
        found = values
        for number, convolution in enumerate(self.convolutions):
            found = convolution(functional.relu(found, inplace=True) if number else found)
        return functional.relu(found + self.shortcut(values), inplace=True)


class _EverySecond(nn.Module):
    """The shortcut without weights: every second pixel, and zeros for the new channels."""

    def forward(self, values: Tensor) -> Tensor:
        return functional.pad(values[:, :, ::2, ::2], (0, 0, 0, 0, 0, values.shape[1]))


def _block_20(before: int, width: int, stride: int) -> nn.Module:
    convolutions = [_Normalised(before, width, 3, stride), _Normalised(width, width, 3)]
    return _Residual(convolutions, _EverySecond() if stride > 1 else nn.Identity())


def _block_18(before: int, width: int, stride: int) -> nn.Module:
    convolutions = [_Normalised(before, width, 3, stride), _Normalised(width, width, 3)]
    return _Residual(convolutions, _Normalised(before, width, 1, stride) if stride > 1 else nn.Identity())


def _block_50(before: int, width: int, stride: int) -> nn.Module:
    wide = 4 * width
    convolutions = [_Normalised(before, width, 1), _Normalised(width, width, 3, stride), _Normalised(width, wide, 1)]
    return _Residual(convolutions, _Normalised(before, wide, 1, stride) if before != wide else nn.Identity())


def _stages(
    before: int,
    widths: Sequence[int],
    blocks: Sequence[int],
    block: Callable[[int, int, int], nn.Module],
    widened: int,
    classes: int,
) -> list[nn.Module]:
    """Returns the blocks of a residual network, and its head."""
    found = []
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for number in range(count):
            found.append(block(before, width, 2 if stage and not number else 1))
            before = widened * width
    return [*found, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]


def _resnet20(side: int, classes: int) -> nn.Module:
    return nn.Sequential(
        _Normalised(3, 16, 3), nn.ReLU(True), *_stages(16, (16, 32, 64), (3,) * 3, _block_20, 1, classes)
    )


def _photographs(
    side: int, classes: int, blocks: Sequence[int], block: Callable[[int, int, int], nn.Module], widened: int
) -> nn.Module:
    if side < _SMALL:
        stem = [_Normalised(3, 64, 3), nn.ReLU(True)]
    else:
        stem = [_Normalised(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True)]
    return nn.Sequential(*stem, *_stages(64, (64, 128, 256, 512), blocks, block, widened, classes))


def _cifar10_cnn(side: int, classes: int) -> nn.Module:
    pooled = -(-side // 2)
    pooled = -(-pooled // 2)

    class LocalResponseNorm(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            # PyTorch divides alpha by the number of channels in the sum.
            return functional.local_response_norm(values.float(), 9, 0.001, 0.75, 1.0).to(values.dtype)

    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        LocalResponseNorm(),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(True),
        LocalResponseNorm(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Flatten(),
    )
    for name, one in {
        "local3": nn.Linear(64 * pooled**2, 384),
        "relu3": nn.ReLU(True),
        "local4": nn.Linear(384, 192),
        "relu4": nn.ReLU(True),
        "logits": nn.Linear(192, classes),
    }.items():
        model.add_module(name, one)
    return model


class _FastCifar(nn.Module):
    """The network after airbench94, whose patches are whitened by fixed filters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 12, 2, bias=False)
        self.whiten.weight.requires_grad = False
        self.components = nn.BatchNorm2d(12, _EPSILON, 0.1, affine=False)
        groups: list[nn.Module] = []
        before = 24
        for width in (64, 256, 256):
            for first in (True, False):
                groups.append(nn.Conv2d(before, width, 3, padding=1, bias=False))
                groups += [nn.MaxPool2d(2)] if first else []
                norm = nn.BatchNorm2d(width, _EPSILON, 0.1)
                norm.weight.requires_grad = False  # a normalisation without a scale
                groups += [norm, nn.ReLU(True)]
                before = width
        self.groups, self.logits = nn.Sequential(*groups), nn.Linear(before, classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        components = self.components(self.whiten(images))
        found = self.groups(functional.relu(torch.cat([components, -components], 1)))
        logits: Tensor = self.logits(found.amax((2, 3))) * _LOGIT_SCALE
        return logits


_DECAY = {"resnet18": 1e-4, "resnet20": 1e-4, "resnet50": 1e-4, "cifar10_cnn": 0.004, "fast_cifar": 0.01}
MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "resnet20": _resnet20,
    "resnet18": lambda side, classes: _photographs(side, classes, (2, 2, 2, 2), _block_18, 1),
    "resnet50": lambda side, classes: _photographs(side, classes, (3, 4, 6, 3), _block_50, 4),
    "cifar10_cnn": _cifar10_cnn,
    "fast_cifar": lambda side, classes: _FastCifar(classes),
}
