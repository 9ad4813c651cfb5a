"""The page over HTTP: what is served, to whom, and with which headers."""

import asyncio
import json
import pathlib
import re

import pytest

pytest.importorskip("starlette", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")

from pipeline.errors import DataError
from trainer.watching import server
from trainer.watching.event_files import EventFiles, Series
from trainer.watching.server import Site, is_loopback
from trainer.watching.snapshot import Member, Snapshot, Straggler
from trainer.watching.source import RunSource

TOKEN = "t" * 32


class Answer:
    """What an application has answered."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {name.decode(): value.decode() for name, value in headers}

    @property
    def text(self):
        return self.body.decode()


def ask(app, path="/", method="GET", **headers):
    """Sends a request to an application, without a socket."""
    sent, (path, _, query) = [], path.partition("?")
    given = {"host": "127.0.0.1:8420", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"},
        **{"path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""},
        **{"headers": [(name.encode(), value.encode()) for name, value in given.items()]},
        **{"server": ("127.0.0.1", 8420), "client": ("127.0.0.1", 5)},
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return Answer(sent[0]["status"], sent[0]["headers"], b"".join(one.get("body", b"") for one in sent[1:]))


@pytest.fixture
def site(tmp_path):
    """Two runs, one of which is named like an attack."""
    folders = [tmp_path / "one", tmp_path / "<img src=x onerror=alert(1)>"]
    for folder in folders:
        (folder / "launch").mkdir(parents=True)
    (folders[0] / "ckpt-7.index").touch()
    (folders[1] / "launch" / "events.jsonl").write_text(
        '{"time": 1, "kind": "\\"><b>", "text": "<script>alert(2)</script>"}'
    )
    return Site([RunSource(folder) for folder in folders])


@pytest.fixture
def local(site):
    return site.app(("localhost", "127.0.0.1", "::1"))


def test_the_page_has_all_runs_and_one_of_them_in_full(local):
    page = ask(local)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<title>one" in page.text
    assert "<dd>7</dd>" in page.text
    assert ask(local, "/?run=none").text == page.text or "<title>one" in ask(local, "/?run=none").text
    part = ask(local, "/content?run=one")
    assert "<html" not in part.text
    assert (part.headers["x-live"], part.headers["x-curves"]) == ("0", "0.0")


def test_the_straggler_and_the_ledger(local, site, monkeypatch):
    def members(*steps):
        return tuple(Member(f"worker {i}", "worker", i, steps=n, seconds_per_step=0.5) for i, n in enumerate(steps))

    def shown(**fields):
        found = Snapshot("one", 0.0, "training", **fields)
        monkeypatch.setattr(site, "snapshots", lambda: [found, found])
        return " ".join(re.sub("<[^>]+>", " ", ask(local, "/content").text).split())

    said = shown(
        members=members(5, 6), straggler=Straggler("worker 1", "is slow"), ledger={"once": 11, "twice": 0, "never": 1}
    )
    assert (
        "Straggler: worker 1 is slow. Ledger, up to the last pause: 11 steps applied once, 0 twice, 1 not at all."
        in said
    )
    assert "No straggler." in shown(members=members(5, 6))
    assert "No straggler." not in shown(members=members(5, 0))  # one of them has made no step yet


def test_what_files_say_is_text_and_no_markup(local):
    for path in (
        "/",
        "/?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
        "/content?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    ):
        text = ask(local, path).text
        assert "<img src=x" not in text
        assert "<script>alert" not in text
        assert "<b>" not in text.replace("<b>First", "").replace("<b>Straggler", "")
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text


def test_nothing_comes_from_elsewhere(local):
    page = ask(local)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page.text)
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
        found = ask(local, f"/{name}")
        assert (found.status, len(found.body) > 1000) == (200, True)
        assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", found.text)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert not re.search(r"<[^>]+ (?:style|on\w+)=", page.text)


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost:8420", "LOCALHOST", "[::1]:8420"])
def test_names_of_this_machine_are_answered(local, host):
    assert ask(local, host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"]
)
@pytest.mark.parametrize("path", ["/", "/runs.json", "/metrics", "/static/page.js"])
def test_a_site_whose_name_points_here_is_refused(local, host, path):
    assert ask(local, path, host=host).status == 421


@pytest.mark.parametrize("path", ["/runs.json", "/batch.png", "/static/page.js", "/content"])
def test_another_site_may_link_here_but_not_include_anything(local, path):
    assert ask(local, path, sec_fetch_site="cross-site").status == 403
    assert ask(local, "/", sec_fetch_site="cross-site").status == 200
    assert ask(local, "/runs.json", sec_fetch_site="same-origin").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_only_reads(local, method):
    assert ask(local, "/", method).status == 405


def test_without_the_token_nothing_is_told(site):
    app = site.app(token=TOKEN)
    paths = ("/", "/runs.json", "/metrics", "/curves.json", "/content", "/batch.png", "/static/page.js", "/none")
    for path in paths:
        for headers in ({}, {"cookie": "stepfeed_token=wrong"}, {"authorization": "Bearer wrong"}):
            answer = ask(app, path, **headers)
            assert (answer.status, TOKEN in answer.text, "one" in answer.text.split()) == (401, False, False)
            assert "content-security-policy" in answer.headers
    assert ask(app, f"/?token={TOKEN[:-1]}").status == 401
    assert ask(app, f"/runs.json?token={TOKEN}").status == 401  # in the address of the page alone
    assert ask(app, "/", cookie="stepfeed_token=\u00e9").status == 401


def test_with_the_token_a_browser_gets_a_cookie_and_another_address(site):
    app = site.app(token=TOKEN)
    answer = ask(app, f"/?token={TOKEN}", host="machine.cluster:8420")
    assert (answer.status, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"stepfeed_token={TOKEN};")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert ask(app, "/", cookie=f"stepfeed_token={TOKEN}", host="machine.cluster:8420").status == 200


def test_prometheus_gives_the_token_as_a_header(site):
    app = site.app(token=TOKEN)
    answer = ask(app, "/metrics", authorization=f"Bearer {TOKEN}")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'stepfeed_step{run="one"} 7.0' in answer.text


def test_tokens_are_compared_in_constant_time(site, monkeypatch):
    compared = []
    monkeypatch.setattr(server.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    ask(site.app(token=TOKEN), "/", cookie="stepfeed_token=x", authorization="Bearer y")
    assert {a for a, _ in compared} == {b"", b"x", b"y"}
    assert {b for _, b in compared} == {TOKEN.encode()}


def test_json_of_runs_and_of_curves(local, site):
    names = [one["run"] for one in json.loads(ask(local, "/runs.json").body)["runs"]]
    assert names == ["one", "<img src=x onerror=alert(1)>"]
    site._sources[0]._events.series["train/loss"] = Series([1, 2], [5.0, 6.0], [0.5, float("nan")])
    (first, _) = json.loads(ask(local, "/curves.json").body)["runs"]
    assert first == {
        "run": "one",
        "curves": {"train/loss": {"steps": [1, 2], "times": [5.0, 6.0], "values": [0.5, None]}},
    }


def test_images_of_tensorboards_files(local, site, monkeypatch):
    monkeypatch.setattr(EventFiles, "update", lambda self: None)
    site._sources[0]._events.images = {"images/0": b"\x89PNG1"}
    found = ask(local, "/image.png?run=one&number=0")
    assert (found.status, found.headers["content-type"], found.body) == (200, "image/png", b"\x89PNG1")
    for number in ("1", "-1", "x", ""):
        assert ask(local, f"/image.png?run=one&number={number}").status == 404


def test_a_batch_is_drawn_once_for_each_step(local, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(server.batch, "drawn", lambda folder, step: drawn.append((folder.name, step)) or b"\x89PNG")
    for _ in range(2):
        answer = ask(local, "/batch.png?run=one")
        assert (answer.status, answer.headers["x-step"], answer.body) == (200, "7", b"\x89PNG")
    assert drawn == [("one", 7)]


def test_why_a_batch_is_not_drawn(local, site, monkeypatch):
    def drawn(folder, step):
        raise DataError("the rows are no images")

    monkeypatch.setattr(server.batch, "drawn", drawn)
    assert (ask(local, "/batch.png").status, ask(local, "/batch.png").text) == (500, "the rows are no images")
    with site._drawing:
        assert ask(local, "/batch.png").status == 503


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "uPlot.LICENSE", "page.html.jinja", ""])
def test_no_other_file_is_served(local, name):
    assert ask(local, f"/static/{name}").status == 404


def test_what_is_vendored_comes_with_its_licence():
    folder = pathlib.Path(server.__file__).parent / "static"
    assert "uPlot" in (folder / "uPlot.iife.min.js").read_text()[:300]
    assert (folder / "uPlot.LICENSE").read_text().startswith("The MIT License (MIT)")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)],
)
def test_which_addresses_only_this_machine_reaches(host, is_local):
    assert is_loopback(host) is is_local
