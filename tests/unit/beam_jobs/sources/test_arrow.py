"""Arrow files and streams, Feather, and the folders of Hugging Face's `save_to_disk`."""

import contextlib
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from beam_jobs import validate
from beam_jobs.sources import arrow, open_source
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Feature
from tests.helpers.converting import convert_in_process
from tests.helpers.raised import at, said
from tests.helpers.round_trips import everything, picture

NAMES = ["dog", "ape", "cat"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(rows, **more):
    images = pa.array([{"bytes": picture(row), "path": f"{row}.png"} for row in rows], IMAGE)
    return pa.table({"image": images, "label": [row % 3 for row in rows], "id": list(rows), **more})


def stream(path, content, chunk=4):
    """Writes a table as `datasets` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=chunk)
    return path


def saved(folder, files, split="train", features=FEATURES, **state):
    """Writes a folder as `Dataset.save_to_disk` does: {name: rows}."""
    for name, rows in files.items():
        stream(folder / name, table(rows))
    listed = [{"filename": name} for name in files]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": split, **state}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features, "citation": ""}))
    return folder


def opened(source, **options):
    return open_source(SourceOptions("arrow", str(source), **options))


WRITERS = {
    "stream.arrow": stream,
    "file.arrow": lambda path, content: feather.write_feather(content, path, "uncompressed", chunksize=4),
    "lz4.feather": lambda path, content: feather.write_feather(content, path, "lz4", chunksize=4),
    "zstd.ipc": lambda path, content: feather.write_feather(content, path, "zstd", chunksize=4),
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_read_by_record_batch_in_any_order(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, table(range(10)))
    source = pickle.loads(pickle.dumps(opened(path, keep_columns=("id",))))
    assert (source.splits, source.class_names) == ({"train": 10}, ("0", "1", "2"))
    assert source.chunks("train").tolist() == [4, 4, 2]
    rows = np.array([9, 0, 5, 4, 1])
    block = source.read("train", rows)
    assert block.images == [picture(row) for row in rows]
    assert block.labels.tolist() == [row % 3 for row in rows]
    assert block.extra["id"].tolist() == rows.tolist()
    assert block.keys.tolist() == [f"{name}#{row}".encode() for row in rows]


def test_categories_of_pandas_are_classes(tmp_path):
    content = table(range(10))
    names = pa.array([NAMES[row % 3] for row in range(10)]).dictionary_encode()
    content = content.set_column(1, "label", names)
    feather.write_feather(content, tmp_path / "a.feather", chunksize=4)
    source = opened(tmp_path / "a.feather")
    assert (source.class_names, everything(source).labels.tolist()) == (
        ("ape", "cat", "dog"),
        [[2, 0, 1][r % 3] for r in range(10)],
    )
    with pytest.raises(DataError, check=at("b.arrow", "stream with dictionaries")):
        opened(stream(tmp_path / "b.arrow", content))


def test_a_saved_dataset_has_the_names_of_its_classes_and_its_split(tmp_path):
    folder = saved(
        tmp_path / "d", {"data-00000-of-00002.arrow": range(5), "data-00001-of-00002.arrow": range(5, 9)}, "test"
    )
    stream(folder / "cache-0123456789abcdef.arrow", table(range(50)))  # which `map` leaves
    source = opened(folder)
    assert (source.splits, source.class_names) == ({"test": 9}, ("dog", "ape", "cat"))
    assert everything(source, "test").images == [picture(row) for row in range(9)]
    assert [file.file for file in source.files] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for split, wanted in ((None, "train"), ("train[:50%]", "train"), ("val", "validation"), ("mine", "mine")):
        saved(folder, {"data-00000-of-00001.arrow": range(3)}, split)
        assert opened(folder).splits == {wanted: 3}


def test_a_saved_dataset_dict_has_a_folder_for_each_split(tmp_path):
    for split, rows in (("train", 6), ("test", 4), ("more", 2)):
        saved(tmp_path / split, {"data-00000-of-00001.arrow": range(rows)}, "train")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "more"]}))
    assert opened(tmp_path).splits == {"train": 6, "test": 4, "more": 2}
    chosen = opened(tmp_path, splits=("more", "test"))
    assert chosen.splits == {"test": 4, "more": 2}
    assert [file.file for file in chosen.files] == ["more/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"]
    with pytest.raises(UsageError, check=said("--splits", "'val'")):
        opened(tmp_path, splits=("val",))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "more", "gone"]}))
    with pytest.raises(DataError, check=at(tmp_path, "'gone'")):
        opened(tmp_path)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "more", "a.b"]}))
    with pytest.raises(DataError, check=at("dataset_dict.json", "'a.b'")):
        opened(tmp_path)


def test_other_folders_have_splits_by_names_and_partitions(tmp_path):
    for split, year in (("train", 2020), ("train", 2021), ("test", 2020)):
        stream(tmp_path / f"year={year}" / f"{split}.arrow", table(range(3)))
    source = opened(tmp_path)
    assert (source.splits, source.features) == ({"train": 6, "test": 3}, {"year": Feature("int64")})
    assert everything(source).extra["year"].tolist() == [2020] * 3 + [2021] * 3


def test_a_column_tells_the_splits(tmp_path):
    stream(tmp_path / "a.arrow", table(range(4), part=["train", "test", "train", "val"]))
    assert opened(tmp_path / "a.arrow", split_column="part").splits == {"train": 2, "validation": 1, "test": 1}


def test_what_is_missing_of_a_saved_dataset_is_named(tmp_path):
    folder = saved(tmp_path, {"data-00000-of-00001.arrow": range(3), "more.arrow": range(3)})
    (folder / "more.arrow").unlink()
    with pytest.raises(DataError, check=at("more.arrow", "is missing", "state.json")):
        opened(folder)
    saved(folder, {"data-00000-of-00001.arrow": range(3)}, _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, check=at("state.json", "index file")):
        opened(folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(DataError, check=at("state.json", "not JSON")):
        opened(folder)
    (folder / "state.json").write_text('{"_data_files": 3}')
    with pytest.raises(DataError, check=at("state.json", "which files")):
        opened(folder)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_cut_short_anywhere_is_refused(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, table(range(10)))
    whole = path.read_bytes()
    for size in sorted({*range(0, len(whole), max(1, len(whole) // 60)), *range(len(whole) - 12, len(whole))}):
        path.write_bytes(whole[:size])
        arrow._index.cache_clear()
        with pytest.raises(DataError, check=at(name)):
            opened(path)


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow"])
def test_damaged_metadata_is_an_error_and_nothing_worse(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path, table(range(10)))
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(whole)
        data[int(random.integers(len(data)))] ^= int(random.integers(1, 256))
        path.write_bytes(data)
        arrow._index.cache_clear()
        with contextlib.suppress(DataError, UsageError):
            everything(opened(path))  # pixels and labels have no checksum


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.arrow").write_bytes(b"hello, world, hello")
    with pytest.raises(DataError, check=at("a.arrow", "not an Arrow file")):
        opened(tmp_path / "a.arrow")
    (tmp_path / "a.arrow").write_bytes(b"FEA1" + bytes(100))
    with pytest.raises(DataError, check=at("a.arrow", "Feather version 1")):
        opened(tmp_path / "a.arrow")
    with pytest.raises(UsageError, check=said("--source")):
        opened("")


def test_a_record_batch_is_bounded(tmp_path, monkeypatch):
    stream(tmp_path / "a.arrow", table(range(10)), chunk=10)
    monkeypatch.setattr(arrow, "MAX_GROUP_BYTES", 1000)
    with pytest.raises(DataError, check=at("a.arrow", "record batch 0", "10 rows", "1,000")):
        opened(tmp_path / "a.arrow")


def test_a_file_that_changes_is_an_error(tmp_path):
    source = opened(stream(tmp_path / "a.arrow", table(range(10))))
    stream(tmp_path / "a.arrow", table(range(11)))
    with pytest.raises(DataError, check=at("a.arrow", "changed")):
        everything(source)


def test_the_command_converts_it_and_rows_without_bytes_are_invalid(tmp_path, capsys):
    folder = saved(tmp_path / "d", {"data-00000-of-00001.arrow": range(9)})
    content = table(range(3)).set_column(0, "image", pa.array([{"bytes": None, "path": "a.png"}] * 3, IMAGE))
    stream(folder / "data-00000-of-00001.arrow", pa.concat_tables([table(range(9)), content]))
    given = [
        "--dataset=arrow",
        f"--source={folder}",
        "--keep_columns=id",
        "--num_shards=2",
        f"--data_dir={tmp_path}/out",
    ]
    with pytest.raises(DataError, check=said("path is not followed")):
        convert_in_process(*given)
    out = convert_in_process(*given, "--max_rejects=3")
    made = manifest.load(out)
    assert made.class_names == ("dog", "ape", "cat")
    assert made.splits["train"].label_histogram == (3, 3, 3)
    validate.main([str(out)])
    assert "the data set matches its manifest" in capsys.readouterr().out
