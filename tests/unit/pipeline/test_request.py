"""The options of `input_fn`, as the public functions show and check them."""

import dataclasses
import inspect
import re

import numpy as np
import pytest

from pipeline import StepIterator, augment_fn, distribute, input_fn, order_spec, steps_per_epoch
from pipeline.errors import UsageError
from pipeline.request import EpochOptions, JobOptions, OrderOptions, Request

PUBLIC = {
    steps_per_epoch: EpochOptions,
    order_spec: OrderOptions,
    augment_fn: JobOptions,
    distribute: JobOptions,
    input_fn: Request,
    StepIterator: Request,
}


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_functions_show_the_options_that_they_take_and_name_unknown_ones(function):
    shown, taken = (inspect.signature(one).parameters for one in (function, PUBLIC[function]))
    assert set(shown) - set(taken) == (
        {"strategy", "prefetch", "virtual_replicas"} if function is distribute else set()
    )
    assert {name: shown[name].replace() for name in taken} == taken
    data = (None, "nowhere") if function is distribute else ("nowhere",)
    required = dict.fromkeys((name for name in ("global_batch_size", "training") if name in taken), 1)
    with pytest.raises(TypeError, match="'distrot'"):
        function(*data, **required, distrot="shift")
    for name in required:
        with pytest.raises(TypeError, match=f"{function.__name__}.*'{name}'"):
            function(*data, **{key: value for key, value in required.items() if key != name})


def test_each_option_is_documented():
    documented = re.findall(r"^  +(\w+): ", input_fn.__doc__, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(Request)} <= set(documented)


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
    assert not {"cache_dir", "cache_bytes"} & {field.name for field in dataclasses.fields(OrderOptions)}
    assert Request("s3://b/d", global_batch_size=8, training=True, cache_dir="c", cache_bytes=np.int64(9))
    assert Request("dd", global_batch_size=8, training=True, cache_dir="d")
