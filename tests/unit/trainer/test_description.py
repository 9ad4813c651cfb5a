import dataclasses
import pathlib
import re
import shutil
import sys
import time
import zipfile

import keras
import pytest
import tensorflow as tf

import trainer
from tests.helpers.datasets import write_dataset
from trainer import description, plan
from trainer.checkpoint import structure
from trainer.cluster.messages import difference
from trainer.cluster.tf_config import Cluster

TWO = Cluster(("a:1", "b:2"))


@pytest.fixture
def described(tmp_path, config_of):
    write_dataset(tmp_path / "data", (11, 9))

    def described(data_dir=tmp_path / "data", **flags):
        flags = {"model": "mlp", "global_batch_size": 4, "strategy": "multiworker", **flags}
        config = config_of(data_dir=data_dir, **flags)
        return description.of(config, plan.make(config, TWO.size))

    return described


def compared(described, **flags):
    return difference(described(), {"worker 1": described(**flags)})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"seed": 1}, "--seed=1, the chief has --seed=0"),
        ({"streams": 2}, "--streams=2, the chief has no --streams"),
        ({"augment": "shift"}, "--augment=shift, the chief has --augment=none"),
        ({"global_batch_size": 2, "learning_rate": 0.1}, "--learning_rate=0.1, --global_batch_size=2, the chief has"),
        ({"log_keys": "somewhere"}, "--log_keys, the chief has no --log_keys"),
        ({"log_losses": "somewhere"}, "--log_losses, the chief has no --log_losses"),
    ],
)
def test_flags(described, flags, said):
    assert f"worker 1 has {said}" in compared(described, **flags)


def test_folders_may_have_other_paths(described, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert compared(described, model_dir="elsewhere", data_dir=tmp_path / "link") is None
    assert difference(described(log_keys="a"), {"worker 1": described(log_keys="b")}) is None
    assert difference(described(log_losses="a"), {"worker 1": described(log_losses="b")}) is None


def test_every_flag_is_compared(described, config_of):
    """Those that are added later, too."""
    flags = {f"--{name}" for group in dataclasses.asdict(config_of()).values() for name in group}
    found = {name for name in described()[2] if name.startswith("--")}
    of_a_process = {f"--{name}" for name in ("worker_hosts", "ps_hosts", "chief_host", "job_name", "task_index")}
    of_a_machine = {"--data_dir", "--eval_data_dir", "--model_dir", "--metrics_jsonl", "--cache_dir", "--cache_bytes"}
    of_a_machine.add("--log_time")
    assert flags - of_a_machine - of_a_process == found


def test_other_data(described, tmp_path):
    write_dataset(tmp_path / "other", (11, 10))
    assert " a data set of digest " in compared(described, data_dir=tmp_path / "other")


def test_other_evaluation_data(described, tmp_path):
    for name, count in (("one", 5), ("same", 5), ("other", 6)):
        write_dataset(tmp_path / name, (count,), test_counts=(count,))
    one, same, other = (described(eval_data_dir=tmp_path / name) for name in ("one", "same", "other"))
    assert difference(one, {"worker 1": same}) is None
    said = r"^worker 1 has evaluation data of digest \w+, the chief has evaluation data of digest \w+$"
    assert re.search(said, difference(one, {"worker 1": other}))
    assert difference(one, {"worker 1": described()}) is not None


def test_another_mixture(described, tmp_path):
    write_dataset(tmp_path / "other", (11, 10))
    own, other = tmp_path / "data", tmp_path / "other"
    chief = described(f"{own}=3,{other}=1", global_batch_size=8)
    same = described(f"{tmp_path}/./data=30,{other}=10", global_batch_size=8)
    assert difference(chief, {"worker 1": same}) is None
    for data_dir, said in [
        (f"{own}=2,{other}=2", "a mixture of 4 rows of train of digest .*, the chief has a mixture of 6 rows of train"),
        (f"{own}=3,{other}:train[:9]=1", r"and 2 rows of train\[:9\] of digest .* and 2 rows of train of digest"),
        (own, "a data set of digest .*, the chief has a mixture of"),
    ]:
        assert re.search(said, difference(chief, {"worker 1": described(data_dir, global_batch_size=8)}))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Returns a function that writes files, and returns the digests of modules as from that folder."""
    monkeypatch.setattr("sys.path", list(sys.path))

    def project(name, modules, files):
        for path, source in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source.encode())
        monkeypatch.chdir(tmp_path / name)
        return description.code_of_modules(modules)

    return project


MINE = {
    "mine.py": "import os, keras\nimport helpers\n",
    "helpers.py": "def late():\n    import far.deep\n    from far import near\n",
    "far/near.py": "from . import other",
    "far/other.py": "from .inner.last import name",
    "far/inner/last.py": "import mine\nname = 1",
    "far/deep.py": "import importlib\nimportlib.import_module('named')\n",
    "named.py": "",
}


def test_a_users_module_is_compared_with_all_that_it_imports_from_beside_it(project):
    own = project("own", ["mine"], MINE | {"unused.py": ""})
    assert set(own) == set(MINE)
    same = {path: source.replace("\n", "\r\n") for path, source in MINE.items()}
    assert project("elsewhere", ["mine"], same | {"unused.py": "another"}) == own
    for number, path in enumerate(MINE):
        other = project(f"changed{number}", ["mine"], MINE | {path: f"more = 1\n{MINE[path]}"})
        assert difference([own], {"worker 1": [other]}) == f"worker 1 has another {path}"
    other = project("added", ["mine"], MINE | {"far/__init__.py": ""})
    said = "worker 1 has far/__init__.py, which the chief does not have"
    assert difference([own], {"worker 1": [other]}) == said


def test_modules_in_an_archive_and_installed_ones_are_compared(project, tmp_path, monkeypatch):
    files = {path: source for path, source in MINE.items() if "/" not in path}
    own = project("own", ["mine"], files)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path, source in files.items():
            archive.writestr(path, source)
    monkeypatch.syspath_prepend(tmp_path / "all.zip")
    assert project("nothing", ["mine"], {"unused.py": ""}) == own
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    installed = {"theirs/__init__.py": "", "theirs/model.py": "import more, theirs.a", "theirs/a.py": "", "more.py": ""}
    found = project("site-packages", ["theirs.model"], installed)
    assert set(found) == {path for path in installed if path != "more.py"}  # which is of another package
    assert set(project("user", ["use"], {"use.py": "import theirs"})) == {"use.py"}


@pytest.mark.parametrize("source", ["def (", "import no_such_module\nfrom .... import x", "", "from . import nothing"])
def test_a_module_that_cannot_be_imported_is_compared_all_the_same(project, source):
    assert set(project("own", ["broken", "missing"], {"broken.py": source})) == {"broken.py"}


def test_our_own_sources_are_compared(described, tmp_path, monkeypatch):
    chief = described()
    package = pathlib.Path(trainer.__file__).parent
    folders = {"pipeline": package.parent / "pipeline", "trainer": tmp_path / "trainer"}
    monkeypatch.setattr("importlib.resources.files", folders.get)
    shutil.copytree(package, tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    assert difference(chief, {"worker 1": described()}) is None
    gradients = tmp_path / "trainer" / "step" / "train_step.py"
    gradients.write_text(gradients.read_text() + "# 3.0\n")
    assert difference(chief, {"worker 1": described(seed=1)}) == "worker 1 has another trainer/step/train_step.py"


def test_all_that_is_compared_at_the_start_takes_little_time(described):
    described()
    began = time.process_time()
    description.code_of_packages()
    assert time.process_time() - began < 0.2  # about 0.01 s


@pytest.mark.parametrize("flag", ["model", "task"])
def test_the_module_of_a_model_or_task_is_part_of_the_description(described, flag, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("a = 1")
    monkeypatch.chdir(tmp_path)
    chief = described(**{flag: "mine:f"})
    (tmp_path / "mine.py").write_text("a = 2")
    assert difference(chief, {"worker 1": described(**{flag: "mine:f"})}) == "worker 1 has another mine.py"


def test_who_runs_the_chiefs_graphs_is_compared_by_folder_and_code(tmp_path, config_of, monkeypatch):
    write_dataset(tmp_path / "data", (11, 9))
    (tmp_path / "link").symlink_to(tmp_path / "data")

    def described(folder):
        config = config_of(data_dir=tmp_path / folder, global_batch_size=4, strategy="multiworker")
        return description.of_graph_reader(config, plan.make(config, TWO.size))

    chief = described("data")
    assert f"worker 1 has --data_dir={tmp_path}/link, the chief" in difference(chief, {"worker 1": described("link")})
    packages = description.code_of_packages()
    monkeypatch.setattr(description, "code_of_packages", lambda: {**packages, "trainer/run.py": ["another"]})
    assert difference(chief, {"worker 1": described("data")}) == "worker 1 has another trainer/run.py"


def test_models_that_differ_are_named_by_the_first_layer_that_does():
    def model(*layers):
        return structure.of(keras.Sequential([keras.Input((4,)), *layers]))

    dense = keras.layers.Dense
    chief = model(dense(4, "relu"), dense(4))
    assert description.model_difference(chief, model(dense(4, "relu"), dense(4))) is None
    for other, said in (
        (model(dense(4, "gelu"), dense(4)), "another model: layer dense: activation gelu, the chief has relu"),
        (model(dense(4, "relu")), "another model: no layer dense_1 (Dense)"),
        (
            model(dense(4, "relu"), dense(4), keras.layers.ReLU()),
            "another model: layer re_lu (ReLU), which the chief does not have",
        ),
    ):
        assert description.model_difference(chief, other) == said


def test_other_versions(described, monkeypatch):
    chief = described()
    monkeypatch.setattr(tf, "__version__", "2.99.0")
    said = difference(chief, {"worker 1": described(seed=1)})
    assert said.startswith("worker 1 has TensorFlow 2.99.0, the chief has TensorFlow 2.")
    assert "seed" not in said
