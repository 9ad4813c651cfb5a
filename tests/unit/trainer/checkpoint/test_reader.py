import os
import pathlib

import numpy as np
import pytest

from pipeline.errors import UsageError
from trainer.checkpoint import reader
from trainer.checkpoint.reader import UnreadableError
from trainer.cluster.tf_config import ALONE


@pytest.fixture
def stored(make_strategy, make_state, make_checkpoints, tmp_path):
    """Returns a function that stores a state with step 7, weights 1, 2, 3, ... and averages -1, -2, -3, ..."""

    def store(ema=0, **flags):
        state = make_state(make_strategy(2), ema=ema)
        state.global_step.assign(7)
        for number, variable in enumerate(state.model.trainable_variables, 1):
            variable.assign(np.full(variable.shape, number))
        for number, average in enumerate(state.averages.values if state.averages else [], 1):
            average.assign(np.full(average.shape, -number))
        make_checkpoints(state, ALONE, ema=ema, **flags).save()
        return state.model, tmp_path / "ckpt-7"

    return store


def firsts(model):
    return [float(variable.numpy().flat[0]) for variable in model.trainable_variables]


def fresh(make_state, make_strategy, **flags):
    return make_state(make_strategy(1, "one_device"), **flags).model


def test_a_model_gets_the_weights_or_their_average(stored, make_state, make_strategy):
    _, path = stored(ema=0.9)
    model, found = fresh(make_state, make_strategy), reader.read(path)
    assert (found.step, found.averaged, found.content["num_classes"]) == (7, True, 5)
    found.load_weights(model, averaged=False)
    assert firsts(model) == [1, 2, 3, 4]
    found.load_weights(model, averaged=True)
    assert firsts(model) == [-1, -2, -3, -4]
    assert [found.chooses_average(kind) for kind in (None, "raw", "ema")] == [True, False, True]


def test_without_an_average_the_weights_are_those_of_the_step(stored):
    _, path = stored()
    found = reader.read(path)
    assert [found.chooses_average(kind) for kind in (None, "raw")] == [False, False]
    with pytest.raises(UsageError, match=f"--weights=ema: {path} .*--ema"):
        found.chooses_average("ema")


def test_the_flags_are_those_of_the_run_on_one_device(stored):
    _, path = stored(strategy="mirrored", num_replicas=2, learning_rate=0.125, global_batch_size=24)
    config = reader.read(path).config(data_dir="elsewhere")
    assert (config.run.strategy, config.run.num_replicas) == ("one_device", None)
    assert (config.optimizer.learning_rate, config.order.global_batch_size) == (0.125, 24)
    assert config.data.data_dir == "elsewhere"


def test_flags_of_an_earlier_version_are_known_by_their_names(stored):
    _, path = stored()
    found = reader.read(path)
    found.content["config"] = {"learning": {"model": "lenet", "gone": 1}, "run": {"model_dir": "M", "data_dir": "D"}}
    assert found.config().model.model == "lenet"


def test_another_model_is_refused(stored, make_state, make_strategy):
    import keras

    _, path = stored()
    other = keras.Sequential([keras.Input((4, 3, 1)), keras.layers.Conv2D(2, 3), keras.layers.Dense(3)])
    with pytest.raises(UsageError, match="ckpt-7: "):
        reader.read(path).load_weights(other, averaged=False)


def cut(path):
    data = path.with_name(f"{path.name}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:100])


def removed(path):
    for file in path.parent.glob(f"{path.name}.*"):
        file.unlink()


def cut_index(path):
    index = path.with_name(f"{path.name}.index")
    index.write_bytes(index.read_bytes()[:40])


def fifo_of(suffix):
    """Returns the damage of replacing one of the files by a FIFO, for which TensorFlow would wait forever."""

    def fifo(path):
        file = path.with_name(f"{path.name}{suffix}")
        file.unlink()
        os.mkfifo(file)

    return fifo


@pytest.mark.parametrize(
    "damage",
    [cut, removed, cut_index, fifo_of(".index"), fifo_of(".data-00000-of-00001")],
    ids=lambda one: one.__name__,
)
@pytest.mark.quick(2)
def test_a_damaged_or_removed_checkpoint_is_named(stored, damage, make_state, make_strategy):
    _, path = stored()
    model, found = fresh(make_state, make_strategy), reader.read(path)
    damage(path)
    with pytest.raises(UnreadableError, match=f"^{path}: cannot be read: ."):
        found.load_weights(model, averaged=False)
    with pytest.raises(UnreadableError, match=f"^{path}: cannot be read: ."):
        reader.read(path)


def test_a_checkpoint_of_another_program_is_refused(tmp_path):
    import tensorflow as tf

    tf.train.Checkpoint(x=tf.Variable(1)).write(str(tmp_path / "ckpt-1"))
    with pytest.raises(UsageError, match="ckpt-1 "):
        reader.read(pathlib.Path(tmp_path / "ckpt-1"))


def test_best_means_that_which_the_newest_ranking_puts_first(tmp_path, monkeypatch):
    paths = [tmp_path / "best" / f"ckpt-{step}" for step in (60, 40, 20)]
    ranking = {"best": [[40, 0.9], [60, 0.8], [20, 0.7]]}

    def read(path):
        if path == paths[0]:
            raise UnreadableError("cut", path=path)
        return reader.Record(path, 40, False, {"remembered": {"ranking": ranking}})

    monkeypatch.setattr(reader, "read", read)
    assert [path.name for path in reader.best_first(paths)] == ["ckpt-40", "ckpt-60", "ckpt-20"]
    ranking["best"] = [[20, 0.9]]
    assert [path.name for path in reader.best_first(paths)] == ["ckpt-20", "ckpt-60", "ckpt-40"]
    newest = [tmp_path / "ckpt-9", tmp_path / "ckpt-3"]
    assert reader.best_first(newest) == newest
