"""Downloads from a server on this machine: whole, cut, altered, stalled, and no server at all."""

import gzip
import hashlib
import http.server
import importlib.metadata
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import download, fetch
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.fetch import Remote
from pipeline.errors import DataError

ROOT = pathlib.Path(__file__).parents[4]
pytest.importorskip("tensorflow_datasets")


class Server:
    """Serves {path: bytes}; a path in `cut`, `stalled` or `statuses` is not served as it should."""

    def __init__(self):
        self.files, self.cut, self.stalled, self.statuses, self.asked = {}, set(), set(), {}, []
        self._ended = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, request):
        self.asked.append(request.path)
        if request.path in self.statuses:
            request.send_error(self.statuses[request.path])
            return
        data = self.files[request.path]
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        half = request.path in self.cut | self.stalled
        request.wfile.write(data[: len(data) // 2] if half else data)
        if request.path in self.stalled:
            request.wfile.flush()
            self._ended.wait(60)

    def add(self, name, data):
        self.files[f"/{name}"] = data
        return Remote(f"{self.address}/{name}", name, len(data), hashlib.sha256(data).hexdigest())

    def close(self):
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def left(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_files_are_downloaded_once_and_then_come_from_the_cache(server, tmp_path):
    remotes = [server.add("a.gz", os.urandom(300_000)), server.add("b.gz", b"b" * 1000)]
    paths = download.cached("mnist", remotes, tmp_path / "cache", 20)
    assert [path.read_bytes() for path in paths] == [server.files["/a.gz"], server.files["/b.gz"]]
    assert left(tmp_path / "cache") == ["a.gz", "b.gz"]
    server.close()
    started = time.monotonic()
    assert download.cached("mnist", remotes, tmp_path / "cache", 20) == paths
    assert time.monotonic() - started < 1  # no process, no import


def test_a_file_in_the_cache_that_is_damaged_is_fetched_again(server, tmp_path):
    remotes = [server.add("a.gz", os.urandom(3000)), server.add("b.gz", b"b" * 1000)]
    paths = download.cached("mnist", remotes, tmp_path, 20)
    for damage in (server.files["/a.gz"][:-1] + b"?", server.files["/a.gz"][:100]):
        paths[0].write_bytes(damage)
        server.asked.clear()
        assert download.cached("mnist", remotes, tmp_path, 20) == paths
        assert paths[0].read_bytes() == server.files["/a.gz"]
        assert "/b.gz" not in server.asked


def test_what_a_killed_download_left_is_removed_after_a_day(server, tmp_path):
    for name, age in (("old", 25 * 3600), ("new", 0)):
        (tmp_path / f".partial-{name}").mkdir()
        os.utime(tmp_path / f".partial-{name}", (time.time() - age,) * 2)
    download.cached("mnist", [server.add("a.gz", b"a")], tmp_path, 20)
    assert left(tmp_path) == [".partial-new", "a.gz"]


def failure(remotes, folder, patience=20.0):
    started = time.monotonic()
    with pytest.raises(DataError) as caught:
        download.cached("cifar10", remotes, folder, patience)
    text = str(caught.value)
    assert text.startswith(f"cifar10: cannot be downloaded: {remotes[0].url}: ")
    assert text.endswith("; give its files with --source=PATH, or try --dataset=digits, which needs no download")
    assert "\n" not in text
    assert left(folder) == []
    return text, time.monotonic() - started


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server, tmp_path):
    remote = server.add("a.gz", b"a" * 5000)
    server.files["/a.gz"] = b"a" * 4999 + b"b"
    text, _ = failure([remote], tmp_path)
    assert f"what came is not the file of 5000 bytes with SHA-256 {remote.sha256} that is registered" in text


def test_a_cut_transfer_is_an_error_and_leaves_nothing(server, tmp_path):
    remote = server.add("a.gz", os.urandom(200_000))
    server.cut.add("/a.gz")
    text, _ = failure([remote], tmp_path)
    assert "100000 bytes read, 100000 more expected" in text


def test_a_transfer_that_stalls_is_ended(server, tmp_path):
    remote = server.add("a.gz", os.urandom(4_000_000))
    server.stalled.add("/a.gz")
    text, seconds = failure([remote], tmp_path, patience=2)
    assert "nothing came for 2 s after" in text
    assert seconds < 60
    assert not multiprocessing.active_children()


def test_a_status_is_told(server, tmp_path):
    remote = server.add("a.gz", b"a")
    server.statuses["/a.gz"] = 404
    assert "the server says HTTP 404" in failure([remote], tmp_path)[0]


def test_no_server_is_told(server, tmp_path):
    remote = server.add("a.gz", b"a")
    server.close()
    assert "Connection refused" in failure([remote], tmp_path)[0]


def test_a_name_that_is_not_known_is_told(tmp_path):
    remote = Remote("http://no.such.host.invalid/a.gz", "a.gz", 1, "0" * 64)
    text, seconds = failure([remote], tmp_path)
    assert "name" in text.lower()  # "Name or service not known", "Temporary failure in name resolution"
    assert seconds < 60


def test_a_server_that_never_answers_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = Remote(f"http://127.0.0.1:{silent.getsockname()[1]}/a.gz", "a.gz", 1, "0" * 64)
        text, seconds = failure([remote], tmp_path, patience=2)
    assert "timed out" in text
    assert seconds < 60


def test_a_cache_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/cache: cannot hold the download: .*; set XDG_CACHE_HOME to a folder"):
        download.cached("mnist", [server.add("a.gz", b"a")], tmp_path / "file" / "cache", 20)


def test_the_cache_is_where_the_user_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert download.cache_folder() == pathlib.Path("/caches/stepfeed/downloads")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", "/home/ada")
    assert download.cache_folder() == pathlib.Path("/home/ada/.cache/stepfeed/downloads")


@pytest.mark.parametrize(
    ("dataset", "names", "total"),
    [
        ("mnist", 4, 11_594_722),
        ("fashion_mnist", 4, 30_878_645),
        ("kmnist", 4, 21_240_888),
        ("emnist", 1, 561_753_746),
        ("cifar10", 1, 170_052_171),
        ("cifar100", 1, 168_513_733),
    ],
)
def test_every_data_set_is_registered_with_its_official_files(dataset, names, total):
    from tensorflow_datasets.core.download import checksums

    remotes = download.registered(dataset)
    assert len(remotes) == names
    assert sum(remote.num_bytes for remote in remotes) == total
    known = checksums.get_all_url_infos()
    for remote in remotes:
        assert (int(known[remote.url].size), known[remote.url].checksum) == (remote.num_bytes, remote.sha256)


def test_a_data_set_that_is_not_registered_is_told():
    with pytest.raises(DataError, match="the tensorflow_datasets that is installed has no checksums for it; give its"):
        download.registered("no_such")


def test_without_the_package_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"needs tensorflow_datasets: pip install 'stepfeed\[convert\]'; give its files"
    ):
        download.registered("mnist")


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    """A function that publishes files on the server as those of a data set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = {}
    monkeypatch.setattr(download, "registered", lambda dataset: tables[dataset])

    def publish(dataset, files):
        tables[dataset] = [server.add(name, data) for name, data in files.items()]

    return publish


def test_mnist_without_a_source_is_downloaded(published, mnist_folder, server, tmp_path):
    folder = mnist_folder(packed=True)
    published("mnist", {path.name: path.read_bytes() for path in folder.iterdir()})
    expected = sources.open_source(SourceOptions("mnist", str(folder)))
    source = sources.open_source(SourceOptions("mnist"))
    assert source.files == expected.files
    rows = np.arange(50)
    assert (source.read("train", rows).images == expected.read("train", rows).images).all()
    server.close()
    assert sources.open_source(SourceOptions("mnist")).files == expected.files
    cache = tmp_path / "cache" / "stepfeed" / "downloads" / "mnist"
    assert left(cache) == sorted(path.name for path in folder.iterdir())


def test_cifar_without_a_source_is_downloaded(published, cifar_folder, tmp_path):
    import tarfile

    folder, _ = cifar_folder()
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as tar:
        tar.add(folder, folder.name)
    published("cifar10", {"cifar-10-binary.tar.gz": (tmp_path / "made.tar.gz").read_bytes()})
    source = sources.open_source(SourceOptions("cifar10"))
    assert source.files == sources.open_source(SourceOptions("cifar10", str(folder))).files


def test_a_part_of_emnist_is_taken_out_of_its_archive(published, mnist_folder, server, tmp_path):
    folder = mnist_folder()
    made = tmp_path / "made.zip"
    with zipfile.ZipFile(made, "w") as packed:
        for path in folder.iterdir():
            split = "train" if path.name.startswith("train") else "test"
            name = f"emnist-digits-{split}-{path.name.split('-', 1)[1]}.gz"
            packed.writestr(f"gzip/{name}", gzip.compress(path.read_bytes()))
    published("emnist", {"gzip.zip": made.read_bytes()})
    source = sources.open_source(SourceOptions("emnist_digits"))
    assert source.splits == {"train": 50, "test": 20}
    server.close()
    assert sources.open_source(SourceOptions("emnist_digits")).files == source.files


SCRIPT = """
import os, pathlib, sys
from beam_jobs.sources import download
from beam_jobs.sources.fetch import Remote
if __name__ == "__main__":
    remote = Remote(sys.argv[1], "a.gz", int(sys.argv[2]), sys.argv[3])
    download.cached("mnist", [remote], pathlib.Path(sys.argv[4]), 30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_ends_its_process_and_leaves_no_file(number, server, tmp_path):
    remote = server.add("a.gz", os.urandom(4_000_000))
    server.stalled.add("/a.gz")
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    arguments = [remote.url, str(remote.num_bytes), remote.sha256, str(tmp_path / "cache")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(server.asked) < 2 and time.monotonic() < deadline:  # the probe, then the manager
        time.sleep(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
    process.wait(30)
    while time.monotonic() < deadline and left(tmp_path / "cache"):  # which the download's process empties
        time.sleep(0.05)
    assert left(tmp_path / "cache") == []


def test_a_line_every_few_seconds_tells_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(fetch, "_SECONDS_BETWEEN_LINES", 0.0)
    with fetch._shown("mnist", 11_594_722) as show:
        show(2_000_000)
    assert capsys.readouterr().out == "downloading mnist: 2.0 of 11.6 MB\n"


def test_the_manager_works_without_tensorflow(server, tmp_path):
    """Of the `convert` extra, TensorFlow is no part: the packages are seen through links, all but that one."""
    packages = tmp_path / "packages"
    packages.mkdir()
    site = pathlib.Path(str(importlib.metadata.distribution("tensorflow-datasets").locate_file("")))
    for path in site.iterdir():
        if not path.name.lower().startswith(("tensorflow-2", "keras")) and path.name != "tensorflow":
            (packages / path.name).symlink_to(path)
    script = tmp_path / "run.py"
    script.write_text(
        f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(packages)!r}]\nimport importlib.util\n"
        f"assert importlib.util.find_spec('tensorflow') is None\n{SCRIPT}"
    )
    remote = server.add("a.gz", os.urandom(1000))
    arguments = [remote.url, str(remote.num_bytes), remote.sha256, str(tmp_path / "cache")]
    bare = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", str(script), *arguments]
    done = subprocess.run(bare, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache" / "a.gz").read_bytes() == server.files["/a.gz"]
