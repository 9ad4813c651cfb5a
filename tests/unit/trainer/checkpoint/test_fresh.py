import json
import os
import pathlib

import pytest

from pipeline.errors import RerunError, UsageError
from trainer.checkpoint import fresh
from trainer.config import TrainConfig, parse
from trainer.run_folder import RunFolder

STAYS = ["config.yaml", ".trainer.fresh", ".trainer.lock", ".trainer.metrics", "launch/status.json"]
OF_A_RUN = [
    *("ckpt-20.index", "ckpt-20.data-00000-of-00001", "ckpt-40.index", "ckpt-40.data-00000-of-00002"),
    *("checkpoint", "checkpoint.tmp", "saving-ab1/ckpt-60.index", "saving-ab1/ckpt-60_temp/part-0"),
    *("best/ckpt-20.index", "best/ckpt-20.data-00000-of-00001", "best/checkpoint", "best/saving-x/ckpt-40.index"),
    *("logs/events.out.tfevents.0000000001.000000001.host.1.v2", "logs/evaluate/events.out.tfevents.1.host.1.v2"),
    *("logs/plugins/profile/2026/host.xplane.pb", "metrics.jsonl", "config.yaml", "launch/status.json"),
    *("xla_algorithms.txt", "xla_algorithms.txt.tmp", ".trainer.algorithms.txt"),
    *("order.json", ".trainer.lock", ".trainer.metrics", "launch/logs/worker-0.stdout.log"),
]
LINE = b'{"step": 5, "time": 1.5, "train/loss": 0.3}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv(fresh.VARIABLE, raising=False)
    return filled(RunFolder(tmp_path / "run"))


def filled(folder):
    for name in OF_A_RUN:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_bytes(LINE if "metrics" in name else b"")
    return folder


def config_of(folder, **flags):
    return TrainConfig.of(data_dir="D", model_dir=folder.path, **flags)


def files_in(folder):
    return {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if not path.is_dir()}


def test_what_a_run_wrote_is_removed_and_its_flags_are_those_of_the_new_one(folder):
    config = fresh.begin(config_of(folder, fresh=True, seed=7))
    assert not config.run.fresh
    assert files_in(folder) == {*STAYS, "launch/logs/worker-0.stdout.log"}
    resumed = parse([f"--model_dir={folder.path}"])
    assert (resumed.order.seed, resumed.run.fresh) == (7, False)


def test_without_the_flag_nothing_is_removed(folder):
    before = files_in(folder)
    assert fresh.begin(config_of(folder)) == config_of(folder)
    assert files_in(folder) == before


def test_another_process_than_the_chief_leaves_the_folder_alone(folder):
    before = files_in(folder)
    assert not fresh.begin(config_of(folder, fresh=True), is_chief=False).run.fresh
    assert files_in(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        *("notes.txt", "manifest.json", "ckpt-20.index.bak", "ckpt-x.index", "exported/export.json", "other.jsonl"),
        *("best/notes", "logs/notes.txt", "checkpoint.d/checkpoint", ".hidden", "saving-1"),
        *("events.jsonl", "heartbeats", "evaluate"),  # names of places that lie in its subfolders
    ],
)
def test_where_other_files_lie_nothing_is_removed(name, folder):
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).write_bytes(LINE.replace(b"0.3", b"0.4"))
    before = files_in(folder)
    with pytest.raises(UsageError) as caught:
        fresh.begin(config_of(folder, fresh=True))
    path = pathlib.Path(caught.value.path)
    assert path in (folder.path / name, (folder.path / name).parent)
    assert path != folder.path
    assert files_in(folder) == before


@pytest.mark.parametrize("name", ["logs", "best", "ckpt-20.index", "best/ckpt-20.index", "logs/plugins"])
def test_what_lies_behind_a_link_stays(name, folder, tmp_path):
    (folder.path / name).rename(tmp_path / "elsewhere")
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError) as caught:
        fresh.begin(config_of(folder, fresh=True))
    assert caught.value.path == str(folder.path / name)
    assert (folder.path / "ckpt-40.index").exists()


def test_a_file_that_a_later_release_adds_to_the_folder_is_of_the_run(folder, monkeypatch):
    monkeypatch.setattr(RunFolder, "margins", property(lambda self: self.path / "margins.txt"), raising=False)
    for name in ("margins.txt", "margins.txt.tmp"):
        (folder.path / name).touch()
    fresh.begin(config_of(folder, fresh=True))
    assert files_in(folder) == {*STAYS, "launch/logs/worker-0.stdout.log"}


def test_an_empty_folder_is_fine(tmp_path):
    folder = RunFolder(tmp_path)
    fresh.begin(config_of(folder, fresh=True))
    assert files_in(folder) == {".trainer.fresh", "config.yaml"}


def test_the_next_start_removes_what_a_kill_left(folder, monkeypatch):
    """After each removal in turn: the next start is without the flag, and would resume from the leftovers."""
    unlink, number, kills = pathlib.Path.unlink, 0, 0
    for at in range(12):

        def killed(path, *arguments, limit=at, **options):
            nonlocal number
            if number == limit:
                raise KeyboardInterrupt
            number += 1
            unlink(path, *arguments, **options)

        filled(folder)
        number = 0
        with monkeypatch.context() as patched:
            patched.setattr(pathlib.Path, "unlink", killed)
            try:
                fresh.begin(config_of(folder, fresh=True))
            except KeyboardInterrupt:
                kills += 1
                assert files_in(folder) > set(STAYS)
        fresh.begin(config_of(folder))
        assert not [name for name in files_in(folder) if "ckpt" in name]
    assert kills == 11  # the last two removed all eleven files outside best and logs


@pytest.mark.parametrize("name", ["mine.tmp", "logs/mine.txt"])
def test_what_has_come_since_a_kill_is_not_removed_with_the_rest(name, folder):
    folder.fresh_note.write_text("removing \n")
    (folder.path / name).touch()
    before = files_in(folder)
    for flags in ({}, {"fresh": True}):
        with pytest.raises(UsageError) as caught:
            fresh.begin(config_of(folder, **flags))
        assert caught.value.path == str(folder.path / name)
    assert files_in(folder) == before


def test_a_job_with_a_name_begins_anew_once(folder, monkeypatch):
    monkeypatch.setenv(fresh.VARIABLE, "job 12")
    fresh.begin(config_of(folder, fresh=True))
    (folder.path / "ckpt-10.index").write_bytes(b"")
    fresh.begin(config_of(folder, fresh=True))
    assert (folder.path / "ckpt-10.index").exists()
    monkeypatch.setenv(fresh.VARIABLE, "job 13")
    fresh.begin(config_of(folder, fresh=True))
    assert not (folder.path / "ckpt-10.index").exists()


def test_a_command_that_would_begin_anew_is_not_to_be_rerun_as_it_is(folder, monkeypatch):
    def advice(**flags):
        with pytest.raises(RerunError) as caught, fresh.advised(config_of(folder, **flags)):
            raise RerunError("stopped; rerun the same command to resume")
        return caught.value.advice

    assert "--fresh" in advice(fresh=True)
    assert advice() == ""
    monkeypatch.setenv(fresh.VARIABLE, "1")
    assert advice(fresh=True) == ""


def test_weights_and_keys_of_the_run_that_goes(folder, tmp_path):
    with pytest.raises(UsageError, match=r"^--initialize_from=.*ckpt-40 with --fresh"):
        config_of(folder, fresh=True, initialize_from=str(folder.path / "ckpt-40"))
    config_of(folder, fresh=True, initialize_from=str(tmp_path / "run2" / "ckpt-40"))
    (tmp_path / "keys").mkdir()
    config = config_of(folder, fresh=True, log_keys=str(tmp_path / "keys"))
    (tmp_path / "keys" / "worker-00000.jsonl").write_text(json.dumps({"step": 1}))
    with pytest.raises(UsageError, match="--log_keys=.*keys with --fresh"):
        fresh.begin(config)
    assert os.path.exists(folder.path / "ckpt-40.index")
