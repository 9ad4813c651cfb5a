"""Tables whose images lie in archives."""

import gzip
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest

from beam_jobs import validate
from beam_jobs.conversion.command import convert as convert_command
from beam_jobs.sources import archives, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import DataError, UsageError
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at, said
from tests.helpers.round_trips import everything, fill, picture

COUNT = 6
FILES = {f"pictures/{row}.png": picture(row) for row in range(COUNT)}


def zipped(path, files, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path, files, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


WRITERS = {
    "zip": zipped,
    "stored zip": lambda path, files: zipped(path, files, zipfile.ZIP_STORED),
    "tar": tarred,
    "GNU tar": lambda path, files: tarred(path, files, tarfile.GNU_FORMAT),
}


def table(root, names, **options):
    lines = [f"{name},{'ab'[row % 2]}" for row, name in enumerate(names)]
    (root / "t.csv").write_text("file,label\n" + "".join(f"{line}\n" for line in lines))
    return open_source(SourceOptions("image_table", str(root / "t.csv"), **options))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_names_files_in_an_archive(tmp_path, kind):
    name = f"images.{kind[-3:]}"
    WRITERS[kind](tmp_path / name, {**FILES, "pictures/" + "long" * 60 + ".png": b""})
    source = table(tmp_path, [f"{name}/pictures/{row}.png" for row in range(COUNT)])
    block = everything(source)
    assert block.images == list(FILES.values())
    assert block.keys == [f"{name}/pictures/{row}.png".encode() for row in range(COUNT)]
    assert (block.labels.tolist(), block.bad) == ([0, 1, 0, 1, 0, 1], {})
    assert [file.file for file in source.files] == ["t.csv", name]
    assert source.files[1].num_bytes == (tmp_path / name).stat().st_size


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("images.zip/pictures", "{}.png"),
        ("images.zip/pictures/{{}}.png", "{}"),
        ("images.zip", "pictures/{}.png"),
        ("images.zip", "./pictures/../pictures/{}.png"),
        ("images.zip", "pictures\\{}.png"),
    ],
)
def test_the_folder_of_the_images_may_be_in_an_archive(tmp_path, place, names):
    zipped(tmp_path / "images.zip", FILES)
    image_dir = f"{tmp_path}/{place.replace('{{}}', '{}')}"
    block = everything(table(tmp_path, [names.format(row) for row in range(COUNT)], image_dir=image_dir))
    assert block.images == list(FILES.values())
    prefix = "pictures/" if place == "images.zip" else ""
    assert block.keys == [f"{prefix}{row}.png".encode() for row in range(COUNT)]


def test_files_and_archives_may_be_mixed_and_others_are_invalid_rows(tmp_path, capsys):
    zipped(tmp_path / "a.zip", FILES)
    zipped(tmp_path / "D.ZIP", FILES)
    tarred(tmp_path / "b.tar", {"x.svg": b"<svg/>", "./y.png": picture(7)})
    (tmp_path / "c.zip").mkdir()  # a folder, in spite of its name
    (tmp_path / "c.zip" / "z.png").write_bytes(picture(8))
    names = [
        "a.zip/pictures/1.png",
        "b.tar/y.png",
        "c.zip/z.png",
        "a.zip/no.png",
        "b.tar/x.svg",
        "a.zip/pictures/1.png",
        "D.ZIP/pictures/1.png",
    ]
    source = table(tmp_path, names)
    block = everything(source)
    assert [block.images[row] for row in (0, 1, 2, 5, 6)] == [picture(n) for n in (1, 7, 8, 1, 1)]
    assert block.bad.keys() == {3, 4}
    assert ("no such file" in block.bad[3], ".svg" in block.bad[4]) == (True, True)
    assert block.keys[5] == b"a.zip/pictures/1.png#5"
    assert [file.file for file in source.files] == ["t.csv", "D.ZIP", "a.zip", "b.tar", "images"]
    assert "a.zip/no.png: no such file" in capsys.readouterr().err


def test_an_archive_elsewhere_is_not_read_without_leave(tmp_path):
    (tmp_path / "in").mkdir()
    zipped(tmp_path / "images.zip", FILES)
    with pytest.raises(DataError, check=at("t.csv", "images.zip", "not in the folder", part="row 0")):
        table(tmp_path / "in", ["../images.zip/pictures/0.png"])
    (tmp_path / "in" / "link.zip").symlink_to(tmp_path / "images.zip")
    with pytest.raises(DataError, check=at("t.csv", "link.zip", "not in the folder", part="row 0")):
        table(tmp_path / "in", ["link.zip/pictures/0.png"])
    names = ["link.zip/pictures/0.png", "../images.zip/pictures/1.png"]
    block = everything(table(tmp_path / "in", names, follow_links=True))
    assert block.images == [picture(0), picture(1)]


def test_the_last_of_two_members_of_a_name_counts_as_when_unpacking(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in (1, 2):
            info = tarfile.TarInfo("x.png")
            info.size = len(picture(row))
            archive.addfile(info, io.BytesIO(picture(row)))
    assert everything(table(tmp_path, ["a.tar/x.png"])).images == [picture(2)]


def test_a_sparse_member_of_a_tar_is_an_invalid_row_as_its_bytes_are_in_parts(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, sparse in (("whole.png", ()), ("x.png", (("major", "1"), ("minor", "0"), ("realsize", "5120")))):
            info = tarfile.TarInfo(name)
            info.size = 1024
            info.pax_headers = {f"GNU.sparse.{field}": value for field, value in sparse}
            archive.addfile(info, io.BytesIO(b"1\n0\n512\n".ljust(1024, b"\0")))  # one part, of 512 bytes from 0 on
    block = everything(table(tmp_path, ["a.tar/whole.png", "a.tar/x.png"]))
    assert block.bad[1].startswith("is stored in parts in its tar")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_changes_after_it_was_opened_is_not_read(tmp_path, kind):
    path = WRITERS[kind](tmp_path / f"a.{kind}", FILES)
    archive = archives.opened(os.fsencode(path))
    member = archive.find(b"pictures/3.png")
    assert archive.read(member) == picture(3)
    WRITERS[kind](path, {name: FILES[name] for name in reversed(FILES)})
    with pytest.raises(DataError, check=at(path.name)):
        archive.read(member)


def test_a_damaged_member_of_a_zip_is_an_invalid_row(tmp_path):
    path = zipped(tmp_path / "a.zip", FILES, zipfile.ZIP_STORED)
    at_ = path.read_bytes().index(picture(3)) + 20
    with open(path, "r+b") as file:
        file.seek(at_)
        file.write(b"?!")
    names = [f"a.zip/pictures/{row}.png" for row in range(COUNT)]
    assert {row: "CRC-32" in reason for row, reason in everything(table(tmp_path, names)).bad.items()} == {3: True}
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("pictures/0.png", picture(0))
    assert "method 14" in everything(table(tmp_path, names[:1])).bad[0]
    data = bytearray(zipped(tmp_path / "a.zip", FILES).read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + place] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    assert "encrypted" in everything(table(tmp_path, names[:1])).bad[0]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_is_cut_short_is_named(tmp_path, kind):
    path = WRITERS[kind](tmp_path / f"a.{kind}", FILES)
    whole = path.read_bytes()
    ends = [size for size in range(0, len(whole), 512) if kind == "zip" or size < len(whole.rstrip(b"\0")) + 512]
    for size in {*ends, len(whole) - 1} if kind == "zip" else {*ends, *(size + 100 for size in ends[:-1])}:
        path.write_bytes(whole[:size])
        archives._opened.cache_clear()
        with pytest.raises(DataError, check=at(f"a.{kind}")):
            table(tmp_path, [f"a.{kind}/pictures/{row}.png" for row in range(COUNT)])


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.quick(1)
def test_flipped_bytes_are_an_error_or_an_invalid_row(tmp_path, kind):
    path = WRITERS[kind](tmp_path / f"a.{kind}", FILES)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        data = bytearray(whole)
        data[int(random.integers(len(data)))] ^= int(random.integers(1, 256))
        path.write_bytes(data)
        archives._opened.cache_clear()
        try:
            block = everything(table(tmp_path, [f"a.{kind}/pictures/{row}.png" for row in range(COUNT)]))
        except DataError:
            continue
        if kind == "zip":
            assert all(block.images[row] == picture(row) for row in range(COUNT) if row not in block.bad)


def test_what_follows_the_end_of_a_tar_is_refused(tmp_path):
    path = tarred(tmp_path / "a.tar", FILES)
    whole = path.read_bytes()
    for more in (tarred(tmp_path / "b.tar", {"x.png": picture(1)}).read_bytes(), bytes(2 << 20)):
        path.write_bytes(whole + more)
        with pytest.raises(DataError, check=at("a.tar", "after its end")):
            table(tmp_path, ["a.tar/pictures/0.png"])


def test_an_archive_that_changes_is_an_error(tmp_path):
    zipped(tmp_path / "a.zip", FILES)
    source = table(tmp_path, ["a.zip/pictures/0.png"])
    zipped(tmp_path / "a.zip", {**FILES, "more": b"more"})
    os.utime(tmp_path / "a.zip", ns=(1, 1))
    with pytest.raises(DataError, check=at("a.zip", "changed")):
        everything(source)


def test_advice_names_the_archive_beside_the_table(tmp_path):
    zipped(tmp_path / "images.zip", FILES)
    with pytest.raises(DataError, check=said(f"give --image_dir={tmp_path}/images.zip/pictures")):
        table(tmp_path, ["0.png"])
    with pytest.raises(DataError, check=said("images.zip")) as raised:
        table(tmp_path, ["pictures/0.png"])
    assert str(raised.value).endswith("/images.zip")
    with pytest.raises(UsageError, check=said("--image_dir", "archive")):
        table(tmp_path, ["0.png"], image_dir=str(tmp_path / "no.zip"))


def test_the_shards_are_those_of_the_files_themselves(tmp_path, contents, capsys):
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    zipped(tmp_path / "images.zip", FILES)
    table(tmp_path, FILES)
    made = []
    for place in (tmp_path, tmp_path / "images.zip"):
        flags = ["--dataset=image_table", f"--source={tmp_path}/t.csv", f"--image_dir={place}", "--num_shards=2"]
        made.append(convert_in_process(*flags, f"--data_dir={tmp_path}/out{len(made)}"))
    one, other = ({n: d for n, d in contents(out).items() if ".tfrecord" in n} for out in made)
    assert len(one) == 2
    assert one == other
    validate.main([str(made[1])])
    convert_command("convert", [*flags, f"--data_dir={tmp_path}/dry", "--dry_run"])
    assert "none invalid" in capsys.readouterr().out


FOLDERS = {
    **{f"train/{'ab'[row % 2]}/deep/{row}.png": picture(row) for row in range(6)},
    **{f"val/{'ba'[row % 2]}/{row}": picture(row + 6) for row in range(3)},  # without an ending
    "train/a/notes.txt": b"no image",
    "train/b/.hidden.png": b"no image",
    "__MACOSX/train/a/0.png": b"no image",
}


def converted(folder, source, *flags):
    convert_in_process("--dataset=image_folder", f"--source={source}", f"--data_dir={folder}", *flags)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.quick(2)
def test_folders_in_an_archive_give_the_bytes_of_the_unpacked_folder(tmp_path, kind, capsys):
    fill(tmp_path / "images", FOLDERS)
    order = dict(sorted(FOLDERS.items(), key=lambda item: item[0][::-1]))
    path = WRITERS[kind](tmp_path / f"images.{kind[-3:]}", order)
    flags = ("--split=train:0.7,test:0.3", "--group_by=file:([0-9]+)")
    expected = (
        converted(tmp_path / "plain", tmp_path / "images"),
        converted(tmp_path / "new", tmp_path / "images", *flags),
    )
    said = capsys.readouterr().err
    assert "skipped 1 file: no image (.txt)" in said
    assert expected == (converted(tmp_path / "one", path), converted(tmp_path / "two", path, *flags))
    assert capsys.readouterr().err == said.replace(str(tmp_path / "images"), str(path))
    below = converted(tmp_path / "below", path / "train"), converted(tmp_path / "three", tmp_path / "images/train")
    assert below[0] == below[1]


class Foreign(zipfile.ZipInfo):
    """A member whose name is not marked as UTF-8."""

    stored = b""

    def _encodeFilenameFlags(self):  # noqa: N802, Python's name
        return self.stored, 0


def test_names_are_those_that_unzip_gives(tmp_path):
    """The Finder of macOS writes UTF-8 without its mark, DOS cp437; old .NET has backslashes."""
    unix, dos = 3, 0
    names = [
        (unix, "Zürich/日本 1.png".encode(), "Zürich/日本 1.png"),
        (dos, "Köln/1.png".encode("cp437"), "Köln/1.png"),
        (dos, b"cat\\2.png", "cat/2.png"),
        (unix, b"d/a\\b.png", "d/a\\b.png"),
    ]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for row, (system, stored, _) in enumerate(names):
            member = Foreign(f"{row}")
            member.create_system, member.stored = system, stored
            archive.writestr(member, picture(row))
    source = open_source(SourceOptions("image_folder", str(tmp_path / "x.zip")))
    assert source.class_names == ("Köln", "Zürich", "cat", "d")
    block = everything(source)
    found = dict(zip(block.keys, block.images, strict=True))
    assert found == {name.encode(): picture(row) for row, (_, _, name) in enumerate(names)}


def linked_zip(path, files):
    """Writes a zip with a link to a folder, as `zip --symlinks` does."""
    zipped(path, files)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("b")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "a")
    return path


def linked(path, files):
    """Writes a tar with a link to a file."""
    tarred(path, files)
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0.png"
        archive.addfile(link)
    return path


def gzipped(path, files):
    path.write_bytes(gzip.compress(tarred(path, files).read_bytes()))
    return path


def cut(path, files):
    path.write_bytes(zipped(path, files).read_bytes()[:-30])
    return path


@pytest.mark.parametrize(
    ("write", "name", "files", "facts"),
    [
        (zipped, "x.zip", {}, ["x.zip", "has no class folders"]),
        (tarred, "x.tar", {"readme.txt": b"x"}, ["x.tar", "has no class folders"]),
        (zipped, "x.zip", {"a/readme.txt": b"x"}, ["class 'a' has no image", "skipped 1 file"]),
        (zipped, "x.zip", {"0.png": picture(0)}, ["x.zip/0.png", "is not in a class folder"]),
        (linked, "x.tar", {"a/0.png": picture(0)}, ["x.tar/a/link.png", "is a link in its tar; unpack the tar"]),
        (linked_zip, "x.zip", {"a/0.png": picture(0)}, ["x.zip/b", "is a link in its zip; unpack the zip"]),
        (cut, "x.zip", {"a/0.png": picture(0)}, ["x.zip", "is not a whole zip archive", "get the file again"]),
        (zipped, "x.tar", {"a/0.png": picture(0)}, ["is not a whole tar archive", "it is a zip: call it .zip"]),
        (tarred, "x.zip", {"a/0.png": picture(0)}, ["is not a whole zip archive", "it is a tar: call it .tar"]),
        (gzipped, "x.tar", {"a/0.png": picture(0)}, ["is not a whole tar archive", "it is gzipped: gunzip it"]),
        (gzipped, "x.tar.gz", {"a/0.png": picture(0)}, ["is gzipped", "gunzip it, and give the .tar"]),
        (tarred, "x.rar", {"a/0.png": picture(0)}, ["x.rar", "neither a folder nor an archive (.zip, .tar)"]),
        (
            zipped,
            "x.zip",
            {"a/0.png": b"", "../a/1.png": b""},
            ["has the member '../a/1.png'", "outside of its folder"],
        ),
        (tarred, "x.tar", {"a/0.png": b"", "b/../../a.png": b""}, ["has the member '../a.png'"]),
        (zipped, "x.zip", {"a/0.png": b"", "a": b""}, ["has both a file and a folder of the name 'a'"]),
        (zipped, "x.zip", {"a": b"", "a/0.png": b""}, ["has both a file and a folder of the name 'a'"]),
    ],
)
def test_archives_without_folders_of_images_are_refused(tmp_path, write, name, files, facts):
    path = write(tmp_path / name, files)
    with pytest.raises(DataError, check=said(*facts)):
        open_source(SourceOptions("image_folder", str(path)))


def test_an_archive_without_the_folder_or_with_a_damaged_image_is_refused(tmp_path):
    path = zipped(tmp_path / "x.zip", {"in/a/0.png": picture(0), "in/b/1.png": picture(1)}, zipfile.ZIP_STORED)
    with pytest.raises(DataError, check=said("x.zip", "has no 'out'")):
        open_source(SourceOptions("image_folder", str(path / "out")))
    assert open_source(SourceOptions("image_folder", str(path / "in"))).class_names == ("a", "b")
    path.write_bytes(path.read_bytes().replace(picture(1)[-20:], bytes(20)))
    with pytest.raises(DataError, check=said("in/b/1.png", "damaged in its zip: its CRC-32 is wrong")):
        open_source(SourceOptions("image_folder", str(path / "in")))
