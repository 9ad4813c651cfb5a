"""The folder of copies: who holds what, what is removed first, and what a killed process leaves."""

import multiprocessing
import os
import pathlib
import signal
import time

import pytest

from pipeline.errors import DataError, UsageError
from pipeline.read import cache_folder
from pipeline.read.cache_folder import CacheFolder, Entry

DIGEST = "0123456789abcdef" * 4


def entry_of(name, num_bytes=100, digest=DIGEST):
    return Entry(digest, name, num_bytes, "00000000")


def add(place, name, num_bytes=100):
    """Makes a copy, and returns it closed."""
    entry = entry_of(name, num_bytes)
    draft = place.draft(entry)
    assert place.reserve(entry, draft)
    place.publish(entry, draft)
    draft.close()
    return entry


def names(place):
    return sorted(path.name for path in pathlib.Path(place.path).glob("*/*"))


def test_a_draft_is_written_by_one_alone_and_becomes_the_file_by_its_name(tmp_path):
    place, other = CacheFolder(tmp_path / "a/b", 1000), CacheFolder(tmp_path / "a/b", 1000)
    entry = entry_of("x")
    draft = place.draft(entry)
    assert other.draft(entry) is None
    assert place.opened(entry) is None
    assert place.reserve(entry, draft)
    os.pwrite(draft.fileno(), b"7" * 100, 0)
    place.publish(entry, draft)
    assert other.draft(entry) is None  # it is there
    with other.opened(entry) as file:
        assert file.read() == b"7" * 100
    assert names(place) == ["x"]
    assert place.file(entry) == str(tmp_path / "a/b/0123456789abcdef/x")


def test_files_of_one_name_in_two_folders_have_two_copies(tmp_path):
    place = CacheFolder(tmp_path, 1000)
    for name in ("train/x", "val/x", "x", "sidecars/offsets.x"):
        add(place, name)
    assert names(place) == ["offsets.x", "train~x", "val~x", "x"]


def test_the_least_recently_used_goes_first_but_nothing_that_is_open(tmp_path):
    place = CacheFolder(tmp_path, 300)
    a, _, c = (add(place, name) for name in "abc")
    time.sleep(0.01)
    place.opened(a).close()  # now b is the oldest
    add(place, "d")
    assert names(place) == ["a", "c", "d"]
    with CacheFolder(tmp_path, 300).opened(c):  # as another process would
        add(place, "e", 200)
        assert names(place) == ["c", "e"]
        large = entry_of("f", 250)
        draft = place.draft(large)
        assert not place.reserve(large, draft)  # e alone is not enough...
        place.discard(large, draft)
        assert names(place) == ["c", "e"]  # ...so it stays
    assert place.num_bytes() == 300


def test_each_process_keeps_to_its_own_bound_and_removes_only_copies(tmp_path):
    roomy, narrow = CacheFolder(tmp_path, 1000), CacheFolder(tmp_path, 250)
    for name in "abcdef":
        add(roomy, name)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine" * 1000)
    (tmp_path / DIGEST[:16] / "link").symlink_to(tmp_path / "notes.txt")
    add(narrow, "g")
    assert names(narrow) == ["f", "g", "link", "notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_draft_will_take_counts_before_it_is_written(tmp_path):
    place = CacheFolder(tmp_path, 250)
    first, second = entry_of("a", 200), entry_of("b", 100)
    draft = place.draft(first)
    assert place.reserve(first, draft)
    assert place.num_bytes() == 200
    assert not place.reserve(second, place.draft(second))
    place.discard(first, draft)
    assert place.num_bytes() == 0


def hold_draft(path, began):
    place = CacheFolder(path, 1000)
    draft = place.draft(entry_of("x"))
    place.reserve(entry_of("x"), draft)
    os.pwrite(draft.fileno(), b"half", 0)
    began.set()
    time.sleep(60)


@pytest.mark.parametrize("later", ["x", "y"], ids=["the same file", "another file"])
def test_a_killed_process_s_draft_goes_with_the_next_that_fetches(tmp_path, later):
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=hold_draft, args=(tmp_path, began))
    process.start()
    assert began.wait(60)
    place = CacheFolder(tmp_path, 1000)
    assert place.draft(entry_of("x")) is None  # its writer lives
    assert time.time() - place.written(entry_of("x")) < 60
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert names(place) == ["x.part"]
    add(place, later, 70)
    assert names(place) == [later]
    assert os.path.getsize(place.file(entry_of(later))) == 70


def test_a_copy_that_is_replaced_is_not_removed_in_its_place(tmp_path):
    place = CacheFolder(tmp_path, 1000)
    wrong = place.opened(add(place, "x"))
    os.unlink(place.file(entry_of("x")))
    add(place, "x", 70)
    place.remove(entry_of("x"), wrong)
    assert os.path.getsize(place.file(entry_of("x"))) == 70
    place.remove(entry_of("x"), place.opened(entry_of("x")))
    assert names(place) == []


def test_what_is_removed_before_it_could_be_locked_is_not_used(tmp_path, monkeypatch):
    place, lock = CacheFolder(tmp_path, 1000), cache_folder.try_lock
    entry = add(place, "x")

    def removed_meanwhile(file, shared=False):
        for path in tmp_path.glob("*/x*"):
            path.unlink()
        return lock(file, shared)

    monkeypatch.setattr(cache_folder, "try_lock", removed_meanwhile)
    assert place.opened(entry) is None
    assert place.draft(entry) is None
    monkeypatch.undo()
    with place.draft(entry) as draft:
        assert place.reserve(entry, draft)


def test_without_a_bound_it_takes_nine_tenths_of_what_the_disk_has_left(tmp_path):
    found, disk = CacheFolder(tmp_path).most_bytes, os.statvfs(tmp_path)
    assert found == pytest.approx(0.9 * disk.f_bavail * disk.f_frsize, rel=0.05)


def test_a_folder_that_cannot_be_one_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="^cache_dir=.*/file: "):
        CacheFolder(tmp_path / "file")
    for path in (tmp_path / "file/in", "/proc/cache"):
        with pytest.raises(DataError, match=f"^cache_dir={path}: .*; .*disk"):
            CacheFolder(path)


def test_the_disk_space_of_a_draft_is_taken_at_once(tmp_path):
    place, large = CacheFolder(tmp_path, 1 << 22), entry_of("x", 1 << 20)
    with place.draft(large) as draft:
        assert place.reserve(large, draft)
        assert os.fstat(draft.fileno()).st_blocks * 512 >= 1 << 20


def test_a_draft_that_is_a_link_is_not_written_through(tmp_path):
    place, mine = CacheFolder(tmp_path / "cache", 1000), tmp_path / "mine"
    mine.write_text("mine")
    add(place, "y")
    os.symlink(mine, place.file(entry_of("x")) + ".part")
    with pytest.raises(OSError, match="symbolic link"):
        place.draft(entry_of("x"))
    assert mine.read_text() == "mine"


def test_a_draft_that_another_has_made_anew_is_not_removed(tmp_path):
    place, entry = CacheFolder(tmp_path, 1000), entry_of("x")
    old = place.draft(entry)
    os.unlink(place.file(entry) + ".part")
    with place.draft(entry):
        place.discard(entry, old)
        assert names(place) == ["x.part"]


def test_a_folder_that_is_a_link_is_none_of_ours(tmp_path):
    place, mine = CacheFolder(tmp_path / "cache", 250), tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_bytes(b"7" * 1000)
    (tmp_path / "cache" / DIGEST[-16:]).symlink_to(mine)
    assert place.num_bytes() == 0
    add(place, "x")
    assert (mine / "notes").exists()


def test_a_lock_that_another_process_never_releases_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "_LOCK_SECONDS", 0.02)
    with CacheFolder(tmp_path, 1000)._exclusive(), pytest.raises(DataError, match=" lock for 0 s;"):
        CacheFolder(tmp_path, 1000)
