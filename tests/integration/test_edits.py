"""Labels set and records deleted while a run goes on, in real processes: edits are killed, runs resume or refuse."""

import shutil

import pytest

from pipeline import RandomAccess, manifest
from pipeline.errors import DataError
from pipeline.manifest import naming
from tests.helpers import forked
from tests.helpers.converting import killed_in
from tests.helpers.datasets import files_of
from tests.helpers.lanes import some_slow
from tests.helpers.runs import checkpoint_bytes, finish, kill, start, succeed, train, wait_for_step
from tests.integration.test_versions import FLAGS, convert, write_images

LABELS = {"train/a/0.png": "b", "train/b/1.png": "a", "train/a/34.png": "c"}
GONE = ["train/a/2.png", "train/b/1.png", "test/b/3.png"]  # of one, the label was set before


def edit(data, *flags):
    return forked.output(["-m", "beam_jobs.edit", data, *flags])


def bytes_of(data, key):
    """Returns the pixels and the key of a record."""
    split = key.partition("/")[0]
    found = [record for record in RandomAccess(data, split) if bytes(record["key"]) == key.encode()]
    return [found[0]["image"].tobytes(), key.encode()]


def settled(data):
    """Returns the files of a data set, without what has the time of a deletion."""
    return {name: content for name, content in files_of(data).items() if not name.endswith(".deleted")}


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A data set, with labels set, and with records deleted after that; and the table of the labels."""
    folder = tmp_path_factory.mktemp("edited")
    source = write_images(folder / "source", range(70), ["train", "test"])
    convert(source, folder / "old", "--num_shards=train:3,test:1", "--image_encoding=raw")
    (folder / "labels.csv").write_text("key,label\n" + "".join(f"{key},{label}\n" for key, label in LABELS.items()))
    shutil.copytree(folder / "old", folder / "set")
    edit(folder / "set", f"--set_labels={folder / 'labels.csv'}")
    shutil.copytree(folder / "set", folder / "deleted")
    out = edit(folder / "deleted", f"--delete={','.join(GONE)}")
    assert "records deleted: 3" in out
    return folder


# Files in the inner folder, then their moves, the old manifest's copy, its card, the log, the manifest.
@pytest.mark.parametrize("moment", some_slow([*range(1, 26)], [6, 14, 22]))
def test_killed_at_any_change_the_old_labels_or_the_new_ones_are_whole(moment, edited, tmp_path):
    old, out = edited / "old", shutil.copytree(edited / "old", tmp_path / "out")
    flags = [str(out), f"--set_labels={edited / 'labels.csv'}"]
    killed_in("opened", moment, *flags, command="edit")
    assert manifest.load(f"{out}@1") == manifest.load(old)
    assert manifest.load(out).version in (1, 2)
    outdated = {naming.CROISSANT}  # it is replaced just before the manifest
    if manifest.load(out).version == 2:
        outdated |= {naming.MANIFEST, *naming.TFDS_FILES}
    assert {name: data for name, data in files_of(old).items() if name not in outdated}.items() <= files_of(out).items()
    edit(*flags)
    assert files_of(out) == files_of(edited / "set")
    assert (out / naming.CARD).exists()
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


# As above, and then, for each of two versions: what is left of it, its shards, sidecars, columns, card, manifest.
@pytest.mark.parametrize("moment", some_slow([*range(1, 61)], [9, 24, 33, 40, 49, 58]))
def test_killed_at_any_change_of_a_deletion_the_same_command_finishes(moment, edited, tmp_path):
    old, out = edited / "set", shutil.copytree(edited / "set", tmp_path / "out")
    flags = [str(out), f"--delete={','.join(GONE)}"]
    assert "\ndeleted:" not in killed_in("opened", moment, *flags, command="edit")
    if manifest.load(out).version == 2:
        kept = {name: data for name, data in files_of(old).items() if name != naming.CROISSANT}
        assert kept.items() <= files_of(out).items()
        assert [manifest.load(f"{out}@{version}").version for version in (1, 2)] == [1, 2]
    else:
        for version in (1, 2):
            with pytest.raises(DataError, match=f"version {version} held records that were deleted"):
                manifest.load(f"{out}@{version}")
    assert "\ndeleted: no file of the data set" in edit(*flags)
    assert settled(out) == settled(edited / "deleted")
    assert (out / naming.CARD).exists()
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_bytes_of_deleted_records_are_in_no_file(edited):
    for key in GONE:
        for content in bytes_of(f"{edited / 'old'}@1", key):
            holding = {
                path.name for path in (edited / "set").rglob("*") if path.is_file() and content in path.read_bytes()
            }
            assert holding  # so that the search finds what it looks for
            assert not [p for p in (edited / "deleted").rglob("*") if p.is_file() and content in p.read_bytes()]
    left = [record["key"] for split in ("train", "test") for record in RandomAccess(edited / "deleted", split)]
    assert (len(left), len({*left})) == (137, 137)
    process = forked.Process(["-m", "beam_jobs.validate", str(edited / "deleted"), "--deep"])
    assert "the data set matches its manifest: 137 records" in succeed(process)[0]


@pytest.mark.slow
def test_a_run_goes_on_over_new_labels_and_is_refused_after_a_deletion(edited, tmp_path):
    data, still = shutil.copytree(edited / "old", tmp_path / "data"), edited / "old"
    run, calm = tmp_path / "run", tmp_path / "calm"
    train(still, calm, *FLAGS, "--train_steps=30")
    killed = start(data, run, *FLAGS, "--train_steps=30")
    wait_for_step(killed, 8)
    kill(killed)
    (tmp_path / "labels.csv").write_text("key,label\ntrain/a/0.png,b\ntrain/b/1.png,a\n")
    edit(data, f"--set_labels={tmp_path / 'labels.csv'}")
    out = train(data, run, *FLAGS, "--train_steps=30")
    assert f"trains on version 1 of {data}\n" in out
    assert (
        f"the newest is version 2, of as many examples; to move to it at the end of an epoch: --data_dir={data}@2"
        in out
    )
    assert checkpoint_bytes(run, 30) == checkpoint_bytes(calm, 30)

    out = train(f"{data}@2", shutil.copytree(run, tmp_path / "moved"), *FLAGS, "--train_steps=40")
    assert f"trains on version 1, from step 32 on version 2 of {data}\n" in out
    edit(data, f"--delete={GONE[0]},{GONE[2]}")
    said = f"{data}: version 1 held records that were deleted on 20"
    commands = {
        "run": [f"--data_dir={data}", *FLAGS, "--train_steps=40"],
        "evaluate": [],
        "predict": [f"{edited / 'source/test/a/0.png'}"],
        "export": [f"--output={tmp_path / 'model'}"],
        "replay": ["--step=17"],
    }
    found = {
        name: finish(forked.Process(["-m", f"trainer.{name}", f"--model_dir={run}", *flags]))[0]
        for name, flags in commands.items()
    }
    found |= {
        name: finish(forked.Process(["-m", f"pipeline.{name}", f"--model_dir={run}", *flags]))[0]
        for name, flags in {"audit": [], "inspect": ["--step=7"]}.items()
    }
    assert {name: (code, err.count("\n"), said in err) for name, (code, _, err) in found.items()} == dict.fromkeys(
        found, (1, 1, True)
    )
    assert "another --model_dir and --initialize_from for its weights" in found["run"][2]
    assert f"; use {data}@3" in found["evaluate"][2]
    process = forked.Process(["-m", "trainer.evaluate", f"--model_dir={run}", f"--data_dir={data}@3"])
    assert "(69 examples" in succeed(process)[0]
    assert "step 45" in train(data, run, *FLAGS, "--train_steps=45", "--allow_order_change")
