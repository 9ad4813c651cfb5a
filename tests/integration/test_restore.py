"""Restored at every step, a run resumes as if it had never been disturbed: each element of the tail is compared."""

import dataclasses
import json

import numpy as np
import pytest

from pipeline import Shard, StepIterator, skipped_records
from pipeline.manifest import naming
from tests.helpers.datasets import Kind, flip, to_memory, write_dataset

COUNTS = (5, 0, 4, 5)
SHAPE = (8, 6, 3)
WINDOWS = {"shuffle_bytes": 144 * 6, "streams": 2}  # three windows a stream


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set and an input of it; `bad` records of the first shard are corrupt."""

    kind: Kind
    arguments: dict
    bad: tuple[int, ...] = ()
    remote: bool = False
    few: bool = True  # also among the quick tests


RAW, UNEQUAL, PNG, JPEG = Kind(), Kind(unequal_keys=True), Kind("png"), Kind("jpeg", varied=True)
GZIP = Kind(compression="GZIP", unequal_keys=True)
SKIP = {"on_corrupt": "skip"}
CASES = {
    "raw": Case(RAW, {"augment": "shift"}),
    "raw, windows": Case(RAW, WINDOWS | {"augment": "shift", "features": ("key",)}, few=False),
    "raw, windows, drop": Case(RAW, WINDOWS | {"remainder": "drop", "seed": 3}, few=False),
    "raw, windows, a shard of two": Case(RAW, WINDOWS | {"shard": Shard(1, 2)}, few=False),
    "raw, windows, two local replicas": Case(RAW, WINDOWS | {"shard": Shard(1, 2, 2), "augment": "shift"}, few=False),
    "raw, evaluation": Case(RAW, {"training": False, "epochs": 2, "shuffle_bytes": 144 * 3}, few=False),
    "unequal, windows": Case(UNEQUAL, WINDOWS | {"features": ("key",)}, few=False),
    "more features, windows": Case(
        Kind(extra=True), WINDOWS | {"features": ("scores", "tags"), "weights": "mean"}, few=False
    ),
    "PNG": Case(PNG, {"augment": "pad_crop_flip(pad=1)"}, few=False),
    "PNG, windows": Case(PNG, WINDOWS | {"augment": "pad_crop_flip(pad=1)"}, few=False),
    "JPEG, cropped, windows": Case(JPEG, {"shuffle_bytes": 4000, "streams": 2, "augment": "random_crop(size=6)"}),
    "JPEG, resized": Case(JPEG, {"resize": "7x5"}, few=False),
    "GZIP": Case(GZIP, {"augment": "shift"}, few=False),
    "GZIP, windows": Case(GZIP, WINDOWS | {"augment": "shift", "features": ("key",)}),
    "skip": Case(RAW, SKIP, bad=(1, 4), few=False),
    "skip, windows": Case(RAW, WINDOWS | SKIP | {"augment": "shift"}, bad=(0, 4)),
    "skip, unequal, windows": Case(UNEQUAL, WINDOWS | SKIP, bad=(2,), few=False),
    "remote, windows": Case(UNEQUAL, WINDOWS, remote=True, few=False),
}


def make(case, folder):
    write_dataset(folder, COUNTS, SHAPE, kind=case.kind)
    for record in case.bad:
        path = folder / naming.shard_name("train", 0, len(COUNTS))
        flip(path, record * (path.stat().st_size // COUNTS[0]) + 40)
    place = to_memory(folder, "restore") if case.remote else str(folder)
    common = {"global_batch_size": 4, "training": True, "epochs": 2, "record_ids": True}
    return lambda **more: StepIterator(place, **(common | case.arguments | more))


def flat(element):
    x, *others = element
    return {**(x if isinstance(x, dict) else {"image": x}), **{f"component {i + 1}": v for i, v in enumerate(others)}}


def assert_equal(found, expected, where):
    assert set(found) == set(expected), where
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, (where, name)
        equal = (np.array_equal(a, b) for a, b in zip(found[name], value, strict=True))
        assert all(equal), (where, name)


def check(case, folder, steps=None):
    """Restores a run at every step, in new iterators and in one that is used all the time; or at these, in new ones."""
    iterator = make(case, folder)
    run, whole, states = iterator(), [], []
    replicas = case.arguments["shard"].local_replicas if "shard" in case.arguments else 1
    for element in run:
        whole.append({name: value.copy() for name, value in flat(element).items()})
        if len(whole) % replicas == 0:
            states.append(json.dumps(run.get_state()))
    states.insert(0, json.dumps(run.get_state() | {"step": 0}))
    assert len(states) == (7 if case.arguments.get("remainder") == "drop" else 9)
    assert [json.loads(state)["step"] for state in states] == list(range(len(states)))
    for step in steps or range(len(states)):
        for which in (iterator(), run) if steps is None else (iterator(),):
            which.set_state(json.loads(states[step]))
            assert which.step == step
            tail = [flat(element) for element in which]
            assert len(tail) == len(whole) - step * replicas
            for i, (found, expected) in enumerate(zip(tail, whole[step * replicas :], strict=True)):
                assert_equal(found, expected, (step, i))
    weights = sum(float(element[key].sum()) for element in whole for key in element if key == "component 2")
    return whole, weights


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.few], ids=[k for k in CASES if CASES[k].few])
@pytest.mark.quick(2)
def test_restored_in_the_middle_of_an_epoch_a_run_goes_on_alike(tmp_path, case):
    check(case, tmp_path, steps=[6])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_restored_at_every_step_a_run_goes_on_alike(tmp_path, case):
    whole, weights = check(case, tmp_path)
    if case.arguments.get("remainder") != "drop" and "shard" not in case.arguments and "weights" not in case.arguments:
        assert weights == 2 * (sum(COUNTS) - len(case.bad))  # each good record once an epoch
    assert len(skipped_records(tmp_path)) == len(case.bad)
    ids = np.concatenate([element["component 3"][element["component 2"] > 0] for element in whole])
    if "shard" not in case.arguments:
        counts = np.bincount(ids, minlength=sum(COUNTS))
        assert counts.max() <= 2
        assert [int(counts[record]) for record in case.bad] == [0] * len(case.bad)
