"""Registries: things registered by a package's modules are found by name, without loading heavy modules."""

import importlib
import pathlib
import subprocess
import sys

import pytest

from pipeline.registry import Registry

ANIMALS = """
from pipeline.registry import Registry
ANIMALS = Registry("{package}", lambda sound, legs: (sound(), legs), besides=("heavy",))
"""
MODULES = {
    "cats": 'from {package} import ANIMALS\n@ANIMALS.named("cat", "kitten", legs=4)\ndef cat():\n    return "meow"\n',
    "dogs": 'from {package} import ANIMALS\n@ANIMALS.named("dog", legs=4)\ndef dog():\n    return "woof"\n',
    "heavy": "raise SystemExit\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package of such modules."""
    name = f"animals_{abs(hash(tmp_path))}"
    (tmp_path / name).mkdir()
    for module, text in {"__init__": ANIMALS, **MODULES}.items():
        (tmp_path / name / f"{module}.py").write_text(text.replace("{package}", name), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_modules_are_imported_when_a_name_is_looked_up(package):
    animals = __import__(package).ANIMALS
    assert f"{package}.cats" not in sys.modules
    assert dict(animals) == {"cat": ("meow", 4), "kitten": ("meow", 4), "dog": ("woof", 4)}
    assert "cow" not in animals
    assert sys.modules[f"{package}.dogs"].dog() == "woof"  # the decorated object is unchanged


def test_the_order_does_not_depend_on_what_was_imported_first(package):
    animals = __import__(package).ANIMALS
    importlib.import_module(f"{package}.dogs")
    assert list(animals) == ["cat", "kitten", "dog"]


def test_a_name_is_registered_once():
    registry = Registry("pipeline")
    assert registry.named("one")(1) == 1
    with pytest.raises(ValueError, match="'one' is registered twice"):
        registry.named("two", "one")(2)


def test_a_module_that_is_loaded_again_registers_its_own_again(package):
    """As a notebook does with a module that is edited, or Python after an import that has failed."""
    animals = __import__(package).ANIMALS
    assert animals["dog"] == ("woof", 4)
    dogs = sys.modules[f"{package}.dogs"]
    path = pathlib.Path(dogs.__file__)
    path.write_text(path.read_text().replace("legs=4", "legs=30"), encoding="utf-8")
    importlib.reload(dogs)
    assert animals["dog"] == ("woof", 30)
    path.write_text(path.read_text().replace("def dog", "def wolf"), encoding="utf-8")
    with pytest.raises(ValueError, match="'dog' is registered twice"):
        importlib.reload(dogs)


def test_names_are_known_without_tensorflow():
    """Flags are checked against them before it is loaded, which takes seconds."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "keras", "apache_beam")))  # Python raises ImportError
from beam_jobs.sources.base import SOURCES
from pipeline.augmentation import RECIPES
from trainer.config.model import MODELS
from trainer.launching.flags import SCHEDULERS
print(*("cutout" in RECIPES, "lenet" in MODELS, "slurm" in SCHEDULERS, "parquet" in SOURCES))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4
