import dataclasses
import enum
import json
import pathlib

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.request import parse_size
from trainer.config import TrainConfig, parse


def of(**flags):
    return TrainConfig.of(**{"data_dir": "D", "model_dir": "M", **flags})


def test_values_of_python_are_those_of_the_command_line():
    config = of(
        data_dir=pathlib.Path("some/D"),
        model_dir=pathlib.Path("some/M"),
        metrics_jsonl=pathlib.Path("m"),
        seed=np.int64(3),
        learning_rate=np.float32(0.5),
        momentum=0,
        train_steps=1e3,
        clip_norm=np.int32(2),
        jit_compile=np.bool_(True),
        resize=np.str_("8x8"),
        epochs=None,
    )
    flags = ["--data_dir=some/D", "--model_dir=some/M", "--metrics_jsonl=m", "--seed=3", "--learning_rate=0.5"]
    flags += ["--momentum=0", "--train_steps=1e3", "--clip_norm=2", "--jit_compile", "--resize=8x8"]
    assert config == parse(flags)
    assert json.dumps(dataclasses.asdict(config)) == json.dumps(dataclasses.asdict(parse(flags)))


def test_one_number_is_a_size_of_equal_sides_and_stored_as_such():
    assert of(resize="28").data.resize == of(resize="28x28").data.resize == "28x28"
    assert [parse_size(size) for size in (28, "28", (28, 28))] == [(28, 28)] * 3
    for wrong in ("0", 0.5, True, "28x", "twenty"):
        with pytest.raises(UsageError, match="^resize="):
            parse_size(wrong)


class Schedule(enum.StrEnum):
    COSINE = "cosine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seed": "3"}, "seed='3': must be a whole number; got str"),
        ({"seed": 1.5}, "seed=1.5: must be a whole number; got float"),
        ({"seed": True}, "seed=True: must be a whole number; got bool"),
        ({"seed": None}, "seed=None: must be a whole number; got NoneType"),
        ({"train_steps": "many"}, "train_steps='many': must be a whole number or None; got str"),
        ({"train_steps": float("inf")}, "train_steps=inf: must be a whole number or None; got float"),
        ({"learning_rate": "0.1"}, "learning_rate='0.1': must be a number; got str"),
        ({"learning_rate": np.ones(2)}, "learning_rate=array([1., 1.]): must be a number; got ndarray"),
        ({"schedule": Schedule.COSINE}, "schedule=<Schedule.COSINE: 'cosine'>: must be a text; got Schedule"),
        ({"jit_compile": 1}, "jit_compile=1: must be auto, on, off, True or False"),
        ({"model": ["mlp"]}, "model=['mlp']: must be a text; got list"),
        ({"model_dir": b"run"}, "model_dir=b'run': must be a text; got bytes"),
        ({"metrics_jsonl": 3}, "metrics_jsonl=3: must be a text or None; got int"),
    ],
)
def test_a_value_of_another_type_is_refused_at_once(flags, message):
    with pytest.raises(UsageError) as caught:
        of(**flags)
    assert str(caught.value) == message
