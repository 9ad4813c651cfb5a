"""`stepfeed convert`, `stepfeed train`, ...: all commands under one name. `python -m stepfeed` is the same.

Each runs the code of `python -m MODULE`. Only the command itself is imported, so that `stepfeed --help` and errors in
its name are fast.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import signal
import sys
from typing import Any, NoReturn

from stepfeed import shadowed

# Name: (module, what it does).
COMMANDS = {
    "convert": ("beam_jobs.convert", "make sharded TFRecords of a data set or of your own files"),
    "validate": ("beam_jobs.validate", "check a data set against its manifest, byte by byte"),
    "edit": ("beam_jobs.edit", "set labels and delete records of a data set, as its next version"),
    "inspect": ("pipeline.inspect", "show what is in a data set, or in the batch of any step of a run"),
    "index": ("pipeline.index", "use TFRecords that are there already"),
    "audit": ("pipeline.audit", "prove which worker reads what, and that every record is seen once"),
    "bench": ("pipeline.bench", "time each stage of an input"),
    "train": ("trainer.run", "train a model; run again to resume"),
    "launch": ("trainer.launch", "train with several processes, or print the job for Kubernetes or Slurm"),
    "watch": ("trainer.watch", "show runs on a page, while they train and afterwards"),
    "replay": ("trainer.replay", "show what was in the batch of a step, or check a run bit by bit"),
    "evaluate": ("trainer.evaluate", "say what a trained model gets right and wrong"),
    "predict": ("trainer.predict", "say what your images show"),
    "export": ("trainer.export", "write a trained model as SavedModel, Keras, ONNX or StableHLO"),
}
_SHELLS = ("bash", "zsh", "fish")
_COMPLETION = "completion"
# Name: what it does, including commands without a module.
_LISTED = {name: text for name, (_, text) in COMMANDS.items()} | {
    _COMPLETION: f"print the script with which {', '.join(_SHELLS[:-1])} or {_SHELLS[-1]} complete commands and flags"
}
_NAMES = "STEPFEED_COMMANDS"  # `pipeline.errors` reads it
_EXIT_DATA, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130


def main() -> NoReturn:
    """Runs the command named by the first argument, and exits with its code."""
    name, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if name in ("--help", "-h", "help"):
        listed = "\n".join(f"  {name:12}{text}" for name, text in _LISTED.items())
        _say(f"usage: stepfeed COMMAND [flags]\n\n{listed}\n\nstepfeed COMMAND --help lists its flags.")
    elif name == "--version":
        from importlib import metadata  # noqa: PLC0415, 0.03 s

        _say(f"stepfeed {metadata.version('stepfeed')}")
    elif name == _COMPLETION:
        _say(_completion(rest))
    elif name in COMMANDS:
        _run(name, rest)
    else:
        near = difflib.get_close_matches(name, _LISTED, n=1)
        _refuse(f"unknown command {name!r}; {f'did you mean {near[0]!r}? ' if near else ''}known: {', '.join(_LISTED)}")
    sys.exit(0)


def _say(text: str) -> None:
    """Prints a text; if its reader is gone (head) or it cannot be written, exits as all commands do."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes at exit
        if isinstance(error, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        print(f"stepfeed: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(_EXIT_DATA)


def _refuse(problem: str) -> NoReturn:
    print(f"stepfeed: {problem}", file=sys.stderr)
    sys.exit(_EXIT_USAGE)


def _run(name: str, arguments: list[str]) -> NoReturn:
    """Runs a command like `python -m`, except that its messages begin with `stepfeed NAME`."""
    module = COMMANDS[name][0]
    # Set before our modules are imported, and for their child processes: messages name commands as the user does.
    os.environ[_NAMES] = ";".join(f"{module}=stepfeed {name}" for name, (module, _) in COMMANDS.items())
    try:
        command = _loaded(module)
    except KeyboardInterrupt:
        print(f"stepfeed {name}: interrupted", file=sys.stderr)
        sys.exit(_EXIT_INTERRUPTED)
    sys.argv = [f"stepfeed {name}", *arguments]
    command.entry_point()
    raise AssertionError(f"{module} returned")


def _loaded(module: str) -> Any:
    """Loads the module of a command; exits if a user's file has the name of one of our packages."""
    for package in ("pipeline", module.split(".", maxsplit=1)[0]):
        try:
            shadowed.check(package)
        except ImportError as error:
            _refuse(str(error))
    return importlib.import_module(f"{module}.__main__" if module.startswith("pipeline.") else module)


def _completion(arguments: list[str]) -> str:
    if len(arguments) != 1 or arguments[0] not in _SHELLS:
        _refuse(f"completion: give one of {', '.join(_SHELLS)}")
    flags = {name: _flags(module) for name, (module, _) in COMMANDS.items()}
    if arguments[0] == "fish":
        lines = [
            f"complete -c stepfeed -n __fish_use_subcommand -f -a {name} -d '{text}'" for name, text in _LISTED.items()
        ]
        for name, known in flags.items():
            lines += [
                f"complete -c stepfeed -n '__fish_seen_subcommand_from {name}' -l {flag.lstrip('-')}" for flag in known
            ]
        return "\n".join(lines)
    cases = "\n".join(f"    {name}) words='{' '.join(known)}' ;;" for name, known in flags.items())
    before = "autoload -U +X bashcompinit && bashcompinit\n" if arguments[0] == "zsh" else ""
    return f"""{before}_stepfeed() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(_LISTED)}' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o nospace -o filenames -F _stepfeed stepfeed"""


def _flags(module: str) -> list[str]:
    """Returns the flags of a command; none if a package that it needs is missing."""
    out, command = io.StringIO(), _loaded(module)
    # A missing package is an ImportError, or a UsageError, which is a ValueError.
    with contextlib.suppress(ImportError, ValueError, SystemExit), contextlib.redirect_stdout(out):
        command.main(["--flags"])
    return out.getvalue().split()
