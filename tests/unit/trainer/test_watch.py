"""`trainer.watch`: its flags, as a process."""

import contextlib
import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from pipeline.errors import UsageError
from tests.helpers import forked
from trainer import watch
from trainer.launching.flags import PAGE_PORT

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture
def runs(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / f"ckpt-{5 + number}.index").touch()
    return list(map(str, folders))


@pytest.fixture
def page():
    """What a test of the page needs; without it, the test is skipped."""
    pytest.importorskip("uvicorn", reason="needs starlette, uvicorn and jinja2: pip install 'stepfeed[page]'")


@contextlib.contextmanager
def served(*arguments, environment=None):
    """Context of a page that is served; yields its URL."""
    process = forked.Process(["-m", "trainer.watch", *arguments], {"PYTHONUNBUFFERED": "1", **(environment or {})})
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        if not process.stdout.closed:
            process.communicate()


def fetched(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.read().decode()


def test_json_is_printed_once(runs, capsys):
    watch.main([*runs, "--json"])
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["run"], one["step"]) for one in found] == [("one", 5), ("two", 6)]


def test_runs_of_one_name_are_told_apart(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
    watch.main([str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "--json"])
    found = [one["run"] for one in json.loads(capsys.readouterr().out)["runs"]]
    assert found == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]


def test_a_folder_in_two_spellings_is_shown_once(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("one")
    watch.main([runs[0], "one/", "./two/../one", "link", "two", "--json"])
    assert [one["run"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["one", "two"]


def test_names_of_different_folders_differ(tmp_path, monkeypatch, capsys):
    for name in ("x/run", "y/run", "z/link"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("x/run")
    monkeypatch.chdir(tmp_path)
    watch.main(["link", "y/run", "z/link", "--json"])
    found = [one["run"] for one in json.loads(capsys.readouterr().out)["runs"]]
    assert found == [str(tmp_path / "x" / "run"), str(tmp_path / "y" / "run"), "link"]


def test_the_page_is_for_this_machine_alone(runs, page):
    with served(*runs, "--port=0") as (_, line):
        url, shows = line.split(" ", 1)
        assert (re.fullmatch(r"http://127\.0\.0\.1:\d+/", url) is not None, shows) == (True, "shows one, two")
        assert 'stepfeed_step{run="two"} 6.0' in fetched(f"{url}metrics")
        with pytest.raises(urllib.error.HTTPError, match="421"):
            fetched(url, Host="evil.example")


def test_a_folder_that_is_not_there_is_named(runs, tmp_path, page):
    with served(runs[0], tmp_path / "to" / "come", "--port=0") as (_, line):
        url, shows = line.split(" ", 1)
        assert shows == "shows one, come (which is not there yet)"
        assert f"{tmp_path}/to/come is not there" in fetched(f"{url}?run=come")


def test_other_machines_need_the_token_that_is_printed(runs, page):
    with served(*runs, "--host=0.0.0.0", "--port=0") as (process, line):
        url, token = re.fullmatch(r"http://\S+:(\d+)/\?token=(\S{32}) shows one, two", line).groups()
        url = f"http://127.0.0.1:{url}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(url)
        assert "<title>" in fetched(url, Authorization=f"Bearer {token}")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(f"{url}?token=wrong")
        process.kill()
        out, err = process.communicate()
        assert (token in out, token in err) == (False, False)  # but for the line above


def test_a_token_that_is_given(runs, page):
    with served(*runs, "--host=0.0.0.0", "--port=0", environment={watch.TOKEN: TOKEN}) as (_, line):
        port = re.search(r":(\d+)/", line)[1]
        assert TOKEN not in line  # a log would keep it
        assert line.endswith(f"/ shows one, two; add ?token= with the value of ${watch.TOKEN}")
        assert "stepfeed_step" in fetched(f"http://127.0.0.1:{port}/metrics", Authorization=f"Bearer {TOKEN}")


def test_the_usual_port_and_another_one_if_it_is_taken(runs, page):
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is taken already
            stack.enter_context(socket.create_server(("127.0.0.1", PAGE_PORT)))
        with served(*runs) as (_, line):
            assert int(re.search(r":(\d+)/", line)[1]) not in (0, PAGE_PORT)


def test_a_port_that_is_given_and_taken_is_refused(runs, page):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port={port}"):
            watch.main([*runs, f"--port={port}"])


def test_a_host_that_nobody_knows_is_refused(runs, page):
    with pytest.raises(UsageError, match=r"^--host=no\.invalid: cannot listen there: (\w+ )+\w+; give") as caught:
        watch.main([*runs, "--host=no.invalid"])
    assert "Unknown error" not in str(caught.value)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("short", "5 characters"),
        ("p\u00e4sswort-mit-umlaut", "characters other than printable ASCII"),
        ("line one\nline two of it", "characters other than printable ASCII"),
        ("tab\tand more of it 1234", "characters other than printable ASCII"),
    ],
)
def test_a_token_that_is_short_or_that_no_cookie_can_carry_is_refused(runs, monkeypatch, token, said, page):
    monkeypatch.setenv(watch.TOKEN, token)
    monkeypatch.setattr("trainer.watching.server.serve", lambda *_: None)
    with pytest.raises(UsageError, match=f"STEPFEED_WATCH_TOKEN: has {said}"):
        watch.main([*runs, "--host=0.0.0.0", "--port=0"])
