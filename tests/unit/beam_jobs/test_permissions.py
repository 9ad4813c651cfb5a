"""Files and folders that may not be read, and names too long: one line, whoever runs it."""

import contextlib
import importlib
import os
import tempfile

import pytest

from beam_jobs import drafts
from beam_jobs.sink.local import LocalSink
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.index import command as indexing
from pipeline.records import framing
from tests.helpers.raised import at

NOBODY = 65534
LONG = "x" * 300
LOADED_BEFORE = (
    *("conversion.command", "conversion.job", "runs.run", "runs.runners"),
    *("sources.mnist", "sources.cifar", "sources.image_folder"),
)


@contextlib.contextmanager
def unprivileged():
    """Takes root's rights from this process, and gives it a place for temporary files.

    Folders without any permission bind every other user anyway.
    """
    if os.geteuid():
        yield
        return
    for module in LOADED_BEFORE:  # the interpreter's own files may be readable by root only
        importlib.import_module(f"beam_jobs.{module}")
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        os.chmod(place, 0o777)
        patch.setattr(tempfile, "tempdir", place)  # TMPDIR may be for root alone
        try:
            os.setresuid(NOBODY, NOBODY, 0)
        except OSError:
            pytest.skip("root cannot become another user here")
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)


@pytest.fixture
def folder():
    """A folder that other users can get to, and that the unprivileged user owns."""
    with tempfile.TemporaryDirectory() as name:
        path = LocalPath(name)
        path.chmod(0o755)
        give(path)
        yield path


def give(path):
    if not os.geteuid():
        os.chown(path, NOBODY, NOBODY)


@contextlib.contextmanager
def mode(path, bits):
    give(path)
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(0o755)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_source_below_a_closed_folder(dataset, folder, convert):
    (folder / "closed" / "source").mkdir(parents=True)
    with mode(folder / "closed", 0), unprivileged():
        outcome = convert(f"--dataset={dataset}", f"--source={folder}/closed/source", f"--data_dir={folder}/out")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert f"{folder}/closed/source" in outcome.err
    assert ": cannot be read: Permission denied" in outcome.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("path", "bits", "message"),
    [
        ("closed/out", 0, "cannot be used: Permission denied"),
        ("closed/below/out", 0, "cannot be used: Permission denied"),
        ("closed", 0o300, "no permission to list it"),
        ("closed", 0o500, "no permission to write in"),
        ("closed/out", 0o500, "no permission to write in"),
        ("closed", 0o600, "Permission denied|no permission to write in"),
    ],
)
def test_a_data_dir_that_may_not_be_used(path, bits, message, folder):
    (folder / "closed").mkdir()
    with mode(folder / "closed", bits), unprivileged(), pytest.raises(UsageError, match=f"--data_dir=.*{message}"):
        LocalSink(folder / path).check("mnist", "")


def test_records_of_a_folder_that_may_not_be_written_to_are_indexed_by_links(folder, capsys):
    (folder / "theirs").mkdir()
    (folder / "theirs" / "a.tfrecord").write_bytes(framing.frame(b"a record"))
    (folder / "own").mkdir()
    give(folder / "own")
    with mode(folder / "theirs", 0o500), unprivileged():
        with pytest.raises(DataError, check=at("theirs", "Permission denied")) as raised:
            indexing.make_index(f"{folder}/theirs", ["train:*.tfrecord"], "", overwrite=False)
        assert raised.value.advice == "link its files into a folder of your own (ln -s), and index that"
        (folder / "own" / "a.tfrecord").symlink_to(folder / "theirs" / "a.tfrecord")
        indexing.make_index(f"{folder}/own", ["train:*.tfrecord"], "", overwrite=False)
    assert "own: 1 record, all CRCs are correct" in capsys.readouterr().out


def test_permissions_that_change_after_the_check(folder):
    """As the steps after check_folder meet them."""
    (folder / "out").mkdir()
    with mode(folder / "out", 0o300), unprivileged():
        with (
            pytest.raises(UsageError, match="cannot be opened: Permission denied"),
            LocalSink(folder / "out").locked(),
        ):
            pass
        for step in (drafts.remove_temporaries, LocalPath.sync, LocalPath.names):
            with pytest.raises(DataError, match="Permission denied"):
                step(folder / "out")


@pytest.mark.parametrize("name", [LONG, f"{LONG}/below"])
def test_a_data_dir_with_too_long_a_name(name, tmp_path):
    with pytest.raises(UsageError, match="cannot be used: File name too long"):
        LocalSink(tmp_path / name).check("mnist", "")
