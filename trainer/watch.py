"""`python -m trainer.watch RUN [RUN ...]`: a page about runs, during and after training. It only reads.

Exit codes: 2 a flag is invalid; 130, 143 ended by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import pathlib
import secrets
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from pipeline.commands import commandline
from pipeline.commands.flags import check, check_all, flag
from pipeline.errors import UsageError
from trainer.launching.flags import PAGE_PORT

if TYPE_CHECKING:
    from trainer.watching.source import RunSource

COMMAND = "trainer.watch"
TOKEN = "STEPFEED_WATCH_TOKEN"  # variable with the token; if unset, there is a new token each time
_SHORTEST = 16  # minimum number of characters in a token
_PATIENCE = 0.2  # seconds that a snapshot spends on new log lines; many lines take longer, and must not block it


@dataclasses.dataclass(frozen=True)
class WatchConfig:
    """What to show, and to whom."""

    runs: list[str] = flag(text="folders of runs (--model_dir)", positional=True, repeated=True, metavar="RUN")
    host: str = flag(
        "127.0.0.1",
        "address to listen on; if other machines can reach it, the page asks for the token in the URL that is "
        f"printed, or for the one in ${TOKEN}",
    )
    port: int | None = flag(
        None,
        f"port to listen on (None: {PAGE_PORT}, or any free one if that is taken); 0: any free one",
        least=0,
        below=1 << 16,
    )
    json: bool = flag(False, "print what is known about the runs as JSON, and end")

    def __post_init__(self) -> None:
        check_all(lambda: check(self), self._check_runs)

    def _check_runs(self) -> None:
        if not self.runs:
            raise UsageError("RUN is missing: the folder of a run, as in --model_dir")
        for run in self.runs:
            if "://" in run:
                raise UsageError(f"{run}: must be a folder on this machine, or mounted")
            if pathlib.Path(run).is_file():
                raise UsageError(f"{run}: is a file, not the folder of a run")


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the page until the process is told to end, or prints JSON.

    Raises:
      UsageError: a flag is invalid, or a package is missing.
    """
    config = commandline.parse(COMMAND, "Show runs on a page, while they train and afterwards.", WatchConfig, argv)
    from trainer.watching.source import RunSource  # noqa: PLC0415, NumPy, after --help

    folders = {pathlib.Path(run).resolve(): pathlib.Path(run) for run in config.runs}
    last = [whole.name for whole in folders]
    sources = [
        RunSource(
            path,
            whole.name if last.count(whole.name) == 1 else str(whole),
            patience=math.inf if config.json else _PATIENCE,
        )
        for whole, path in folders.items()
    ]
    if config.json:
        from trainer.watching.snapshot import as_json  # noqa: PLC0415, as above

        print(as_json([source.snapshot() for source in sources]))
        return
    commandline.require("starlette", "uvicorn", "jinja2")
    from trainer.watching import server  # noqa: PLC0415, starlette and uvicorn

    token, is_given = (None, False) if server.is_loopback(config.host) else _token()
    with _listening(config) as listener:
        # A user who has set a token knows it; it must not get into a log that others read.
        url, shown = server.link(listener, config.host, None if is_given else token), ", ".join(map(_shown, sources))
        print(f"{url} shows {shown}" + (f"; add ?token= with the value of ${TOKEN}" if is_given else ""), flush=True)
        server.serve(server.Site(sources), listener, config.host, token)


def _shown(source: RunSource) -> str:
    return source.name if source.folder.path.is_dir() else f"{source.name} (which is not there yet)"


def _token() -> tuple[str, bool]:
    """Returns the token, and whether it comes from the environment."""
    given = os.environ.get(TOKEN, "").strip()
    if given and len(given) < _SHORTEST:
        raise UsageError(
            f"{TOKEN}: has {len(given)} characters; must have {_SHORTEST} or more, so that nobody guesses it"
        )
    if not (given.isascii() and given.isprintable()):
        raise UsageError(
            f"{TOKEN}: has characters other than printable ASCII, which no header can carry; leave them out"
        )
    return given or secrets.token_urlsafe(24), bool(given)


def _listening(config: WatchConfig) -> socket.socket:
    ports = (PAGE_PORT, 0) if config.port is None else (config.port,)
    for port in ports:
        try:
            family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
            return socket.create_server((config.host, port), family=family)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port != ports[-1]:
                continue
            flags = f"--host={config.host}" + (f" --port={port}" if config.port is not None else "")
            # `create_server` converts even a gaierror, whose numbers are negative, to an OSError, and appends the
            # address.
            why = str(error.strerror).partition(" (while ")[0]
            raise UsageError(f"{flags}: cannot listen there: {why}; give another one") from None
    raise AssertionError


def entry_point() -> NoReturn:
    """The console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
