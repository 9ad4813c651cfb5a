"""What the commands share: one-line errors, exit codes, flags made from dataclasses."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, TypeVar

import simple_parsing
from simple_parsing.helpers.custom_actions import BooleanOptionalAction
from simple_parsing.utils import str2bool
from simple_parsing.wrappers.field_wrapper import DashVariant

from pipeline import errors

_Config = TypeVar("_Config")

_EXTRA_OF = {
    "tensorflow": "train",
    **dict.fromkeys(("apache_beam", "pyarrow", "tensorflow_datasets", "array_record"), "convert"),
    **dict.fromkeys(("matplotlib", "sklearn"), "demo"),
    **dict.fromkeys(("tf2onnx", "onnxruntime"), "export"),
    "moto": "dev",
}


# What other trainers and scripts call a flag: the names here, of which a command takes the first that it has.
_USUAL = {
    **dict.fromkeys(("lr", "learningrate", "rate"), ("learning_rate",)),
    **dict.fromkeys(("batch_size", "batch", "bs", "train_batch_size"), ("global_batch_size",)),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "max_train_steps", "iterations"), ("train_steps",)),
    **dict.fromkeys(("num_epochs", "max_epochs", "train_epochs", "n_epochs"), ("epochs",)),
    **dict.fromkeys(
        ("train_dir", "output_dir", "logdir", "log_dir", "checkpoint_dir", "save_dir", "job_dir", "ckpt_dir"),
        ("model_dir", "output"),
    ),
    **dict.fromkeys(("data", "data_path", "dataset_dir", "input", "input_dir"), ("data_dir",)),
    **dict.fromkeys(("gpus", "num_gpus", "ngpus", "devices", "num_devices"), ("num_replicas", "gpus_per_worker")),
    **dict.fromkeys(("num_processes", "nproc", "nproc_per_node", "world_size"), ("num_workers",)),
    **dict.fromkeys(("hosts", "workers", "num_workers"), ("worker_hosts", "num_workers")),
    **dict.fromkeys(("random_seed", "rng_seed"), ("seed",)),
    **dict.fromkeys(("opt", "optim"), ("optimizer",)),
    **dict.fromkeys(("wd", "decay", "l2"), ("weight_decay",)),
    **dict.fromkeys(("arch", "network", "net", "model_name"), ("model",)),
    **dict.fromkeys(("ckpt", "step", "checkpoint_path"), ("checkpoint",)),
    **dict.fromkeys(("augment", "augmentation", "transform"), ("distort",)),
    **dict.fromkeys(("amp", "fp16", "bf16", "dtype", "mixed_precision"), ("precision",)),
    **dict.fromkeys(("save_every", "save_steps", "save_interval"), ("checkpoint_every",)),
    **dict.fromkeys(("eval_steps", "eval_interval"), ("eval_every",)),
    **dict.fromkeys(("log_steps", "logging_steps", "log_interval", "print_freq"), ("log_every",)),
}
_REQUIRED = "the following arguments are required: "  # argparse's words
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, or what the user may write on it
_NEARLY_URL = re.compile(r"(?P<scheme>s3|gs|hdfs):?/{1,2}(?P<rest>[^/].*)")


class _Parser(simple_parsing.ArgumentParser):
    """argparse for dataclasses, with one-line errors."""

    given: Sequence[str] = ()  # what it parses

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register("type", int, _whole_number)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:  # --nodeep=true: an error, which simple_parsing would report with exit code 0
            raise errors.UsageError(" ".join(message.split()))
        super().exit(status)
        raise AssertionError

    @property
    def options(self) -> list[str]:
        """The names of its flags."""
        return [option for option in self._option_string_actions if option.startswith("--")]

    def error(self, message: str) -> NoReturn:
        if message.startswith(_REQUIRED):
            missing = message.removeprefix(_REQUIRED).split(", ")
            names = [token.split("=")[0] for token in self.given if token.startswith("--")]
            others = [name for name in dict.fromkeys(names) if name not in self._option_string_actions]
            if any(_nearest(name, self.options) in missing for name in others):
                raise _unknown(others, self.options)
            message = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; see --help"
        raise errors.UsageError(" ".join(message.removeprefix("argument ").split()))


def _nearest(name: str, flags: Sequence[str]) -> str | None:
    """Returns the flag that an unknown one most likely stands for; None: there is no guess."""
    usual = (f"--{flag}" for flag in _USUAL.get(name.lstrip("-").replace("-", "_").lower(), ()))
    return next((flag for flag in usual if flag in flags), None) or errors.nearest(name, flags)


def _unknown(names: Sequence[str], flags: Sequence[str]) -> errors.UsageError:
    """Returns the error for all unknown flags, with what was most likely meant."""
    near = {name: _nearest(name, flags) for name in names}
    hints = [repr(flag) if len(near) == 1 else f"{flag!r} for {name!r}" for name, flag in near.items() if flag]
    asked = f"did you mean {', '.join(hints)}? " if hints else ""
    what = f"flag{'s' * (len(near) > 1)}: unknown {', '.join(map(repr, near))}"
    return errors.UsageError(f"{what}; {asked}{errors.names_that_work(flags)}")


def _whole_number(text: str) -> int:
    """Returns the number that a text such as 1000 or 1e3 gives."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        number = float(text)
        if number.is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, such as 1000 or 1e3")


def parse(
    command: str,
    description: str,
    kind: type[_Config],
    argv: Sequence[str] | None,
    default: dict[str, Any] | None = None,
) -> _Config:
    """Returns the config, a dataclass of type `kind`, that the arguments give.

    Args:
      command: its name, for --help.
      description: for --help.
      kind: the dataclass, of which each field is a flag.
      argv: the arguments; None for the process's own.
      default: values by field name, where they differ from the fields' own defaults.

    Raises:
      UsageError: an unknown flag or a bad value.
    """
    config, rest, flags = parse_known(command, description, kind, argv, default)
    if not rest:
        return config
    names = [token.split("=")[0] for token in rest if token.startswith("-")]
    if names:
        raise _unknown(list(dict.fromkeys(names)), flags)
    raise errors.UsageError(f"unexpected argument {rest[0]!r}; see --help")


def parse_known(
    command: str,
    description: str,
    kind: type[_Config],
    argv: Sequence[str] | None,
    default: dict[str, Any] | None = None,
) -> tuple[_Config, list[str], list[str]]:
    """Returns the config as `parse`, the arguments that are not its flags, and the names of its flags.

    Raises:
      UsageError: a bad value.
    """
    parser = _Parser(
        prog=command,
        description=description,
        allow_abbrev=False,
        add_option_string_dash_variants=DashVariant.UNDERSCORE,
        formatter_class=simple_parsing.SimpleHelpFormatter,
    )
    parser.add_arguments(kind, "config", default=default)
    parser.given = [_with_home(token) for token in (sys.argv[1:] if argv is None else argv)]
    parser._preprocessing()  # adds the flags, which parsing would do as late
    if places := len(parser._get_positional_actions()):
        parser.given = _with_switches_apart(parser, parser.given)
        _check_places(parser, places)
    known, rest = parser.parse_known_args(parser.given)
    _check_values_given(parser)
    return known.config, rest, parser.options


def _with_switches_apart(parser: _Parser, tokens: Sequence[str]) -> list[str]:
    """Returns the arguments with `=true` at each bare switch before a positional one, which argparse would take for it.

    A switch is a boolean flag: `--deep DIR` and `DIR --deep` are to mean the same.
    """
    apart = []
    for token, following in zip(tokens, [*tokens[1:], "--"], strict=False):
        action = parser._option_string_actions.get(token)
        if isinstance(action, BooleanOptionalAction) and not (following.startswith("-") or _is_bool(following)):
            apart.append(f"{action.option_strings[0]}={token not in action.negative_option_strings}")
        else:
            apart.append(token)
    return apart


def _is_bool(text: str) -> bool:
    try:
        str2bool(text)
    except argparse.ArgumentTypeError:
        return False
    return True


def _check_places(parser: _Parser, places: int) -> None:
    """Refuses `--theirs VALUE DIR`: its value, if it is one, would be taken for our positional argument."""
    ours = parser._option_string_actions
    free = [
        (before, token)
        for before, token in zip(["", *parser.given], parser.given, strict=False)
        if not token.startswith("-") and not isinstance(ours.get(before), argparse._StoreAction)
    ]
    for before, token in free[:places] if len(free) > places else []:
        if before.startswith("--") and "=" not in before and before not in ours:
            raise errors.UsageError(f"{before} {token}: is {token!r} its value? write {before}={token}")


def _check_values_given(parser: _Parser) -> None:
    """Refuses a flag without its value, which argparse treats as not given where the value may be None."""
    for token, following in zip(parser.given, [*parser.given[1:], "--"], strict=False):
        action = parser._option_string_actions.get(token)
        if isinstance(action, argparse._StoreAction) and action.nargs == "?" and following.startswith("--"):
            raise errors.UsageError(f"{token}: expected a value, as in {token}=VALUE")


def _with_home(token: str) -> str:
    """Returns an argument whose value begins with `~` with the path of that home folder, which shells leave to us.

    Raises:
      UsageError: there is no such home, or the value is a URL that lacks a character and would name a local folder.
    """
    flag, equals, value = token.rpartition("=") if token.startswith("-") else ("", "", token)
    nearly = _NEARLY_URL.fullmatch(value)
    if nearly and "://" not in value:
        raise errors.UsageError(f"{token}: not a URL; write {flag}{equals}{nearly['scheme']}://{nearly['rest']}")
    if not value.startswith("~"):
        return token
    expanded = os.path.expanduser(value)
    if expanded.startswith("~"):
        raise errors.UsageError(f"{token}: there is no home folder {value.split('/')[0]}")
    return f"{flag}{equals}{expanded}"


def require(*modules: str) -> None:
    """Raises UsageError with the `pip install` that brings a missing optional package."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise errors.UsageError(
                f"needs {module}, which is not installed: pip install 'stepfeed[{_EXTRA_OF[module]}]'"
            )


def run(command: str, main: Callable[[Sequence[str] | None], Any], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's main and exits: 0, or the error's code after one line on stderr."""
    _open_closed_streams()
    try:
        main(argv)
        sys.stdout.flush()
    except errors.PipelineError as error:
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))  # a file's name may hold a newline
        _complain(f"{command}: {line}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _complain(f"{command}: interrupted")
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe (head) is gone
        discard(sys.stdout)
        discard(sys.stderr)
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in _FULL or error.filename:
            raise
        discard(sys.stdout)  # what it holds would be tried again at the exit
        _complain(f"{command}: the output cannot be written: {error.strerror}")
        sys.exit(errors.EXIT_DATA)
    sys.exit(0)


def discard(stream: TextIO) -> None:
    """Sends what a stream still holds, and all that follows, to the null device: its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _complain(line: str) -> None:
    """Prints a line to stderr; if nobody can read it, the exit code alone says what happened."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def _open_closed_streams() -> None:
    """Opens standard streams that the caller has closed (`>&-`) on the null device.

    Python sets a closed stream to None. Its descriptor is free, so that the next file to be opened, such as a
    checkpoint, would take its number and receive what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))
