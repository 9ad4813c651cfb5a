"""Command lines: flags parsed into dataclasses, one-line errors, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import functools
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO, TypeVar

from pipeline import errors
from pipeline.commands import aliases
from pipeline.commands.flags import Flag, Mistakes, flags_of, make
from pipeline.commands.text import printable

_Config = TypeVar("_Config")

_EXTRAS = {
    "train": "tensorflow yaml",
    "convert": "apache_beam pyarrow pycocotools tensorflow_datasets array_record",
    "demo": "matplotlib sklearn",
    "export": "tf2onnx onnxruntime",
    "page": "starlette uvicorn jinja2",
    "near": "imagehash",
    "dev": "moto",
}
_EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules.split()}

# {our flags: names in other trainers and scripts, among them TensorFlow's classic programs}. A command suggests the
# first of our flags that it supports.
_NAMES_ELSEWHERE = {
    "learning_rate": "lr learningrate rate base_lr initial_learning_rate",
    "decay_factor": "learning_rate_decay_factor lr_decay gamma",
    "decay_epochs": "num_epochs_per_decay",
    "decay_staircase": "staircase",
    "ema": "moving_average_decay ema_decay",
    "global_batch_size": "batch_size batch bs train_batch_size",
    "train_steps": "steps max_steps num_steps max_train_steps iterations",
    "epochs": "num_epochs max_epochs train_epochs training_epochs n_epochs nb_epoch",
    "model_dir output": "train_dir output_dir logdir log_dir checkpoint_dir save_dir job_dir ckpt_dir",
    "data_dir": "data data_path dataset_dir input input_dir",
    "num_replicas gpus_per_worker": "gpus num_gpus ngpus devices num_devices num_towers num_clones",
    "strategy": "distribution_strategy variable_strategy",
    "sync": "sync_replicas issync",
    "num_workers": "num_processes nproc nproc_per_node world_size",
    "worker_hosts num_workers": "hosts workers num_workers total_num_replicas",
    "seed": "random_seed rng_seed",
    "optimizer": "opt optim",
    "weight_decay": "wd decay l2",
    "model": "arch network net model_name",
    "checkpoint": "ckpt step checkpoint_path",
    "augment": "augmentation augmentations transform",
    "precision": "amp fp16 use_fp16 bf16 dtype mixed_precision",
    "checkpoint_every": "save_every save_steps save_interval",
    "checkpoint_secs": "save_model_secs save_checkpoint_secs save_checkpoints_secs",
    "summary_secs": "save_summaries_secs save_summary_secs",
    "summary_every": "save_summaries_steps save_summary_steps",
    "eval_every": "eval_steps eval_interval",
    "eval_split split": "eval_data",
    "log_every": "log_steps logging_steps log_interval log_frequency display_step print_freq",
}
_USUAL = {name: ours.split() for ours, names in _NAMES_ELSEWHERE.items() for name in names.split()}
# How our flag differs in meaning from its names elsewhere.
_DIFFERENCES = {
    "global_batch_size": "it counts the rows of all replicas together, not of each",
    "model_dir": "a run in it is resumed, not wiped; --fresh starts over",
}
_REQUIRED = "the following arguments are required: "  # argparse's wording
_NO_VALUE = "expected one argument"  # argparse's wording
_ALL = "all"  # value of --help
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, the user's quota, the size of a file
_NEARLY_URL = re.compile(r"(?P<scheme>s3|gs|hdfs):?/{1,2}(?P<rest>[^/].*)")
_BOOLS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}


class _Switch(argparse.Action):
    """Action for `--deep` and `--nodeep`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, option == self.option_strings[0])


class _Negatable(argparse.Action):
    """Action for `--jit_compile`, `--jit_compile=auto` and `--nojit_compile`, which means the value `off`."""

    def __init__(self, off: str, **options: Any) -> None:
        super().__init__(**options)
        self._off = off

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        is_off = option == self.option_strings[-1]
        if is_off and values != self.const:
            raise argparse.ArgumentError(self, f"{option} takes no value")
        setattr(namespace, self.dest, self._off if is_off else values)


class _NoValue(NamedTuple):
    """A value that cannot be parsed, and the reason; argparse itself would only report the first one."""

    problem: str


class _Listing(argparse.Action):
    """Action for `--flags`, which prints the names of all flags, for `stepfeed completion`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        print(*(name for name in parser.actions if name.startswith("--")), "--help", sep="\n")
        parser.exit()


class _Help(argparse.Action):
    """Action for `--help`, which shows only the flags that people need first, and for `--help=all`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        print(parser.format_first() if values != _ALL and parser.first else parser.format_help(), end="")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """argparse for flags, with one-line errors."""

    def __init__(self, command: str, description: str, kind: type, default: Mapping[str, Any]) -> None:
        groups = dict.fromkeys(flag.group for flag in flags_of(kind).values())
        super().__init__(
            prog=errors.name_of(command),
            description=f"{description} {about(kind)}",
            allow_abbrev=False,
            add_help=False,
        )
        self.command = command
        self.given: list[str] = []
        self.wrong: set[str] = set()  # flags without a usable value
        self.is_mended = False  # whether another try avoids the last error
        self.actions: dict[str, argparse.Action] = {}  # actions by name on the command line
        self.num_places = 0
        self.free: list[str] = []  # the flag that takes all unnamed arguments, if any
        self.first: list[argparse.Action] = []
        self.add_argument("-h", "--help", action=_Help, nargs="?", const="", help=argparse.SUPPRESS)
        self.add_argument("--flags", action=_Listing, nargs=0, help=argparse.SUPPRESS)
        for group in groups:
            section = self.add_argument_group("flags" if group is kind else about(group).rstrip("."))
            for flag in (flag for flag in flags_of(kind).values() if flag.group is group):
                value = default.get(flag.name, flag.field.default)
                action = section.add_argument(*names_of(flag), **options_of(flag, value))
                self.actions |= dict.fromkeys(action.option_strings, action)
                self.first += [action] if flag.field.metadata.get("first") else []
                self.num_places += not action.option_strings and action.nargs in (None, "?")
                self.free += [action.dest] if action.nargs == "*" else []

    def format_first(self) -> str:
        """Returns the help on the flags that people need first."""
        formatter = self._get_formatter()
        takes_data = {"data_dir", "model_dir"} <= {action.dest for action in self.first}
        formatter.add_usage(f"%(prog)s {'DATA_DIR ' if takes_data else ''}[--flag=value ...]", [], [])
        formatter.add_text(self.description)
        formatter.start_section("flags that people need first")
        formatter.add_arguments(self.first)
        formatter.end_section()
        others = len({action.dest for action in self.actions.values()}) - len(self.first)
        formatter.add_text(f"{others} more flags, by topic: {errors.to_run(self.command)} --help={_ALL}")
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Raises UsageError; first removes the faulty argument, if possible, so that the rest can be parsed again."""
        if message.startswith(_REQUIRED):
            raise self._missing([name.split("/")[0] for name in message.removeprefix(_REQUIRED).split(", ")])
        names, _, problem = message.removeprefix("argument ").partition(": ")
        name = names.split("/")[0]
        if problem != _NO_VALUE:
            raise errors.UsageError(f"{name}: {' '.join(problem.split())}")
        spelled = [at for at, token in enumerate(self.given) if token in names.split("/")]
        del self.given[spelled[-1]]
        self.is_mended = True
        self.wrong.add(self.actions[name].dest)
        raise errors.UsageError(f"{name}: expected a value, as in {name}=VALUE")

    def _missing(self, names: Sequence[str]) -> errors.UsageError:
        """Returns an error about missing flags, except flags that an unknown one most likely stands for."""
        for action in self._actions:
            if action.required and str(next(iter(action.option_strings), action.metavar)) in names:
                self.wrong.add(action.dest)
            action.required, self.is_mended = False, True
        options = [*self.actions, "--help"]
        given = dict.fromkeys(token.split("=")[0] for token in self.given if token.startswith("--"))
        near = {name: _nearest(name, options) for name in given if name not in options}
        told: list[errors.PipelineError] = [_unknown(name, options) for name, flag in near.items() if flag in names]
        names = [name for name in names if name not in near.values()]
        if names:
            are = "is" if len(names) == 1 else "are"
            told.append(errors.UsageError(f"{' and '.join(names)} {are} missing; see --help"))
        return errors.MistakesError(told)

    def parsed(self, mistakes: Mistakes) -> tuple[dict[str, Any], list[str]]:
        """Parses `given`, noting mistakes; returns the values by flag name, and the other arguments."""
        while True:
            try:
                known, rest = self.parse_known_args(self.given)
                break
            except errors.UsageError as error:
                if not self.is_mended:
                    raise
                mistakes.found += error.mistakes
                self.is_mended = False
        values = vars(known)
        for name in [name for name, value in values.items() if isinstance(value, _NoValue)]:
            self.wrong.add(name)
            mistakes.found.append(errors.UsageError(f"--{name}: {values.pop(name).problem}"))
        for name in self.free:  # argparse itself only takes the arguments before the first flag
            values[name] = [*values.get(name, []), *(token for token in rest if not token.startswith("-"))]
            rest = [token for token in rest if token.startswith("-")]
        return values, rest


def about(kind: type) -> str:
    """Returns the first paragraph of a dataclass's docstring as one line."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def names_of(flag: Flag) -> tuple[str, ...]:
    """Returns a flag's names on the command line."""
    if flag.field.metadata.get("positional"):
        return (flag.name,)
    negatable = flag.kind is bool or flag.field.metadata.get("off")
    return (f"--{flag.name}", *([f"--no{flag.name}"] if negatable else []))


def options_of(flag: Flag, default: Any) -> dict[str, Any]:
    """Returns the arguments of argparse's `add_argument` for a flag with a default value."""
    metadata = flag.field.metadata
    of = f" of {metadata['default_of']}" if metadata.get("default_of") else ""
    shown = "" if default in (None, "", dataclasses.MISSING) else f" (default{of}: {default})"
    if default is None and metadata.get("unset"):
        shown = f" (None: {metadata['unset']})"
    elif flag.field.default is not None and metadata.get("unset"):  # the value depends on other flags
        shown = f" (not given: {metadata['unset']})"
    # A flag that is not given then has no attribute in the namespace, so that the dataclass's default applies.
    options: dict[str, Any] = {
        "help": f"{metadata.get('text', '')}{shown}".strip().replace("%", "%%"),
        "default": argparse.SUPPRESS,
    }
    if flag.kind is bool:
        return {**options, "action": _Switch, "nargs": 0}
    options |= {"type": _parser_of(flag), "metavar": metadata.get("metavar") or flag.kind.__name__}
    if metadata.get("repeated"):
        return {**options, **({"nargs": "*"} if metadata.get("positional") else {"action": "append"})}
    if metadata.get("positional"):
        return options if default is dataclasses.MISSING else {**options, "nargs": "?"}
    if metadata.get("bare") is not None:
        options |= {"nargs": "?", "const": metadata["bare"]}
    if off := metadata.get("off"):
        options |= {"action": functools.partial(_Negatable, off)}
    return {**options, "required": default is dataclasses.MISSING}


def _parser_of(flag: Flag) -> Callable[[str], Any]:
    """Returns the function that parses the text of a flag's value."""
    parse = flag.field.metadata.get("parse")
    if parse is None:
        return {int: _whole_number, float: _number}.get(flag.kind, str)

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            return _NoValue(f"{text!r} {error}")

    return parsed


def _usual(name: str, flags: Sequence[str]) -> str | None:
    """Returns our flag for a name used elsewhere; None if there is none."""
    usual = (f"--{flag}" for flag in _USUAL.get(name.lstrip("-").replace("-", "_").lower(), ()))
    return next((flag for flag in usual if flag in flags), None)


def _nearest(name: str, flags: Sequence[str]) -> str | None:
    """Returns the flag that the user most likely meant by an unknown one; None without a guess."""
    earlier = {f"--{old}": f"--{new}" for old, new in aliases.TODAY.items() if f"--{new}" in flags}
    near = _usual(name, flags) or errors.nearest(name, [*flags, *earlier])
    return earlier.get(near, near) if near else None


def _unknown(name: str, flags: Sequence[str]) -> errors.UsageError:
    """Returns an error about an unknown flag that suggests what the user most likely meant."""
    near = _nearest(name, flags)
    differs = _DIFFERENCES.get((_usual(name, flags) or "").lstrip("-"), "")
    if "--fresh" in differs and "--fresh" not in flags:  # a command that writes no run
        differs = ""
    asked = f"did you mean {near!r}{f' ({differs})' if differs else ''}? " if near else ""
    return errors.UsageError(f"flag: unknown {name!r}; {asked}{errors.names_that_work(flags)}")


def _whole_number(text: str) -> int | _NoValue:
    """Parses a whole number, such as 1000 or 1e3."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        number = float(text)
        if number.is_integer():
            return int(number)
    return _NoValue(f"{text!r} is not a whole number, such as 1000 or 1e3")


def _number(text: str) -> float | _NoValue:
    try:
        return float(text)
    except ValueError:
        return _NoValue(f"{text!r} is not a number, such as 0.1 or 1e-3")


def refuse(arguments: Sequence[str], flags: Sequence[str]) -> None:
    """Raises one UsageError for all arguments that a command with these flags does not accept."""
    with Mistakes() as mistakes:
        for argument in arguments:
            with mistakes.noted():
                if argument.startswith("-"):
                    raise _unknown(argument.split("=")[0], flags)
                # After an unknown flag, this may be its value.
                if not mistakes.found:
                    raise errors.UsageError(f"unexpected argument {argument!r}; see --help")


def parse(
    command: str,
    description: str,
    kind: type[_Config],
    argv: Sequence[str] | None,
    default: Mapping[str, Any] | None = None,
    *,
    check: Callable[[_Config], None] | None = None,
    others: Callable[[Sequence[str], Sequence[str]], None] = refuse,
    unsettled: Collection[str] = (),
    most: float | None = None,
) -> _Config:
    """Parses the command line into a config, a dataclass of type `kind`.

    Args:
      command: name of the command, for --help.
      description: description for --help.
      kind: dataclass whose fields are flags or dataclasses of flags.
      argv: command-line arguments; None for the process's own.
      default: defaults by flag name, if they differ from the fields' defaults.
      check: function that checks the config beyond its fields and its class; raises UsageError.
      others: function of the arguments that are not flags of `kind` and the names of its flags; raises UsageError to
        reject them.
      unsettled: flags whose value is not known yet; nothing that depends on them is checked.
      most: largest value, as in `flags.make`.

    Raises:
      UsageError: flags are unknown or missing, or values cannot work alone or together; the error reports all mistakes.
    """
    config, rest, flags = parse_known(
        command, description, kind, argv, default, check=check, others=others, unsettled=unsettled, most=most
    )
    if rest:
        others(rest, flags)
    return config


def parse_known(
    command: str,
    description: str,
    kind: type[_Config],
    argv: Sequence[str] | None,
    default: Mapping[str, Any] | None = None,
    *,
    check: Callable[[_Config], None] | None = None,
    others: Callable[[Sequence[str], Sequence[str]], None] | None = None,
    unsettled: Collection[str] = (),
    most: float | None = None,
) -> tuple[_Config, list[str], list[str]]:
    """Parses like `parse`; returns the config, the arguments without a flag in it, and the names of its flags.

    Args:
      command, description, kind, argv, default, check, unsettled, most: see `parse`.
      others: function as in `parse`, but only called if there are other mistakes to report.

    Raises:
      UsageError: flags are missing, or values cannot work alone or together; the error reports all mistakes.
    """
    with Mistakes() as mistakes:
        parser = _Parser(command, description, kind, default or {})
        tokens = with_folder(sys.argv[1:] if argv is None else argv, flags_of(kind))
        with mistakes.noted():
            aliases.check_arguments(tokens)
        tokens = aliases.arguments(tokens, flags_of(kind))
        for at, token in enumerate(tokens):
            with mistakes.noted():
                tokens[at] = _with_home(token)
        parser.given = list(_with_plain_switches(tokens, parser.actions, mistakes))
        if parser.num_places:
            _check_places(parser.given, parser)
        given, rest = parser.parsed(mistakes)
        flags = [*parser.actions, "--help"]
        wrong = parser.wrong.union(unsettled)
        config = make(kind, {**(default or {}), **given}, mistakes, wrong, most)
        if check:
            with mistakes.noted():
                check(config)
        if rest and others and mistakes.found:
            with mistakes.noted():
                others(rest, flags)
    return config, rest, flags


def with_folder(tokens: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Returns the arguments with a leading folder in the form that the command expects.

    If the command needs data, `DATA_DIR` as the first argument and `--data_dir=DATA_DIR` mean the same. If it only
    needs a run, `RUN` and `--model_dir=RUN` do.
    """
    found, data = list(tokens), flags.get("data_dir")
    if data is not None and data.field.metadata.get("positional"):
        if "--data_dir" in found[:-1]:
            found.remove("--data_dir")
        return [token.removeprefix("--data_dir=") for token in found]
    named = [flags[name] for name in ("data_dir", "model_dir") if name in flags]
    needed = next((flag.name for flag in named if flag.field.default is dataclasses.MISSING), None)
    if needed and found and not found[0].startswith("-"):
        found[0] = f"--{needed}={found[0]}"
    return found


def _with_plain_switches(
    tokens: Sequence[str], actions: Mapping[str, argparse.Action], mistakes: Mistakes
) -> Iterator[str]:
    """Yields the arguments with `--deep` or `--nodeep` in place of `--deep=true`, `--deep no` and the like.

    A switch then takes no value, so that `--deep DIR` means the same as `DIR --deep`.
    """
    waiting = iter(zip(tokens, [*tokens[1:], ""], strict=False))
    for token, following in waiting:
        name, equals, value = token.partition("=")
        action = actions.get(name)
        if not isinstance(action, _Switch) or not (equals or following.strip().lower() in _BOOLS):
            yield token
            continue
        text = value if equals else following
        if not equals:
            next(waiting)
        is_true = _BOOLS.get(text.strip().lower())
        if is_true is None or name != action.option_strings[0]:
            mistakes.found.append(errors.UsageError(f"{token}: write {' or '.join(action.option_strings)}"))
            continue
        yield action.option_strings[not is_true]


def _check_places(tokens: Sequence[str], parser: _Parser) -> None:
    """Refuses `--unknown VALUE DIR`, because VALUE would be mistaken for our positional argument."""
    with_value = {name for name, action in parser.actions.items() if not isinstance(action, _Switch)}
    free = [
        (before, token)
        for before, token in zip(["", *tokens], tokens, strict=False)
        if not token.startswith("-") and before not in with_value
    ]
    for before, token in free[: parser.num_places] if len(free) > parser.num_places else []:
        if before.startswith("--") and "=" not in before and before not in parser.actions:
            raise errors.UsageError(f"{before} {token}: is {token!r} its value? write {before}={token}")


def _with_home(token: str) -> str:
    """Expands a leading `~` in an argument's value, which shells do not do after a `=`.

    Refuses a URL with a typo, which would name a local folder.
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
    """Raises UsageError with the `pip install` command if an optional package is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise errors.UsageError(
                f"needs {module}, which is not installed: pip install 'stepfeed[{_EXTRA_OF[module]}]'"
            )


def run(command: str, main: Callable[[Sequence[str] | None], Any], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command's main and exits with 0, or prints one line to stderr and exits with the error's code."""
    _open_closed_streams()
    command = errors.name_of(command)
    try:
        try:
            main(argv)
        except SystemExit as error:  # from argparse after --help, or from a user's module or function
            sys.stdout.flush()
            place = errors.place_of(error)
            if place is None:
                raise
            _complain(f"{command}: {printable(f'{place} ended the command: {errors.said_by(error)}')}")
            sys.exit(error.code if isinstance(error.code, int) and error.code else errors.EXIT_DATA)
        sys.stdout.flush()
    except errors.PipelineError as error:
        for mistake in error.mistakes:
            _complain(f"{command}: {printable(str(mistake))}")  # a name may contain a newline
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
        discard(sys.stdout)  # or Python would try to write its buffer again at exit
        _complain(f"{command}: the output cannot be written: {errors.reason_of(error)}")
        sys.exit(errors.EXIT_DATA)
    sys.exit(0)


def discard(stream: TextIO) -> None:
    """Redirects a stream's buffer, and everything written to it later, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _complain(line: str) -> None:
    """Prints a line to stderr; if that fails, only the exit code tells the caller."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def _open_closed_streams() -> None:
    """Opens standard streams that the caller has closed (`>&-`) to the null device.

    Python sets a closed stream to None and leaves its descriptor free: the next file opened, such as a checkpoint,
    would get that number and with it everything that libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: the stream's
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))
