"""Scripts, commands and stored flags with earlier names; tests/integration/test_stored_run.py has whole runs."""

import dataclasses

import numpy as np
import pytest

import pipeline
import stepfeed
from pipeline import StepIterator, distribute, input_fn, order_spec
from pipeline.commands import aliases, commandline
from pipeline.commands.flags import flag
from pipeline.errors import UsageError
from tests.helpers.datasets import write_dataset

OPTIONS = {"global_batch_size": 8, "training": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, (8, 8))
    return folder


@dataclasses.dataclass(frozen=True)
class Config:
    """A command's flags."""

    augment: str = flag("none", "recipes")
    task_index: int = flag(0, "place")


def parse(*argv):
    return commandline.parse("made", "A command.", Config, argv)


@pytest.mark.parametrize("argv", [["--distort=flip", "--task_id=3"], ["--distort", "flip", "--task_id", "3"]])
def test_a_flag_goes_by_its_earlier_name(argv):
    assert parse(*argv) == Config("flip", 3)
    assert parse("--distort=shift", *argv) == Config("flip", 3)  # the last one counts, as with one name


def test_only_flags_that_a_command_has_have_other_names():
    with pytest.raises(UsageError, match="^flag: unknown '--distort_on'; did you mean '--augment'"):
        parse("--distort_on=host")


def test_a_mistyped_earlier_name_leads_to_todays():
    with pytest.raises(UsageError, match="^flag: unknown '--distrot'; did you mean '--augment'"):
        parse("--distrot=flip")
    with pytest.raises(UsageError, match="^flag: unknown '--augmentation'; did you mean '--augment'"):
        parse("--augmentation=flip")


def test_both_names_of_a_flag_are_one_mistake_that_names_both():
    with pytest.raises(UsageError) as error:
        parse("--distort=flip", "--augment=flip")
    assert str(error.value) == "--distort and --augment: are two names of the same thing; give --augment alone"


@pytest.mark.parametrize("call", [input_fn, order_spec, StepIterator], ids=["input_fn", "order_spec", "StepIterator"])
def test_an_argument_goes_by_its_earlier_name(call, folder):
    call(folder, **OPTIONS, distort="shift(pixels=1)")
    with pytest.raises(UsageError, match="augment='shift' with parse"):
        call(folder, **OPTIONS, distort="shift", parse=len)
    with pytest.raises(UsageError, match="distort and augment: are two names of the same thing; give augment alone$"):
        call(folder, **OPTIONS, distort="shift", augment="shift")


def test_an_unknown_argument_is_told_by_the_name_that_was_given(folder):
    with pytest.raises(TypeError, match="unexpected keyword argument 'task_id'"):
        input_fn(folder, **OPTIONS, task_id=3)
    for name in ("task_id", "distort"):
        with pytest.raises(AttributeError, match=f"module 'pipeline' has no attribute '{name}'"):
            getattr(pipeline, name)


def test_batches_are_the_same_by_either_name(folder):
    def first(**options):
        return next(iter(StepIterator(folder, **OPTIONS, **options)))

    plain, earlier, today = first(), first(distort="shift(pixels=1)"), first(augment="shift(pixels=1)")
    assert not np.array_equal(plain[0], today[0])
    for one, other in zip(earlier, today, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_device_augments_by_the_earlier_names(folder):
    options = {**OPTIONS, "distort": "flip | normalize", "distort_on": "device"}
    batch = next(iter(input_fn(folder, **options)))
    assert set(batch[0]) == {"image", "distort_key"}
    whole, *_ = next(iter(input_fn(folder, **{**options, "distort_on": "host"})))
    images, *_ = pipeline.distort_fn(folder, **options)(*batch)
    np.testing.assert_allclose(images, whole, atol=2e-5)


def test_functions_are_found_by_their_earlier_names():
    assert pipeline.distort_fn is stepfeed.distort_fn is pipeline.augment_fn
    with pytest.raises(AttributeError, match="module 'pipeline' has no attribute 'distorts'"):
        _ = pipeline.distorts


def test_an_option_that_a_function_refuses_is_refused_as_before(folder):
    with pytest.raises(UsageError, match="^distribute: takes no shard"):
        distribute(None, folder, **OPTIONS, distort="shift", shard=None)
    with pytest.raises(TypeError, match="'distort'"):
        pipeline.steps_per_epoch(folder, global_batch_size=8, distort="shift")


def test_stored_flags_are_read_in_both_forms():
    groups = {"data": {"distort": "shift", "resize": None}, "order": {"seed": 1}}
    assert aliases.stored(groups) == {"augment": "shift", "resize": None, "seed": 1}
    assert aliases.stored({"data": {"augment": "shift"}}) == {"augment": "shift"}
