import hashlib
import io
import os
import pathlib
import pickle

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.sources import image_files, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from pipeline.manifest import SourceFile
from tests.helpers.lanes import examples
from tests.helpers.raised import at, said
from tests.helpers.round_trips import NO_PICTURES, PICTURES, Row, check, empty_folder, everything, fill, in_order


def picture(number, kind="PNG"):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(stream, kind)
    return stream.getvalue()


PATHS = ["cat/2.png", "cat/10.JPEG", "cat/sub/deep/a.jpg", "dog/1.bmp", "dog/b.GIF", "eel/x.webp"]
CONTENT = {path: picture(n, kind) for n, (path, kind) in enumerate(
    zip(PATHS, ["PNG", "JPEG", "JPEG", "BMP", "GIF", "WEBP"], strict=True)
)}  # fmt: skip


def opened(root, **options):
    return open_source(SourceOptions("image_folder", str(root), **options))


SPLITS = {"train": ("train", "Train"), "validation": ("validation", "val", "dev"), "test": ("test",)}
CLASSES = [["cat", "Dog", "\u00e9\u00e8l", "Trained"], ["0", "2", "10", "011"]]
NAMES = ["{}.png", "sub/deep/{}.JPEG", "b\u00e9/{}.tif", "{}\n.webp", os.fsdecode(b"\xff{}.gif"), "{}.ppm"]
UNREADABLE = [".NEF", ".svg", ".jxl"]
NO_IMAGES = [".hidden.png", "notes.txt", "a.json", "README"]


@st.composite
def folders(draw):
    """Draws {split: rows}, and which classes there are."""
    names = draw(st.sampled_from(CLASSES))
    words = draw(st.dictionaries(st.sampled_from(sorted(SPLITS)), st.integers(0, 2), max_size=3))
    splits = {split: SPLITS[split][words[split] % len(SPLITS[split])] for split in SPLITS if split in words}
    places = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(NAMES)), min_size=1, max_size=8)
    table = {}
    for split, word in splits.items() or [("train", "")]:
        found = draw(places, split)
        present = in_order({name for name, _ in found})
        paths = [(name, form.format(number)) for number, (name, form) in enumerate(found)]
        paths.append((present[0], "-.png"))  # the first of all, and valid
        table[split] = sorted(
            (_row(draw, name, os.path.join(word, name, path)) for name, path in paths),
            key=lambda row: (present.index(row.class_name), row.key),
        )
    return table


def _row(draw, class_name, path):
    """Draws the file of a path, which need not be one of an image."""
    fault, content = None, draw(st.sampled_from(PICTURES))
    if not path.endswith("-.png") and draw(st.integers(0, 3)) == 0:
        fault, content = (), draw(st.sampled_from(NO_PICTURES))
        if draw(st.booleans()):
            suffix = draw(st.sampled_from(UNREADABLE))
            path, fault = path + suffix, (suffix.lower(),)
    key = os.fsencode(path)
    return Row(key.decode(errors="backslashreplace"), 0, key, content, class_name, fault=fault)


@given(st.data())
@settings(max_examples=examples(60), derandomize=True)
def test_a_folder_becomes_its_images_and_the_rejects_of_other_files(data):
    table = data.draw(folders())
    class_names = in_order({row.class_name for rows in table.values() for row in rows})
    with empty_folder() as folder:
        for row in (row for rows in table.values() for row in rows):
            path = folder / "in" / os.fsdecode(row.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(row.image)
            path.with_name(data.draw(st.sampled_from(NO_IMAGES))).write_bytes(b"no image")
        check(data, folder, table, class_names, dataset="image_folder", source=str(folder / "in"))


def test_a_class_may_be_named_like_a_split(tmp_path):
    source = opened(fill(tmp_path, {"train/1.png": picture(1), "plane/1.png": picture(2)}))
    assert (source.class_names, source.splits) == (("plane", "train"), {"train": 2})


def test_each_class_folder_is_described_by_the_paths_and_content_of_its_images(tmp_path):
    source = opened(fill(tmp_path, CONTENT))
    lines = b"".join(
        b"%b\0%d\0%b\n" % (path.encode(), len(data), hashlib.sha256(data).hexdigest().encode())
        for path, data in sorted(CONTENT.items())
        if path.startswith("dog/")
    )
    size = len(CONTENT["dog/1.bmp"]) + len(CONTENT["dog/b.GIF"])
    assert source.files[1] == SourceFile("dog", size, hashlib.sha256(lines).hexdigest())
    fill(tmp_path, {"cat/2.png": CONTENT["cat/2.png"][:-1] + b"x"})
    again = opened(tmp_path)
    assert [a == b for a, b in zip(source.files, again.files, strict=True)] == [False, True, True]


def test_hashes_depend_on_the_path_alone(tmp_path):
    hashes = opened(fill(tmp_path, CONTENT)).hashes("train", 0, 6)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 6
    (tmp_path / "cat" / "10.JPEG").unlink()
    fill(tmp_path, {"dog/1.bmp": b"other content"})
    assert opened(tmp_path).hashes("train", 0, 5).tolist() == hashes[1:].tolist()
    assert opened(tmp_path).hashes("train", 2, 4).tolist() == hashes[3:5].tolist()


def test_names_that_are_no_text_are_keys_and_are_shown_with_escapes(tmp_path, monkeypatch):
    fill(tmp_path, {os.fsdecode(b"cat/\xff\xfe.png"): picture(1), "cat/é\n.png": picture(2), "cat/a.png": picture(3)})
    source = opened(tmp_path)
    assert everything(source).keys == [b"cat/a.png", "cat/é\n.png".encode(), b"cat/\xff\xfe.png"]
    assert source.where("train", 2) == ("cat/\\xff\\xfe.png", 0)
    assert len(source.hashes("train", 0, 3)) == 3
    (tmp_path / os.fsdecode(b"cat/\xff\xfe.png")).unlink()
    with pytest.raises(DataError, match=r"cat/\\xff\\xfe\.png: no such file"):
        everything(source)


def test_files_that_are_no_images_are_left_out_with_one_line(tmp_path, capsys):
    fill(tmp_path, CONTENT)
    assert capsys.readouterr().err == ""
    others = {"cat/labels.txt": b"", "dog/more/a.txt": b"", "README": b"", ".hidden/1.png": b"", "cat/.thumb.png": b""}
    source = opened(fill(tmp_path, others))
    assert source.splits == {"train": 6}
    error = capsys.readouterr().err
    assert error.startswith(f"{tmp_path}: ")
    assert error.endswith(": skipped 3 files: no image (.txt, without extension)\n")
    assert error.count("\n") == 1
    for name in others:
        (tmp_path / name).unlink()
    opened(fill(tmp_path, {"cat/notes.txt": b""}))
    assert capsys.readouterr().err.endswith(": skipped 1 file: no image (.txt)\n")


REFUSED = [
    ({}, "class/file.png"),
    ({"1.png": b"x", "cat/1.png": b"x"}, r"1\.png: "),
    ({"train/1.png": b"x", "test/cat/1.png": b"x"}, r"train/1\.png: "),
    ({"cat/1.png": b"x", "dog/1.txt": b"x"}, r"'dog' has no image; skipped 1 file: no image \(\.txt\)"),
    ({"b.json": b"{}"}, r"class/file\.png; boxes, masks and captions .* python -m pipeline\.index"),
    ({"a.csv": b""}, r"class/file\.png; if a \.csv file names the images, .*--dataset=image_table; boxes"),
    ({"a.parquet": b""}, r"class/file\.png; for \.parquet files give --dataset=parquet$"),
    ({"1.png": b"x", "annotations.json": b"{}"}, r"1\.png: is not in a class folder; .*python -m pipeline\.index"),
    ({"JPEGImages/1.jpg": b"x", "Annotations/1.xml": b""}, r"'Annotations' has no image; .*python -m pipeline\.index"),
    ({"train/a/0.png": b"x", "b/0.png": b"x"}, "'train/a/0.png' is split/class/file by .*, 'b/0.png' is not; put all"),
    ({"test/a/0.png": b"x", "z/0.png": b"x"}, "'test/a/0.png' is split/class/file by .*, 'z/0.png' is not; put all"),
    (
        {"a/train/0.png": b"x", "b/Test/0.png": b"x"},
        "'a/train/0.png' and 'b/Test/0.png' are of different splits, .* as split/class/file.png$",
    ),
    ({"all/train/a/0.png": b"x", "all/test/a/1.png": b"x"}, "split/class/file.png; give --source=/.*/all$"),
    ({"caf\u00e9/1.png": b"x", "cafe\u0301/1.png": b"x"}, r"'cafe\\u0301' and 'caf\\xe9' look alike"),
    ({"cat/1.png": b"x", "cat /1.png": b"x"}, "'cat' and 'cat ' look alike"),
    ({"7/1.png": b"x", "07/1.png": b"x"}, "'07' and '7' look alike"),
    (
        {"train/A/1.png": b"x", "train/a/1.png": b"x", "train/cat/1.png": b"x", "test/Cat/1.png": b"x"},
        "'Cat' and 'cat' of different splits differ only in case",
    ),
    ({"train/cat/1.png": b"x", "test/Cat/1.png": b"x"}, "'Cat' and 'cat' of different splits differ only in case"),
    ({"big\ncat/1.png": b"x"}, r"class 0, 'big\\ncat', holds a line break"),
    ({"train/cat/1.png": b"x", "val/dog/1.txt": b"x"}, "'dog'"),
    ({"train/cat/1.png": b"x", "val/cat/1.txt": b"x"}, "'validation'"),
    ({"train/cat/1.png": b"x", "test/cat/1.png": b"x", "extra/cat/1.png": b"x"}, "'extra'"),
    ({"val/cat/1.png": b"x", "dev/cat/1.png": b"x"}, "'val' and 'dev' .*'validation'"),
    ({os.fsdecode(b"\xff/1.png"): b"x"}, r"\\xff: .*UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_of_another_layout_is_refused_in_one_line(tmp_path, content, message):
    fill(tmp_path, content)
    with pytest.raises(DataError, match=message, check=at("")):
        opened(tmp_path)


def test_classes_that_differ_only_in_case_are_named(tmp_path, capsys):
    source = opened(fill(tmp_path, {"train/A/1.png": b"x", "train/a/1.png": b"x", "test/a/1.png": b"x"}))
    assert source.class_names == ("A", "a")
    assert capsys.readouterr().err == f"{tmp_path}: the classes 'A' and 'a' differ only in case\n"


def test_a_source_that_is_one_level_too_high_is_named(tmp_path, capsys):
    fill(tmp_path, {"data/cat/1.png": b"x", "data/dog/1.png": b"x", "data/eel/1.png": b"x"})
    assert opened(tmp_path).class_names == ("data",)
    assert capsys.readouterr().err == (
        f"{tmp_path}: all images are of one class, 'data'; if its folders ('cat', 'dog', ...) are the classes, give "
        "that folder as --source\n"
    )
    opened(tmp_path / "data")
    fill(tmp_path, {"data/0.png": b"x"})
    assert opened(tmp_path).class_names == ("data",)
    assert capsys.readouterr().err == ""


def test_no_image_is_left_out_whatever_its_name_says(tmp_path, capsys):
    images = ["1.tif", "2.TIFF", "3.jp2", "4.avif", "5.heic", "6.ppm", "7.pgm", "8.jfif", "9.nef", "a.svg", "b.jxl"]
    content = {f"cat/{name}": b"x" for name in images}
    begins = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"II*\0", b"\0\0\0\x0cjP  \r\n")
    unnamed = {f"cat/n{n}{end}": start for n, start in enumerate(begins) for end in ("", ".jpg~", ".jpg_large")}
    others = {"cat/Thumbs.db": begins[0], "cat/.DS_Store": b"", "cat/1.json": b"{}", "cat/weights.xyz": b"hello"}
    source = opened(fill(tmp_path, content | unnamed | others))
    assert sorted(key.decode() for key in everything(source).keys) == sorted(content | unnamed)
    assert capsys.readouterr().err.endswith(": skipped 3 files: no image (.json, .db, .xyz)\n")


def test_a_link_that_leads_out_is_not_read_to_tell_whether_it_is_an_image(tmp_path):
    root = fill(tmp_path / "root", CONTENT)
    (tmp_path / "secret").write_bytes(CONTENT["cat/2.png"])
    (root / "cat" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "cat" / "pipe")
    assert opened(root).splits == {"train": 6}
    assert opened(root, follow_links=True).splits == {"train": 7}


def test_sources_that_are_no_folder(tmp_path):
    with pytest.raises(UsageError, match="--source is missing"):
        opened("")
    with pytest.raises(DataError, check=at("gone", "no such folder")):
        opened(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, check=at("file", "neither a folder nor an archive")):
        opened(tmp_path / "file")


def forget(monkeypatch):
    """Puts the process into the state of a worker that has listed nothing yet."""
    monkeypatch.setattr(image_files, "_kept", {})


def test_links_lead_to_files_of_the_folder_alone(tmp_path):
    root, outside = fill(tmp_path / "root", CONTENT), fill(tmp_path / "outside", CONTENT)
    link = root / "eel" / "link.png"
    link.symlink_to(root / "cat" / "2.png")
    source = opened(root)
    assert everything(source).images[-2:] == [CONTENT["cat/2.png"], CONTENT["eel/x.webp"]]
    for target, fact in (
        (outside / "cat" / "2.png", "out of the folder"),
        (pathlib.Path("../../outside/cat/2.png"), "out of the folder"),
        (outside / "cat", "link to a folder"),
        (root / "gone", "no such file"),
    ):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(DataError, check=at("link.png", fact)):
            opened(root)
    link.unlink()
    link.symlink_to(outside / "cat" / "2.png")
    (root / "more").symlink_to(outside / "cat")
    with pytest.raises(DataError, check=at("more", "link to a folder", "--follow_links (2 ")):
        opened(root)
    (root / "more").unlink()
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(DataError, check=at("link.png", "not a regular file")):
        opened(root)


def test_links_that_lead_elsewhere_are_followed_with_the_flag(tmp_path, monkeypatch):
    root, outside = tmp_path / "root", fill(tmp_path / "outside", CONTENT)
    fill(root, {"cat/1.png": CONTENT["cat/2.png"]})
    (root / "cat" / "2.png").symlink_to(outside / "dog" / "1.bmp")
    (root / "dog").symlink_to(outside / "dog")
    (root / "cat" / "sub").symlink_to(outside / "cat" / "sub")
    source = opened(root, follow_links=True)
    forget(monkeypatch)
    block = everything(pickle.loads(pickle.dumps(source)))
    assert block.keys == [b"cat/1.png", b"cat/2.png", b"cat/sub/deep/a.jpg", b"dog/1.bmp", b"dog/b.GIF"]
    assert block.images[1] == block.images[3] == CONTENT["dog/1.bmp"]
    (root / "cat" / "gone.png").symlink_to(outside / "gone")
    with pytest.raises(DataError, check=at("gone.png", "no such file")):
        opened(root, follow_links=True)
    (root / "cat" / "gone.png").unlink()
    (outside / "cat" / "sub" / "back").symlink_to(root / "cat")
    with pytest.raises(DataError, check=at("sub/back", "folder that it lies in")):
        opened(root, follow_links=True)


def test_only_folders_of_images_have_links_to_follow():
    with pytest.raises(UsageError, check=said("--follow_links:", "digits", "image_folder")):
        open_source(SourceOptions("digits", follow_links=True))


def test_a_folder_that_is_named_through_a_link_is_read(tmp_path):
    fill(tmp_path / "real", CONTENT)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "eel" / "inner.png").symlink_to("x.webp")
    assert opened(tmp_path / "link").splits == {"train": 7}


def test_a_worker_lists_the_folder_again_and_finds_the_same(tmp_path, monkeypatch):
    fill(tmp_path, {f"{label}/{n:04d}.png": b"%d" % n for label in "abc" for n in range(100)})
    source = opened(tmp_path)
    block = everything(source)
    data = pickle.dumps(source)
    assert len(data) < 1500
    forget(monkeypatch)
    again = everything(pickle.loads(data))
    assert (again.images, again.keys, again.labels.tolist()) == (block.images, block.keys, block.labels.tolist())
    assert len(again.keys) == 300


@pytest.mark.parametrize("change", ["added", "gone", "longer", "touched"])
def test_a_folder_that_changed_is_an_error_for_a_worker(tmp_path, monkeypatch, change):
    source = opened(fill(tmp_path, CONTENT))
    forget(monkeypatch)
    path = tmp_path / "cat" / "2.png"
    if change == "added":
        fill(tmp_path, {"cat/3.png": b""})
    elif change == "gone":
        path.unlink()
    elif change == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, check=at(tmp_path, "changed")):
        everything(source)


def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path):
    source = opened(fill(tmp_path, CONTENT))
    path = tmp_path / "cat" / "2.png"
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, check=at("2.png", "changed")):
        everything(source)
    path.unlink()
    with pytest.raises(DataError, check=at("2.png", "no such file")):
        everything(source)


def test_a_file_too_large_for_an_image_is_a_bad_row_and_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "MAX_FILE", 1000)
    source = opened(fill(tmp_path, CONTENT | {"dog/large.png": b"x" * 1001}))
    block = source.read("train", np.array([6, 5]))
    assert block.images == [CONTENT["eel/x.webp"], b""]
    assert list(block.bad) == [1]
    assert "1,001 bytes" in block.bad[1]
