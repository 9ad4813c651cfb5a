"""The pages' names of Python are of something that there is, as their flags are."""

import dataclasses
import importlib
import pathlib
import re

import pytest

import stepfeed

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if not page.name.startswith("changes_")]  # which tell of names that are gone
OURS = {name: getattr(stepfeed, name) for name in stepfeed.__all__}
CODE = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"((?:pipeline|trainer|beam_jobs|stepfeed|benchmarks)(?:\.\w+)+)")
OF_CLASS = re.compile(r"([A-Z]\w+)\.(\w+)")
# A class, and the names of some of its methods in a row: "`trainer.Task`: `build_model`, `train_step`".
LISTED = re.compile(r"`(?:\w+\.)?([A-Z]\w+)`: ((?:`[^`]+`[^`|]*)+)")


def has(owner, name):
    """Returns whether an object has an attribute, or a dataclass such a field."""
    return hasattr(owner, name) or name in {field.name for field in getattr(owner, "__dataclass_fields__", {}).values()}


def found(name):
    """Returns what a dotted name is of; raises where there is nothing."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part)
        return owner
    raise ModuleNotFoundError(name)


def wrong(text):
    """Returns the names of Python in a page that are of nothing."""
    words, missing = CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)), []
    for word in words:
        if (match := DOTTED.match(word)) and not match[1].endswith((".py", ".yaml", ".toml")):
            try:
                found(match[1])
            except (ModuleNotFoundError, AttributeError):
                missing.append(match[1])
        if (match := OF_CLASS.match(word)) and match[1] in OURS and not has(OURS[match[1]], match[2]):
            missing.append(match[0])
    for owner, names in LISTED.findall(text):
        if owner in OURS:
            listed = [one for one in CODE.findall(names) if one.isidentifier()]
            missing += [f"{owner}.{name}" for name in listed if not has(OURS[owner], name)]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_name_is_of_something(page):
    assert wrong(page.read_text(encoding="utf-8")) == []


def test_names_of_nothing_are_found():
    text = "| its base class | `trainer.Task`: `build_model`, `initialize` (or `--initialize_from`), `train_sums` |"
    assert wrong(text) == ["Task.train_sums"]
    assert wrong("`pipeline.input_fun` and `Task.lost`, but `pipeline.input_fn`") == ["pipeline.input_fun", "Task.lost"]
    assert dataclasses.is_dataclass(OURS["TrainConfig"])
    assert wrong("`TrainConfig.optimizer` and `TrainConfig.of(...)`") == []
