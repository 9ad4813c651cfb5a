"""One list of options: `input_fn`'s signature, the TypedDicts and the request say the same."""

import dataclasses
import inspect

import numpy as np
import pytest

from pipeline import StepIterator, distribute, input_fn, order_spec
from pipeline.errors import UsageError
from pipeline.request import InputOptions, JobOptions, OrderOptions, Request


def test_input_fn_the_request_and_the_typed_dict_have_the_same_options():
    parameters = inspect.signature(input_fn).parameters
    asked = inspect.signature(Request).parameters
    assert {name: (p.annotation, p.default, p.kind) for name, p in asked.items()} == {
        name: (p.annotation, p.default, p.kind) for name, p in parameters.items()
    }
    typed = {name: hint.__forward_arg__ for name, hint in InputOptions.__annotations__.items()}
    assert typed == {
        name: p.annotation if p.default is not p.empty else f"Required[{p.annotation}]"
        for name, p in parameters.items()
        if name not in ("data_dir", "split")
    }


@pytest.mark.parametrize(
    ("function", "options"), [(order_spec, OrderOptions), (distribute, JobOptions), (StepIterator, InputOptions)]
)
def test_options_that_are_passed_through_are_typed_and_unknown_ones_are_named(function, options):
    kinds = [p.annotation for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD]
    assert kinds == [f"Unpack[{options.__name__}]"]
    data = (None, "nowhere") if function is distribute else ("nowhere",)
    with pytest.raises(TypeError, match="'distrot'"):
        function(*data, global_batch_size=8, training=True, distrot="shift")
    with pytest.raises(TypeError, match="'training'"):
        function(*data, global_batch_size=8)


def test_a_request_is_the_same_however_it_is_given():
    one = Request("d", global_batch_size=8, training=np.True_, resize="4x6", features=["key"])
    assert one == Request("d", "train", global_batch_size=8, training=True, resize=(4, 6), features=("key",), seed=0)
    assert hash(one)
    assert dataclasses.replace(one, start_step=3).start_step == 3


@pytest.mark.parametrize(
    ("data_dir", "options", "given"),
    [
        ("s3://b/d", {"cache_bytes": 9}, "cache_bytes=9"),
        ("s3://b/d", {"cache_dir": "c", "cache_bytes": 0}, "cache_bytes=0"),
        ("s3://b/d", {"cache_dir": "c", "cache_bytes": "50GB"}, "cache_bytes='50GB'"),
        ("s3://b/d", {"cache_dir": "gs://b/c"}, "cache_dir='gs://b/c'"),
        ("s3://b/d", {"cache_dir": ""}, "cache_dir=''"),
        ("s3://b/d", {"cache_dir": 7}, "cache_dir=7"),
        ("d", {"cache_dir": "d"}, "cache_dir=d"),
        ("d", {"cache_dir": "d/in/it"}, "cache_dir=d/in/it"),
        ("up/d", {"cache_dir": "up"}, "cache_dir=up"),
        ("s3://b/d", {"cache_dir": "c", "portable": True}, "cache_dir with portable=True"),
    ],
)
def test_a_cache_that_cannot_be_is_named(data_dir, options, given):
    with pytest.raises(UsageError, match=f"^{given}: "):
        Request(data_dir, global_batch_size=8, training=True, **options)


def test_a_cache_is_no_part_of_the_order():
    assert not {"cache_dir", "cache_bytes"} & set(OrderOptions.__annotations__)
    assert Request("s3://b/d", global_batch_size=8, training=True, cache_dir="c", cache_bytes=np.int64(9))
    assert Request("dd", global_batch_size=8, training=True, cache_dir="d")
