import dataclasses

import pytest

from trainer.callbacks.bottleneck import Bottleneck, Facts, Times
from trainer.loop import Progress, Spent

ALONE = Facts(replicas=1, gpus=0, encoding="jpeg", parses=False)


def progress(steps, seconds, waited):
    return Progress(steps, {}, Spent(steps, seconds + 2.0, waited + 0.5), Spent(1, 2.0, 0.5), result=None)


def verdict_of(config, facts, *seen):
    verdict = Bottleneck(config, facts, None)
    for one in seen:
        verdict.on_loop(one)
    return verdict


def test_what_may_help_a_run_that_waits_for_its_input(config_of):
    config = config_of(augment="shift", prefetch=0, global_batch_size=100)
    assert verdict_of(config, ALONE, progress(1001, 10.0, 6.2)).text() == (
        "input-bound: 62% of 10.0 s waiting for input, 38% computing; may help: --prefetch=2, converting with "
        "--image_encoding=raw, a simpler --augment than shift, more CPU cores, python -m pipeline.bench D shows which "
        "stage is slow"
    )


@pytest.mark.parametrize(("gpus", "place", "helps"), [(1, "host", True), (1, "device", False), (0, "host", False)])
def test_a_gpu_may_augment(gpus, place, helps, config_of):
    config = config_of(augment="shift", augment_on=place)
    text = verdict_of(config, Facts(1, gpus, "raw", parses=False), progress(1001, 10.0, 6.2)).text()
    assert ("--augment_on=device" in text) == helps


@pytest.mark.parametrize(
    ("facts", "flags", "exchange", "helps"),
    [
        (ALONE, {}, None, "more CPU cores, workers on more machines"),
        (
            Facts(4, 4, "raw", parses=False),
            {"jit_compile": "true", "precision": "bfloat16"},
            None,
            "more GPUs, workers on more machines",
        ),
        (
            Facts(1, 4, "raw", parses=False),
            {},
            None,
            "--jit_compile, --precision=bfloat16, --strategy=mirrored on all 4 GPUs",
        ),
        (
            Facts(2, 0, "raw", parses=False),
            {"virtual_replicas": 4},
            0.008,
            "no --virtual_replicas, which sends twice the bytes, a larger --global_batch_size than 100, so that there "
            "are fewer all-reduces, fewer replicas",
        ),
    ],
)
def test_what_may_help_else(facts, flags, exchange, helps, config_of):
    verdict = verdict_of(config_of(**flags), facts, progress(1001, 10.0, 0.1))
    assert verdict.text(exchange).endswith(f"; may help: {helps}")


@pytest.mark.parametrize(
    ("unfused", "flags", "waited", "helps"),
    [
        (True, {}, 0.1, True),
        (True, {"jit_compile": "true"}, 0.1, False),  # XLA fuses
        (True, {}, 6.2, False),  # the input is the limit
        (False, {}, 0.1, False),
    ],
)
def test_a_model_of_the_user_may_be_fused(unfused, flags, waited, helps, config_of):
    facts = dataclasses.replace(ALONE, unfused=unfused)
    text = verdict_of(config_of(**flags), facts, progress(1001, 10.0, waited)).text()
    offer = "; may help: trainer.fuse_layers(model), since its BatchNormalization is Keras' own, "
    assert (offer in text, "fuse_layers" in text) == (helps, helps)


@pytest.mark.parametrize(("flags", "helps"), [({}, True), ({"cache_dir": "C"}, False), ({"data_dir": "D"}, False)])
def test_a_run_that_waits_for_a_store_may_have_a_cache(flags, helps, config_of):
    config = config_of(**{"data_dir": "gs://bucket/data", **flags})
    text = verdict_of(config, ALONE, progress(1001, 10.0, 6.2)).text()
    assert ("--cache_dir on a local disk" in text) == helps


def test_short_steps_need_more_rows(config_of):
    text = verdict_of(config_of(), ALONE, progress(10001, 10.0, 0.1)).text()
    assert "; may help: a larger --global_batch_size than 100, since a step is short, " in text


def test_short_runs_are_judged_only_when_asked(config_of):
    assert not verdict_of(config_of(), ALONE).is_worth_telling
    assert not verdict_of(config_of(), ALONE, progress(1001, 4.9, 0.1)).is_worth_telling
    assert verdict_of(config_of(), ALONE, progress(1001, 4.9, 0.1), progress(1011, 5.0, 0.1)).is_worth_telling


def test_what_cannot_be_judged(config_of):
    first = progress(1, 0.0, 0.0)
    both = dataclasses.replace(progress(2, 0.0, 0.0), compiling=Spent(2))  # a plain one, and one with summaries
    for one in (first, both):
        assert verdict_of(config_of(), ALONE, one).text() == (
            "no verdict: each step was the first of its kind, which is compiled"
        )
    logged = verdict_of(config_of(log_keys="K"), ALONE, first)
    assert logged.text() == "no verdict: with --log_keys, waiting for input is not measured"


@pytest.mark.parametrize(
    ("waited", "exchange", "constant", "bound", "shares"),
    [
        (6.2, None, None, "input-bound", (0.62, 0.0, 0.38)),
        (1.0, 0.001, None, "compute-bound", (0.1, 0.1, 0.8)),
        (1.0, 0.006, None, "communication-bound", (0.1, 0.6, 0.3)),
        (1.0, 0.02, None, "communication-bound", (0.1, 0.9, 0.0)),  # never more than there is
        (1.0, 0.0, 0.002, "input-bound", (0.1, 0.0, 0.9)),  # the input takes the cores of the steps
        (1.0, 0.0, 0.009, "compute-bound", (0.1, 0.0, 0.9)),
    ],
)
def test_the_largest_share_bounds_the_speed(waited, exchange, constant, bound, shares):
    times = Times(Spent(1000, 10.0, waited), 100, exchange, constant)
    assert times.bound == bound
    assert (times.spent.waiting, times.communicating, times.computing) == pytest.approx(shares)


def test_in_words():
    assert str(Times(Spent(1000, 10.0, 6.2), 100)) == (
        "input-bound: 62% of 10.0 s waiting for input, 38% computing and communicating"
    )
    assert str(Times(Spent(1000, 10.0, 6.2), 100, 0.001, 0.004)) == (
        "input-bound: 62% of 10.0 s waiting for input, 28% computing, 10% communicating; with one constant batch 2.50 "
        "times as fast (25,000 against 10,000 examples/sec)"
    )
    assert (
        str(Times(Spent(1000, 10.0, 0.1), 100, 0.0)) == "compute-bound: 1% of 10.0 s waiting for input, 99% computing"
    )
