"""Downloads from a server on this machine: whole, cut, altered, stalled, and no server at all."""

import gzip
import hashlib
import http.server
import os
import pathlib
import signal
import socket
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest

from beam_jobs import sources
from beam_jobs.sources import published
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.published import Remote
from pipeline.errors import DataError


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


def test_files_are_downloaded_once_and_again_where_they_are_damaged(server, tmp_path):
    remotes = [server.add("a.gz", os.urandom(300_000)), server.add("b.gz", b"b" * 1000)]
    folder = tmp_path / "cache"
    paths = published.cached("mnist", remotes, folder)
    assert [path.read_bytes() for path in paths] == [server.files["/a.gz"], server.files["/b.gz"]]
    assert left(folder) == ["a.gz", "b.gz"]
    for damage in (server.files["/a.gz"][:-1] + b"?", server.files["/a.gz"][:100]):
        paths[0].write_bytes(damage)
        server.asked.clear()
        assert published.cached("mnist", remotes, folder) == paths
        assert paths[0].read_bytes() == server.files["/a.gz"]
        assert server.asked == ["/a.gz"]
    server.close()
    assert published.cached("mnist", remotes, folder) == paths


def test_files_that_arrived_stay_when_another_does_not(server, tmp_path):
    remotes = [server.add("a.gz", b"a"), server.add("b.gz", b"b" * 1000)]
    server.cut.add("/b.gz")
    with pytest.raises(DataError, match=r"/b\.gz"):
        published.cached("mnist", remotes, tmp_path)
    assert left(tmp_path) == ["a.gz"]
    server.cut.clear()
    assert len(published.cached("mnist", remotes, tmp_path)) == 2
    assert server.asked.count("/a.gz") == 1


def test_what_a_killed_download_left_is_removed_after_a_day(server, tmp_path):
    for name, age in (("old", 25 * 3600), ("new", 0)):
        (tmp_path / f".{name}.tmp-0").write_bytes(b"half")
        os.utime(tmp_path / f".{name}.tmp-0", (time.time() - age,) * 2)
    published.cached("mnist", [server.add("a.gz", b"a")], tmp_path)
    assert left(tmp_path) == [".new.tmp-0", "a.gz"]


ALTERED = {"/a.gz": b"a" * 200_000}


@pytest.mark.parametrize(
    ("fault", "fact"),
    [
        (lambda server: server.files.update(ALTERED), "200,000 bytes with SHA-256"),
        (lambda server: server.cut.add("/a.gz"), "100000 more expected"),
        (lambda server: server.stalled.add("/a.gz"), "timed out"),
        (lambda server: server.statuses.update({"/a.gz": 404}), "HTTP 404"),
        (lambda server: server.statuses.update({"/a.gz": 503}), "HTTP 503"),
        (lambda server: server.close(), "Connection refused"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_nothing(fault, fact, server, tmp_path):
    remote = server.add("a.gz", os.urandom(200_000))
    fault(server)
    check_failure(remote, fact, tmp_path)


def test_a_host_that_is_not_known_is_one_line(tmp_path):
    remote = Remote("http://no.such.host.invalid/a.gz", "a.gz", 1, "0" * 64)
    check_failure(remote, "name", tmp_path)  # "Name or service not known", "Temporary failure in name resolution"


def check_failure(remote, fact, folder):
    started = time.monotonic()
    with pytest.raises(DataError) as caught:
        published.cached("cifar10", [remote], folder, patience=1)
    text = str(caught.value)
    assert fact.lower() in text.lower()
    assert text.startswith("cifar10: ")
    assert remote.url in text
    assert "--source" in text
    assert "\n" not in text
    assert " object at 0x" not in text
    assert left(folder) == []
    assert time.monotonic() - started < 30


def test_a_server_that_never_answers_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = Remote(f"http://127.0.0.1:{silent.getsockname()[1]}/a.gz", "a.gz", 1, "0" * 64)
        with pytest.raises(DataError, match="timed out"):
            published.cached("cifar10", [remote], tmp_path, patience=0.5)


def test_an_interrupted_download_leaves_no_file(server, tmp_path):
    remote = server.add("a.gz", os.urandom(4_000_000))
    server.stalled.add("/a.gz")

    def interrupt():
        while not (left(tmp_path) and server.asked):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        published.cached("mnist", [remote], tmp_path, patience=30)
    assert left(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/cache: .*XDG_CACHE_HOME"):
        published.cached("mnist", [server.add("a.gz", b"a")], tmp_path / "file" / "cache")


def test_the_cache_is_where_the_user_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert published.cache_folder() == pathlib.Path("/caches/stepfeed/downloads")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", "/home/ada")
    assert published.cache_folder() == pathlib.Path("/home/ada/.cache/stepfeed/downloads")


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
    pytest.importorskip("tensorflow_datasets")
    remotes = published.registered(dataset)
    assert len(remotes) == names
    assert sum(remote.num_bytes for remote in remotes) == total


def test_a_data_set_that_is_not_registered_is_told():
    with pytest.raises(DataError, match=r"no_such: .* checksums"):
        published.registered("no_such")


def test_without_the_package_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"tensorflow_datasets: pip install 'stepfeed\[convert\]'"):
        published.registered("mnist")


@pytest.fixture
def publish(server, tmp_path, monkeypatch):
    """A function that publishes files on the server as a data set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = {}
    monkeypatch.setattr(published, "registered", lambda dataset: tables[dataset])

    def publish(dataset, files):
        tables[dataset] = [server.add(name, data) for name, data in files.items()]

    return publish


def test_mnist_without_a_source_is_downloaded(publish, mnist_folder, server, tmp_path):
    folder = mnist_folder(packed=True)
    publish("mnist", {path.name: path.read_bytes() for path in folder.iterdir()})
    expected = sources.open_source(SourceOptions("mnist", str(folder)))
    source = sources.open_source(SourceOptions("mnist"))
    assert source.files == expected.files
    rows = np.arange(50)
    assert (source.read("train", rows).images == expected.read("train", rows).images).all()
    server.close()
    assert sources.open_source(SourceOptions("mnist")).files == expected.files
    cache = tmp_path / "cache" / "stepfeed" / "downloads" / "mnist"
    assert left(cache) == sorted(path.name for path in folder.iterdir())


def test_cifar_without_a_source_is_downloaded(publish, cifar_folder, tmp_path):
    folder, _ = cifar_folder()
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as tar:
        tar.add(folder, folder.name)
    publish("cifar10", {"cifar-10-binary.tar.gz": (tmp_path / "made.tar.gz").read_bytes()})
    source = sources.open_source(SourceOptions("cifar10"))
    assert source.files == sources.open_source(SourceOptions("cifar10", str(folder))).files


def test_a_part_of_emnist_is_taken_out_of_its_archive(publish, mnist_folder, server, tmp_path):
    folder = mnist_folder()
    made = tmp_path / "made.zip"
    with zipfile.ZipFile(made, "w") as packed:
        for path in folder.iterdir():
            split = "train" if path.name.startswith("train") else "test"
            name = f"emnist-digits-{split}-{path.name.split('-', 1)[1]}.gz"
            packed.writestr(f"gzip/{name}", gzip.compress(path.read_bytes()))
    publish("emnist", {"gzip.zip": made.read_bytes()})
    source = sources.open_source(SourceOptions("emnist_digits"))
    assert source.splits == {"train": 50, "test": 20}
    server.close()
    assert sources.open_source(SourceOptions("emnist_digits")).files == source.files
