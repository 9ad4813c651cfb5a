"""The audit by a run's stored flags: its workers, and which flags also hold for other data."""

import json
import shutil

import pytest

from pipeline.audit import __main__ as audit
from pipeline.errors import UsageError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import write_dataset
from trainer.config import TrainConfig, file

HOSTS = {"worker_hosts": "a:1,b:1,c:1,d:1,e:1", "ps_hosts": "f:1", "job_name": "worker", "task_index": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    for name in ("a", "b"):
        write_dataset(path / name, (20, 20))
    return path


@pytest.fixture
def audited(folder, tmp_path, capsys):
    """Returns a function that stores a run's flags, and returns the output of an audit of them."""

    def audited(*arguments, **flags):
        config = TrainConfig.of(**{"data_dir": f"{folder}/a", "global_batch_size": 12} | flags, model_dir=str(tmp_path))
        groups = {name: vars(getattr(config, name)) for name in vars(config) if name[0] != "_"}
        file.write(config.run.folder.config, groups)
        capsys.readouterr()
        audit.main([f"--model_dir={tmp_path}", *arguments])
        return capsys.readouterr().out

    return audited


def test_a_job_with_parameter_servers_shares_steps_only_if_it_is_synchronous(audited):
    job = {"strategy": "parameter_server", **HOSTS}
    assert "topology: 1 worker, 1 replica\n" in audited(**job)  # a fifth of 12 rows is no number of rows
    assert "topology: 4 workers, 4 replicas\n" in audited(**job, sync=True, replicas_to_aggregate=4)
    assert "topology: 5 workers, 5 replicas\n" in audited(**job, sync=True, global_batch_size=20)
    del job["ps_hosts"]
    assert "topology: 5 workers, 5 replicas\n" in audited(**{**job, "strategy": "multiworker"}, global_batch_size=20)


def test_other_data_has_neither_the_schedule_of_a_run_nor_views_of_its_sources(folder, audited, tmp_path, capsys):
    mixture = f"{folder}/a=1,{folder}/b=1"
    flags = {"data_dir": mixture, "mixture_schedule": f"0:{folder}/a=1,{folder}/b=1;4:{folder}/a=3,{folder}/b=1"}
    flags["limit"] = f"{folder}/a: 30"
    for given in ([], [mixture]):
        assert "mixture of 2 sources, global batch 12, with a schedule\n" in audited(*given, **flags)
    assert "proof holds: each of 40 records once" in audited(f"{folder}/b", **flags)
    inspect.main([f"{folder}/b", f"--model_dir={tmp_path}", "--key=train#00001", "--json"])
    with pytest.raises(UsageError, match="--mixture_schedule with DATA_DIR=.*/b: needs a mixture"):
        audited(f"{folder}/b", "--mixture_schedule=0:a=1,b=1", **flags)


def test_data_that_have_moved_have_the_schedule_of_the_run_and_the_views_of_its_sources(
    folder, audited, tmp_path, capsys
):
    one, other, kept = folder / "a", folder / "b", tmp_path / "moved"
    flags = {"data_dir": f"{one}=1,{other}:train[:30]=1", "seed": 5}
    flags["mixture_schedule"] = f"0:{one}=1,{other}=1;4:{one}:train=0,{other}=1;6:{other}=0.25,{one}=0.75"
    flags["limit"] = f"{one}: 30; {other}:train[:30]: 12"
    for place in (one, other):
        shutil.copytree(place, kept / place.name)
    moved = f"{kept}/a=1,{kept}/b:train[:30]=1"
    before, after = audited(**flags), audited(moved, **flags)
    assert ("0:6+6,4:0+12,6:9+3; units of 3 rows" in before, "limit: 12" in before) == (True, True)
    assert after.replace(f"{kept}", f"{folder}") == before
    shown = []
    for given in ([], [moved]):
        inspect.main([*given, f"--model_dir={tmp_path}", "--step=5", "--json"])
        rows = json.loads(capsys.readouterr().out)["rows"]
        shown.append([(row["source"], row["key"]) for row in rows])
    assert shown[0] == shown[1]
    assert {source for source, _ in shown[0]} == {1}
