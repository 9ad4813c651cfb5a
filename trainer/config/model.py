"""Flags for what to train and how to update its weights: model or task, optimizer, learning rate, gradients.

Each optimizer's defaults are at the end, with their sources; each model's are next to it (`trainer/models`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import segments
from pipeline.augmentation.recipes import sets_size
from pipeline.commands.flags import check, check_all, check_name
from pipeline.commands.text import parse_call
from pipeline.errors import UsageError
from pipeline.registry import Registry
from pipeline.request import class_weights
from trainer.config import phases
from trainer.config.meaning import flag

if TYPE_CHECKING:
    import keras

IMAGENET = "imagenet"  # value of --initialize_from: Keras' weights for a model of keras.applications
_WEIGHT_FILES = (".h5", ".keras")
COMPILING = ("auto", "on", "off")
_SWITCHED = {"true": "on", "false": "off"}
PRECISIONS = ("float32", "bfloat16", "float16")
# Three names for keras.optimizers.SGD, then Keras' own names.
OPTIMIZERS = (
    *("sgd", "momentum", "nesterov"),
    *("adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "muon", "nadam"),
    "rmsprop",
)
WITH_MOMENTUM = ("momentum", "nesterov")
SCHEDULES = ("exponential", "piecewise", "cosine", "linear", "constant")
_ENDING = ("cosine", "linear")  # schedules that depend on the last step
_OF_ALL_WEIGHTS = ("use_ema", "global_clipnorm", "gradient_accumulation_steps")  # arguments of Keras' optimizers
_EPOCHS = 1e9  # more than any training needs
_FLOAT32 = 3.4e38  # the largest value of a weight


def compiling(value: Any) -> str:
    """Returns the value of --jit_compile, which is a boolean in checkpoints and files from earlier versions.

    Raises:
      ValueError: the value is not a known text or a boolean.
    """
    text = _SWITCHED.get(str(value).lower(), value)
    if not isinstance(text, str):
        raise ValueError(f"must be {', '.join(COMPILING)}, True or False")
    return text


def dtype_policy(precision: str) -> str:
    """Returns Keras' dtype policy for a value of --precision."""
    return precision if precision == "float32" else f"mixed_{precision}"


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """The model to train, and how it computes."""

    model: str = flag(
        "mlp",
        "a built-in model, such as lenet, resnet20, fast_cifar; keras:NAME from keras.applications; or "
        "my_package.module:function, which returns a model",
        unset="the data set's images decide; with --task, mlp with --optimizer=momentum --learning_rate=0.01",
        first=True,
    )
    task: str | None = flag(
        None, "my_package.module:Class, a subclass of trainer.Task with your own model, loss and metrics"
    )
    initialize_from: str | None = flag(
        None,
        "initial weights: a model_dir, a checkpoint in it, a .h5, .weights.h5 or .keras file; or imagenet, for "
        "Keras' own for --model=keras:NAME",
        reads=True,
    )
    dropout: float = flag(
        0.0, "share of the features before the last layer that is dropped in training (resnet20)", least=0, below=1
    )
    label_smoothing: float = flag(
        0.0,
        "share of each label's probability that is spread over all classes",
        compiled="a loss",
        least=0,
        below=1,
        by_model=True,
    )
    class_weight: str | None = flag(
        None, "factors for the losses of each class in training, such as 0:1,3:2.5; 1 for other classes"
    )
    eval_flip: bool = flag(
        False, "evaluations and exports average the outputs for an image and its mirror image", by_model=True
    )
    precision: str = flag(
        "float32",
        "float32, or the mixed policies: bfloat16; float16, with dynamic loss scaling",
        known=PRECISIONS,
        parameter_server={"float16": "the loss scale would be changed by several workers at once; use bfloat16"},
    )
    jit_compile: str = flag(
        "auto",
        "XLA compiles a step into one program: on, off, or auto: on if the replicas are GPUs, but off "
        "with --deterministic or --virtual_replicas",
        known=COMPILING,
        bare="on",
        off="off",
        parse=compiling,
    )
    allow_model_change: bool = flag(
        False,
        "resume although the model's structure differs from the checkpoint's",
        shapes_training=False,  # changes of the model's structure are reported instead
    )

    @property
    def modules(self) -> list[str]:
        """Full names of the user's modules that --model and --task refer to."""
        own = [name for name in (self.model, self.task or "") if ":" in name and built_in(name) is None]
        return [name.partition(":")[0] for name in own]

    def __post_init__(self) -> None:
        check_all(lambda: check(self), self._check_model, self._check_task, lambda: self.class_weights)

    @property
    def class_weights(self) -> dict[int, float]:
        """Factors in --class_weight, by class number; empty if there are none."""
        if self.class_weight is None:
            return {}
        found: dict[int, float] = {}
        for part in self.class_weight.split(","):
            number, _, factor = part.partition(":")
            try:
                key, value = int(number), float(factor)
            except ValueError:
                raise UsageError(
                    f"--class_weight={self.class_weight}: {part.strip()!r} must be a class number and a factor, as in "
                    "0:1,3:2.5"
                ) from None
            if key in found:
                raise UsageError(f"--class_weight={self.class_weight}: gives class {key} twice")
            found[key] = value
        return class_weights(found, "--class_weight")

    def _check_task(self) -> None:
        if self.task is not None and ":" not in self.task:
            raise UsageError(
                f"--task={self.task}: must be a module and a class in it, as in my_package.my_module:MyTask"
            )

    def _check_model(self) -> None:
        known = built_in(self.model)
        family, colon, member = self.model.partition(":")
        if not colon:
            check_name("model", self.model, MODELS)
        elif known is not None and known.sides and known.sides():  # empty without Keras, which a later check reports
            check_name(f"model={family}", member, known.sides())
        if self.dropout and not (known and known.takes_dropout):
            takers = ", ".join(name for name, known in MODELS.items() if known.takes_dropout)
            raise UsageError(f"--dropout={self.dropout}: --model={self.model} has no dropout; {takers} has")
        if self.initialize_from == IMAGENET and self.task is None and not (known and known.sides):
            raise UsageError(
                f"--initialize_from={IMAGENET}: these are Keras' weights for --model=keras:NAME; --model={self.model} "
                "needs a file or a checkpoint of its own"
            )


@dataclasses.dataclass(frozen=True)
class OptimizerFlags:
    """How weights are updated."""

    compiled: ClassVar[str] = "an optimizer"

    optimizer: str = flag(
        "momentum",
        "sgd, momentum, nesterov; adam, adamw, lion, rmsprop, ... as in Keras, with arguments: 'adam(beta_2=0.95)'",
        by_model=True,
        first=True,
    )
    learning_rate: float = flag(0.01, "highest learning rate", above=0, most=_FLOAT32, by_model=True, first=True)
    momentum: float = flag(0.9, "momentum of --optimizer=momentum and nesterov", least=0, below=1)
    schedule: str = flag(
        "exponential",
        "schedule of the rate: exponential (a staircase, or smooth), piecewise, cosine, linear or constant",
        known=SCHEDULES,
        by_model=True,
    )
    decay_factor: float = flag(
        0.99,
        "exponential, piecewise: the rate is multiplied by this at each stair",
        above=0,
        most=_FLOAT32,
        by_model=True,
    )
    decay_epochs: float = flag(1.0, "exponential: epochs per stair", above=0, below=_EPOCHS, by_model=True)
    decay_staircase: bool = flag(
        True, "exponential: the rate falls in stairs; false: smoothly, a little with each step"
    )
    decay_at: str = flag("", "piecewise: the epochs at which a stair begins, such as 91,136.5", by_model=True)
    end_factor: float = flag(
        0.0, "cosine, linear: the rate at the last step, as a share of --learning_rate", least=0, most=_FLOAT32
    )
    warmup_epochs: float = flag(
        0.0, "the rate grows from 0 over these epochs, before any schedule", least=0, below=_EPOCHS, by_model=True
    )
    weight_decay: float = flag(
        0.0,
        "decoupled weight decay, times the rate; not for biases and norms (variables with fewer than two axes)",
        least=0,
        most=_FLOAT32,
        by_model=True,
    )
    clip_norm: float | None = flag(
        None,
        "largest global norm of the gradients, after they are summed",
        compiled="",
        above=0,
        most=_FLOAT32,
    )
    ema: float | None = flag(
        None,
        "decay of the weights' average, min(ema, (1 + step) / (10 + step)), such as 0.999; evaluations use the "
        "average; 0: none",
        compiled="",
        least=0,
        below=1,
        by_model=True,
    )
    phases: str = flag(
        "",
        "what is frozen, at which rate the rest learns, and on which images, from a step or an epoch on, such as '0: "
        "freeze=base, resize=128; 10 epochs: freeze=none, resize=224, learning_rate=1e-4'; keys: freeze, "
        "learning_rate, schedule, resize, augment",
        shapes_training=False,  # a checkpoint compares the steps that they begin at
        parameter_server="workers compute the gradients of all weights; use --strategy=mirrored or multiworker",
    )

    def __post_init__(self) -> None:
        checks = (self._check_optimizer, self._check_stairs, self._check_smooth, self._check_phases)
        check_all(lambda: check(self), *checks)

    @property
    def ends(self) -> bool:
        """Whether the rate depends on the step at which training, or one of its phases, ends."""
        return not set(_ENDING).isdisjoint(self._schedules)

    @property
    def _schedules(self) -> list[str]:
        given = [phases.options_of(one).get("schedule") for one in segments.parse(self.phases)]
        return [self.schedule, *filter(None, given)]

    def _check_phases(self) -> None:
        for schedule in self._schedules:
            check_name("phases: schedule", schedule, SCHEDULES)
            if schedule == "piecewise" != self.schedule:
                raise UsageError(f"{phases.FLAG}: schedule=piecewise: needs --schedule=piecewise, and --decay_at")
        name, arguments = parse_call(self.optimizer, "--optimizer", "an optimizer")
        counts_once = [name] if name == "nadam" else [one for one in _OF_ALL_WEIGHTS if arguments.get(one)]
        if self.phases and counts_once:
            raise UsageError(
                f"--optimizer={self.optimizer} with {phases.FLAG}: {counts_once[0]} has one state for all weights, "
                "frozen or not; use another optimizer, or leave it out (--clip_norm and --ema support phases)"
            )

    def _check_optimizer(self) -> None:
        check_name("optimizer", self.optimizer.partition("(")[0].strip(), OPTIMIZERS)
        parse_call(self.optimizer, "--optimizer", "an optimizer")

    def _check_stairs(self) -> None:
        if (self.schedule == "piecewise") != bool(self.stairs):
            raise UsageError(
                f"--schedule={self.schedule} with --decay_at={self.decay_at!r}: only the piecewise schedule "
                "takes the epochs at which its stairs begin, such as --decay_at=91,136"
            )

    def _check_smooth(self) -> None:
        if not self.decay_staircase and self.schedule != "exponential":
            raise UsageError(
                f"--decay_staircase=false with --schedule={self.schedule}: only the exponential schedule has stairs "
                "to leave out; use --schedule=exponential, or leave it out"
            )

    def __str__(self) -> str:
        """The optimizer, its highest rate and its schedule: `momentum 0.05 exponential`."""
        parts = [f"{self.optimizer} {self.learning_rate:g} {self.schedule}"]
        if self.warmup_epochs:
            parts.append(f"warm-up {self.warmup_epochs:g} epochs")
        if self.weight_decay:
            parts.append(f"weight decay {self.weight_decay:g}")
        if self.ema:
            parts.append(f"average of the weights {self.ema:g}")
        return ", ".join(parts)

    @property
    def stairs(self) -> list[float]:
        """The epochs in --decay_at, ascending."""
        try:
            found = [float(part) for part in self.decay_at.split(",")] if self.decay_at else []
        except ValueError:
            raise UsageError(
                f"--decay_at={self.decay_at}: must be numbers separated by commas, such as 91,136"
            ) from None
        if found != sorted(set(found)) or not all(0 < epoch < _EPOCHS for epoch in found):
            raise UsageError(f"--decay_at={self.decay_at}: must be ascending numbers above 0")
        return found


def is_weight_file(source: str | None) -> bool:
    """Returns whether a value of --initialize_from names a Keras weight file rather than a run or a checkpoint."""
    return source is not None and (source == IMAGENET or source.endswith(_WEIGHT_FILES))


@dataclasses.dataclass(frozen=True)
class FirstWeights:
    """The weight file that a run began with, named in its checkpoints.

    Attributes:
      name: name without the folder.
      sha256: digest of the content, in hexadecimal.
    """

    name: str
    sha256: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FirstWeights:
        """Returns the identity of a file.

        Raises:
          OSError: the file cannot be read.
        """
        with open(path, "rb") as file:
            return cls(os.path.basename(path), hashlib.file_digest(file, "sha256").hexdigest())

    def __str__(self) -> str:
        """Text such as `notop.h5 (SHA-256 0a1b2c3d4e5f...)`."""
        return f"{self.name} (SHA-256 {self.sha256[:12]}...)"


def name_of_code(flag: str, given: Any) -> str:
    """Returns the name by which `pipeline.files.code.load_code` finds a function or class.

    Raises:
      UsageError: it is local to a function and therefore has no such name.
    """
    module, name = given.__module__, given.__qualname__
    if module == "__main__":
        file = inspect.getsourcefile(given)
        module = os.path.splitext(os.path.basename(file))[0] if file else module
    if not name.isidentifier():
        raise UsageError(f"{flag} {name}: must be defined at the top of a module, so that a resumed run finds it")
    return f"{module}:{name}"


@dataclasses.dataclass(frozen=True)
class Model:
    """A built-in model, or a family of them from which the user picks one: `keras:NAME`.

    Attributes:
      build: function that builds it from the shape and dtype of the images, the number of classes, and `dropout` if it
        supports that.
      epochs: length of training without --train_steps and --epochs.
      takes_dropout: whether it supports --dropout.
      defaults: flag values that differ from the flags' own defaults, for the optimizer named there, or momentum.
      sides: function that returns {name: image height and width} for a family; that size is the default of --resize,
        and `build` also gets the name, as its first argument, and `is_pretrained`. None for a single model.
    """

    build: Callable[..., keras.Model]
    epochs: int
    takes_dropout: bool = False
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    sides: Callable[[], Mapping[str, int]] | None = None

    def member(self, name: str) -> Model:
        """Returns one model of a family."""
        assert self.sides is not None
        side = self.sides().get(name)
        defaults = {**self.defaults, "resize": f"{side}x{side}"} if side else self.defaults
        return dataclasses.replace(self, build=functools.partial(self.build, name), defaults=defaults)


# A user's model gets the flags' defaults: momentum 0.9 at a rate of 0.01, which "typically works for standard
# multi-layer neural networks" (Bengio 2012, "Practical recommendations for gradient-based training", 3.1).
MODELS: Registry[Model] = Registry("trainer.models", Model, besides=("layers", "weight_files"))
_OWN_EPOCHS = 20  # epochs for a user's model or task


def epochs_of(name: str) -> int:
    """Returns a model's default number of epochs."""
    known = built_in(name)
    return known.epochs if known else _OWN_EPOCHS


def built_in(name: str | None) -> Model | None:
    """Returns the built-in model named by --model, such as `lenet` or `keras:VGG16`; None for other names."""
    family, colon, member = (name or "").partition(":")
    if not colon:
        return MODELS.get(family)
    several = MODELS.get(f"{family}:NAME")
    return several.member(member) if several else None


# Defaults of an optimizer that replaces the model's own; the schedule stays the model's. In 150 steps on the digits
# lenet reaches 0.92 to 0.97 with all but two of them (mlp: 0.94 to 0.97): ftrl starts with all weights at 0, so it only
# works for one-layer models; adafactor, at least in Keras 3.15, gives NaN if a filter has no gradient.
_MOMENTUM = ("momentum", "nesterov")
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adadelta": {"learning_rate": 1.0},  # Zeiler 2012; the method has no rate
    "adafactor": {"learning_rate": 0.01},  # Shazeer and Stern 2018: the largest relative step
    "adagrad": {"learning_rate": 0.01},  # PyTorch's default; Duchi et al. 2011 give none
    "adam": {"learning_rate": 0.001},  # Kingma and Ba 2015, algorithm 1
    "adamax": {"learning_rate": 0.002},  # Kingma and Ba 2015, algorithm 2
    "adamw": {"learning_rate": 0.001, "weight_decay": 0.004},  # Keras' defaults; Loshchilov and Hutter 2019
    "ftrl": {"learning_rate": 0.1},  # McMahan et al. 2013 tune it on their data
    "lamb": {"learning_rate": 0.01},  # on the digits, lenet reaches 0.82 with Keras' 0.001, and 0.97 with this
    "lion": {"learning_rate": 0.0003},  # Chen et al. 2023: 3 to 10 times smaller than adamw's
    "muon": {"learning_rate": 0.001, "weight_decay": 0.004},  # Keras' defaults, with updates as large as adamw's
    "nadam": {"learning_rate": 0.001},  # Keras' default; Dozat 2016
    "rmsprop": {"learning_rate": 0.001},  # Hinton 2012, lecture 6e
    "sgd": {"learning_rate": 0.1},  # as in the CIFAR-10 tutorial (cifar10.py)
}


def defaults_of(model: str | None, optimizer: str | None = None, augment: str | None = None) -> dict[str, Any]:
    """Returns {flag: default} for flags whose default depends on the model and the optimizer.

    The model's own image size is left out if a recipe determines the size.

    Args:
      model: name in MODELS; anything else, or None, is a user's model.
      optimizer: value of --optimizer, with or without arguments; None for the model's own.
      augment: value of --augment; None if not given.
    """
    known = built_in(model)
    of_model = dict(known.defaults) if known else {}
    if "resize" in of_model and sets_size(augment or of_model.get("augment", "none")):
        del of_model["resize"]
    own = of_model.get("optimizer", "momentum")
    name = own if optimizer is None else optimizer.partition("(")[0].strip()
    if name == own:
        return of_model
    if name in _MOMENTUM and own in _MOMENTUM:
        return {**of_model, "optimizer": name}
    if name in _MOMENTUM:
        # With momentum 0.9, gradients that agree move weights 1 / (1 - 0.9) times as far as with SGD (Sutskever et al.
        # 2013). Ten times Adam's rate is the ratio of the flags' own defaults: 0.01 for momentum, 0.001 for Adam.
        factor = 0.1 if own == "sgd" else 10
        return {**of_model, "optimizer": name, "learning_rate": round(factor * of_model["learning_rate"], 6)}
    return {**of_model, "optimizer": name, **OPTIMIZER_DEFAULTS.get(name, {})}
