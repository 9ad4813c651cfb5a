"""The page over HTTP: what is served, to whom, and with which headers."""

import asyncio
import hashlib
import json
import pathlib
import re
import socket
import threading
import time
import urllib.request

import pytest

pytest.importorskip("starlette", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")

from pipeline.errors import DataError
from trainer.watching import server
from trainer.watching.event_files import EventFiles, MetricsLines, Series
from trainer.watching.server import Site, is_loopback
from trainer.watching.snapshot import DataReading, Member, Snapshot, Straggler, WorkerReading
from trainer.watching.source import RunSource

TOKEN = "t" * 32
COOKIE = f"stepfeed_token_{hashlib.sha256(TOKEN.encode()).hexdigest()[:8]}"


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


def test_a_stop_on_purpose_is_no_failure(local, site, monkeypatch):
    def shown(state):
        found = Snapshot("one", 0.0, state, error="stopped by SIGTERM at step 7")
        monkeypatch.setattr(site, "snapshots", lambda: [found, found])
        return ask(local, "/content").text

    assert '<p class="note"><b>Stopped:</b> stopped by SIGTERM at step 7</p>' in shown("stopped")
    assert "failure" not in shown("stopped")
    for state in ("failed", "training", "done"):
        assert '<p class="cause"><b>First cause of the last failure:</b> stopped by' in shown(state)


@pytest.mark.parametrize(
    ("files", "group", "said"),
    [(1, 1, "1 file</summary>"), (8, 1, "8 files</summary>"), (1000, 11, "1,000 files; one in 11 is listed</summary>")],
)
def test_how_many_files_a_data_set_has(local, site, monkeypatch, files, group, said):
    worker = WorkerReading("worker 0", (0, 4), 1, 40, 4, ((1.0, 0.1),))
    data = DataReading("digits:train", 0, 40, 4, (1, 10), None, 4, files, group, ("train-0",), (worker,))
    monkeypatch.setattr(site, "snapshots", lambda: [Snapshot("one", 0.0, "training", data=(data,))] * 2)
    text = ask(local, "/content").text
    assert (said in text, 'aria-label="worker 0 reads 1 shard"' in text) == (True, True)


def test_what_a_step_waits_for(local, site, monkeypatch):
    def shown(exchanged):
        times = {"seconds_per_step": 0.05, "waited_per_step": 0.002, "exchanged_per_step": exchanged}
        members = (Member("worker 0", "worker", 0, error="it died", **times),)
        monkeypatch.setattr(site, "snapshots", lambda: [Snapshot("one", 0.0, "training", members=members)] * 2)
        text = ask(local, "/content").text
        columns = re.findall("<th[ >]", text.partition("Processes")[2].partition("</thead>")[0])
        assert f'colspan="{len(columns)}"' in text
        return dict(re.findall(r'data-name="([^"]+)" class="n">([^<]+)', text))

    assert shown(None) | {"all-reduce wait": None} == shown(0.015) | {"all-reduce wait": None}
    assert "all-reduce wait" not in shown(None)
    found = shown(0.015)
    assert [found[name] for name in ("step time", "waits for input", "all-reduce wait")] == [
        "50.0 ms",
        "2.0 ms",
        "15.0 ms",
    ]


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
        for headers in ({}, {"cookie": f"{COOKIE}=wrong"}, {"authorization": "Bearer wrong"}):
            answer = ask(app, path, **headers)
            assert (answer.status, TOKEN in answer.text, "one" in answer.text.split()) == (401, False, False)
            assert "content-security-policy" in answer.headers
    assert ask(app, f"/?token={TOKEN[:-1]}").status == 401
    assert ask(app, f"/runs.json?token={TOKEN}").status == 401  # in the address of the page alone
    assert ask(app, "/", cookie=f"{COOKIE}=\u00e9").status == 401


def test_with_the_token_a_browser_gets_a_cookie_and_another_address(site):
    app = site.app(token=TOKEN)
    answer = ask(app, f"/?token={TOKEN}", host="machine.cluster:8420")
    assert (answer.status, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKEN};")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert ask(app, "/", cookie=f"{COOKIE}={TOKEN}", host="machine.cluster:8420").status == 200


def test_pages_of_one_host_do_not_overwrite_each_others_cookies(site):
    one, two = site.app(token=TOKEN), site.app(token="u" * 32)
    cookies = [
        ask(app, f"/?token={token}").headers["set-cookie"].partition(";")[0]
        for app, token in ((one, TOKEN), (two, "u" * 32))
    ]
    assert len({cookie.partition("=")[0] for cookie in cookies}) == 2
    assert [ask(app, "/", cookie="; ".join(cookies)).status for app in (one, two)] == [200, 200]


@pytest.mark.parametrize("token", ["abc+def/ghi=0123", 'a;b"c\\d&e#f%41 g,h', "x" * 16])
def test_the_url_that_is_printed_works_with_any_token(site, token):
    app = site.app(token=token)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = server.link(listener, "127.0.0.1", token)
        assert server.link(listener, "127.0.0.1", None) == f"http://127.0.0.1:{port}/"
    answer = ask(app, url.removeprefix(f"http://127.0.0.1:{port}"))
    assert answer.status == 303
    cookie = re.match(r'[^=]+=("(?:[^"\\]|\\.)*"|[^;]*)', answer.headers["set-cookie"])[0]
    assert ask(app, "/", cookie=cookie).status == 200


def test_a_host_in_capitals_is_the_same_host(site):
    app = site.app(("MyHost",))
    assert [ask(app, host=host).status for host in ("MyHost:8420", "myhost", "other")] == [200, 200, 421]


PATHS = ("/", "/content?run=odd", "/content?run=good", "/runs.json", "/curves.json", "/metrics")


def write_odd(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("launch/events.jsonl", '{"time": NaN, "text": "odd"}\n{"time": 5, "text": "rest"}'),
        ("launch/events.jsonl", '{"time": 1e300, "text": "odd"}\n{"time": 5, "text": "rest"}'),
        ("launch/events.jsonl", '{"time": 1' + "0" * 5000 + ', "text": "odd"}\n{"time": 5, "text": "rest"}'),
        ("launch/events.jsonl", '{"time": 5, "text": "\\ud800 rest"}'),
        ("launch/status.json", "[" * 100_000),
        ("launch/status.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        ("launch/status.json", '{"time": 1, "processes": [{"name": "worker \u00b2"}, {"name": "w3"}]}'),
        ("launch/status.json", '{"time": 1, "error": "\\ud800", "processes": [{"name": "worker \\ud800"}]}'),
        ("launch/heartbeats/worker-0.json", '{"pid": 1' + "0" * 30 + ', "time": 1, "host": "HOST"}'),
        ("launch/heartbeats/worker-0.json", '{"pid": 1' + "0" * 12 + ', "time": 1, "host": "HOST"}'),
        ("launch/heartbeats/worker-0.json", '{"pid": 1, "time": NaN}'),
        ("launch/heartbeats/worker-0.json", '{"pid": 1, "time": 1, "step": 1' + "0" * 400 + "}"),
        ("launch/heartbeats/worker-0.json", '{"pid": 1, "time": 1, "host": "\\ud800"}'),
        ("launch/heartbeats/worker-\u00b2.json", '{"pid": 1, "time": 1}'),
        ("config.yaml", "[" * 100_000),
    ],
)
def test_an_odd_file_of_a_run_hides_nothing_else(tmp_path, name, content):
    for run in ("good", "odd"):
        write_odd(tmp_path / run, "ckpt-7.index", "")
    write_odd(tmp_path / "odd", name, content.replace("HOST", socket.gethostname()))
    site = Site([RunSource(tmp_path / run) for run in ("good", "odd")])
    answers = [ask(site.app(), path) for path in PATHS]
    assert [answer.status for answer in answers] == [200] * len(PATHS)
    assert {line for line in answers[-1].text.splitlines() if "stepfeed_step{" in line} == {
        'stepfeed_step{run="good"} 7.0',
        'stepfeed_step{run="odd"} 7.0',
    }
    assert ("rest</span>" in answers[1].text) == ("rest" in content)


def test_an_odd_line_of_metrics_hides_no_curve(tmp_path):
    write_odd(
        tmp_path,
        "metrics.jsonl",
        '{"step": Infinity, "time": 1}\n{"step": 1, "time": NaN, "loss": 0.5, "\\ud800": 1}\n'
        + "[" * 100_000
        + '\n{"step": 2, "time": 3, "loss": 0.25}\n',
    )
    run = RunSource(tmp_path)
    run._lines = "metrics.jsonl", MetricsLines(tmp_path / "metrics.jsonl")
    run._lines[1].update()
    answer = ask(Site([run]).app(), "/curves.json")
    assert answer.status == 200
    (found,) = json.loads(answer.body)["runs"]
    assert found["curves"]["loss"] == {"steps": [1, 2], "times": [None, 3.0], "values": [0.5, 0.25]}


def test_a_run_that_cannot_be_shown_hides_no_other(local, site, monkeypatch):
    def update(files, until):
        del until
        if files._folder.parent.name == "one":
            raise LookupError("one\nis odd")
        return True

    monkeypatch.setattr(EventFiles, "update", update)
    first, second = site.snapshots()
    assert (first.state, first.problems) == ("unknown", ("this run cannot be shown: LookupError: one is odd",))
    assert (second.state, len(second.events)) == ("nothing", 1)
    assert "this run cannot be shown: LookupError: one is odd" in ask(local, "/content").text
    assert [ask(local, path).status for path in PATHS] == [200] * len(PATHS)


def test_the_name_of_a_folder_need_not_be_utf_8(tmp_path):
    site = Site([RunSource(tmp_path / "r\udcff")])
    assert [ask(site.app(), path).status for path in PATHS] == [200] * len(PATHS)


def test_prometheus_gives_the_token_as_a_header(site):
    app = site.app(token=TOKEN)
    answer = ask(app, "/metrics", authorization=f"Bearer {TOKEN}")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'stepfeed_step{run="one"} 7.0' in answer.text


def test_tokens_are_compared_in_constant_time(site, monkeypatch):
    compared = []
    monkeypatch.setattr(server.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    ask(site.app(token=TOKEN), "/", cookie=f"{COOKIE}=x", authorization="Bearer y")
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
        raise DataError("the rows are not images")

    monkeypatch.setattr(server.batch, "drawn", drawn)
    assert (ask(local, "/batch.png").status, ask(local, "/batch.png").text) == (500, "the rows are not images")
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


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET"]
)
def test_a_request_that_never_ends_is_closed_and_others_are_not(site, monkeypatch, sent):
    monkeypatch.setattr(server, "_PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=server.serve, args=(site, listener, "127.0.0.1", None), daemon=True).start()
        with socket.create_connection(listener.getsockname(), timeout=20) as half:
            half.sendall(sent)
            began, answers = time.monotonic(), b""
            while more := half.recv(1 << 16):  # nothing: it was closed
                answers += more
            assert 0.4 < time.monotonic() - began < 10
            assert answers.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")
        with urllib.request.urlopen("http://{}:{}/runs.json".format(*listener.getsockname()), timeout=20) as answer:
            assert answer.status == 200
