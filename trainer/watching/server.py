"""Serves the page of some runs: HTML, JSON, and Prometheus' text format, all read-only."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import hashlib
import hmac
import json
import pathlib
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.commands.text import count_of
from pipeline.errors import PipelineError
from trainer.watching import batch
from trainer.watching.snapshot import EvaluationRow, Snapshot, as_json, as_metrics
from trainer.watching.source import RunSource

_COOKIE = "stepfeed_token_{}"  # filled with a digest of the token
_AGE = 0.7  # seconds for which a snapshot is cached
_MOST_ROWS = 12  # rows of evaluations
_MOST_PICTURES = 8
_PATIENCE = 10.0  # seconds for a complete request to arrive
_STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
}
# Nothing may come from or go to another site. Inline styles are allowed, since uPlot sets styles from code.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets only authorised requests through, and adds headers to all responses.

    Args:
      app: application to guard.
      hosts: host names that browsers may use for the page, without port; a site that points its name at this machine
        (DNS rebinding) has another name. Empty to allow any name, as the token protects the page.
      token: secret that a request must contain in a cookie, as `Authorization: Bearer`, or once in the query; None for
        no secret.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str | None) -> None:
        self._app, self._token = app, token
        self._hosts = [host.lower() for host in hosts]
        # Browsers store cookies by host, not by port: pages with different tokens on one machine need different names.
        self._cookie = _COOKIE.format(hashlib.sha256((token or "").encode()).hexdigest()[:8])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        refused = self._refused(Request(scope))
        await (refused or self._app)(scope, receive, with_headers)

    def _refused(self, request: Request) -> Response | None:
        if self._hosts and _host_of(request) not in self._hosts:
            return PlainTextResponse("unknown host name", 421)
        # Other sites may link here, but not embed or read anything.
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.url.path != "/":
            return PlainTextResponse("not for other sites", 403)
        if self._token is None:
            return None
        if self._is_right(request.query_params.get("token", "")) and request.url.path == "/":
            answer = RedirectResponse("./", 303)  # removes the token from the address bar
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return answer
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if self._is_right(request.cookies.get(self._cookie, "")) or (
            scheme.lower() == "bearer" and self._is_right(given)
        ):
            return None
        return PlainTextResponse(
            "give the token: open the URL that was printed at the start, with ?token=...",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_right(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())  # takes the same time wherever they differ


def _host_of(request: Request) -> str | None:
    """Returns the host name in a request, without port; None if it is not valid."""
    with contextlib.suppress(ValueError):
        return urllib.parse.urlsplit(f"//{request.headers.get('host', '')}").hostname
    return None


class Site:
    """The responses to requests about some runs."""

    def __init__(self, sources: Sequence[RunSource]) -> None:
        self._sources = list(sources)
        self._lock, self._drawing = threading.Lock(), threading.Lock()
        self._snapshots: tuple[float, list[Snapshot]] = (-_AGE, [])
        self._pictures: dict[tuple[str, int], bytes] = {}

    def app(self, hosts: Sequence[str] = (), token: str | None = None) -> ASGIApp:
        """Returns the site as a guarded application; see `Guard`."""
        routes = {
            "/": functools.partial(self._html, is_page=True),
            "/content": functools.partial(self._html, is_page=False),
            "/curves.json": self._curves,
            "/runs.json": self._json,
            "/metrics": self._metrics,
            "/image.png": self._image,
            "/batch.png": self._batch,
            "/static/{name}": _static,
        }
        return Guard(Starlette(routes=[Route(path, of) for path, of in routes.items()]), hosts, token)

    def snapshots(self) -> list[Snapshot]:
        """Returns recent snapshots of all runs."""
        with self._lock:
            if time.monotonic() - self._snapshots[0] >= _AGE:
                self._snapshots = time.monotonic(), [source.snapshot() for source in self._sources]
            return self._snapshots[1]

    def _html(self, request: Request, is_page: bool) -> Response:
        runs = self.snapshots()
        run = runs[self._number(request)]
        text = _template().render(runs=runs, run=run, is_page=is_page)
        headers = {
            "X-Curves": ".".join(str(source.version) for source in self._sources),
            "X-Live": str(int(any(one.is_live for one in runs))),
        }
        return Response(_encoded(text), media_type="text/html", headers=headers)

    def _number(self, request: Request) -> int:
        """Returns the number of the requested run, or of the first run if it does not exist."""
        names = [source.name for source in self._sources]
        name = request.query_params.get("run")
        return names.index(name) if name in names else 0

    def _curves(self, request: Request) -> Response:
        del request
        runs = zip(self._sources, self.snapshots(), strict=True)
        content = {
            "runs": [{"run": one.name, "curves": one.curves() if run.state != "unknown" else {}} for one, run in runs]
        }
        return Response(json.dumps(content, separators=(",", ":"), allow_nan=False), media_type="application/json")

    def _json(self, request: Request) -> Response:
        del request
        return Response(as_json(self.snapshots()), media_type="application/json")

    def _metrics(self, request: Request) -> Response:
        del request
        return Response(_encoded(as_metrics(self.snapshots())), media_type="text/plain; version=0.0.4")

    def _image(self, request: Request) -> Response:
        number = request.query_params.get("number", "")
        png = self._sources[self._number(request)].image(int(number)) if number.isdecimal() else None
        return Response(png, media_type="image/png") if png else PlainTextResponse("there is no such image", 404)

    def _batch(self, request: Request) -> Response:
        """Responds with the batch of the current step, drawn only once, and by one process at a time."""
        number = self._number(request)
        run, source = self.snapshots()[number], self._sources[number]
        step = run.step or 0
        if run.last_step:
            step = min(step, run.last_step - 1)
        if not self._drawing.acquire(blocking=False):
            return PlainTextResponse("another batch is being drawn", 503)
        try:
            if (source.name, step) not in self._pictures:
                while len(self._pictures) >= _MOST_PICTURES:
                    del self._pictures[next(iter(self._pictures))]
                self._pictures[source.name, step] = batch.drawn(source.folder.path, step)
            png = self._pictures[source.name, step]
        except PipelineError as error:
            return PlainTextResponse(str(error), 500)
        finally:
            self._drawing.release()
        return Response(png, media_type="image/png", headers={"X-Step": str(step)})


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # JSON in a file may contain half of a surrogate pair


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("there is no such file", 404)
    return Response(_file(name), media_type=_STATIC[name])


@functools.cache
def _file(name: str) -> bytes:
    return (pathlib.Path(__file__).parent / "static" / name).read_bytes()


class _Impatient(H11Protocol):  # type: ignore[misc]
    """A connection that is closed if no complete request arrives: uvicorn would wait forever for the rest."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look = self.loop.call_later(_PATIENCE, self._close_if_none_came, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def _close_if_none_came(self, before: object) -> None:
        """Closes the connection if it has answered no further request since the last check."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is before:
            self.transport.close()
        else:
            self._look = self.loop.call_later(_PATIENCE, self._close_if_none_came, self.cycle)


def serve(site: Site, listener: socket.socket, host: str, token: str | None) -> None:
    """Serves the site until the process is told to end.

    Args:
      site: site to serve.
      listener: bound socket.
      host: address that the socket is bound to.
      token: secret as for `Guard`.
    """
    hosts = () if token else ("localhost", "127.0.0.1", "::1", host)
    config = uvicorn.Config(
        site.app(hosts, token),
        http=_Impatient,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,  # it would log tokens
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., object]] = {
        "count": lambda value: None if value is None else f"{value:,.0f}",
        "counted": count_of,
        "fixed": lambda value, digits=4: None if value is None else f"{value:,.{digits}f}",
        "plain": lambda value: f"{value:,.4g}",
        "ms": lambda value: None if value is None else f"{value * 1e3:,.{1 if value < 0.1 else 0}f} ms",
        "percent": lambda value: None if value is None else f"{value:.1%}",
        "ago": _ago,
        "clock": _clock,
        "duration": _duration,
        "ranked": _ranked,
        "best": lambda run: next((row for row in run.evaluations if row.rank == 1), None),
    }
    environment.filters |= filters
    return environment.get_template("page.html.jinja")


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s ago" if seconds < 100 else f"{_duration(seconds)} ago"


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def _clock(when: float) -> str:
    """Returns the local time of day, preceded by the date unless it is today."""
    try:
        local = datetime.datetime.fromtimestamp(when)
    except (ValueError, OverflowError, OSError):  # a number in a file may not be a valid time
        return "-"
    is_today = local.date() == datetime.datetime.now().date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M:%S}"


def _ranked(run: Snapshot) -> list[EvaluationRow]:
    """Returns the best evaluations by rank, and the newest ones that are not among them."""
    rows = sorted(run.evaluations, key=lambda row: (row.rank is None, row.rank or 0, -row.step))
    if len(rows) <= _MOST_ROWS:
        return rows
    best = rows[: _MOST_ROWS - 3]
    return [*best, *(row for row in run.evaluations[-3:] if row not in best)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(address[0] == "::1" or str(address[0]).startswith("127.") for *_, address in found)


def link(listener: socket.socket, host: str, token: str | None) -> str:
    """Returns the URL of the page, including the token unless that is None."""
    port = listener.getsockname()[1]
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={urllib.parse.quote(token, safe='')}" if token else "")
