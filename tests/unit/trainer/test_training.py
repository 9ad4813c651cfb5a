"""Whole runs in this process, on images that are not all of one size."""

import pytest
import tensorflow  # noqa: F401, so that tests/conftest.py makes four devices of the CPU

from pipeline.errors import UsageError
from pipeline.read.cache_counts import CacheCounts, count
from tests.datasets import Kind, write_dataset
from trainer import plan, run

RESIZED = ("--resize=32x32", "--model=lenet")


@pytest.fixture
def train(tmp_path, capsys):
    """Returns a function that trains on 40 images of six sizes and returns the run's lines."""

    def train(encoding, *flags):
        data = tmp_path / encoding
        if not data.exists():
            write_dataset(data, (25, 15), (20, 18, 3), kind=Kind(encoding, varied=True))
        run.main([f"--data_dir={data}", f"--model_dir={tmp_path / 'model'}", "--global_batch_size=8", *flags])
        return capsys.readouterr().out.splitlines()

    return train


@pytest.mark.parametrize(
    ("encoding", "flags"),
    [
        ("jpeg", (*RESIZED, "--distort=pad_crop_flip")),
        ("png", ("--distort=random_crop(size=16)", "--strategy=mirrored", "--num_replicas=2", "--shuffle_bytes=20000")),
    ],
    ids=["stretched and distorted", "cropped, by windows, on two replicas"],
)
def test_images_of_several_sizes(encoding, flags, train):
    lines = train(encoding, "--train_steps=7", "--log_every=7", *flags)
    assert lines[1].startswith("step 7, loss = ")
    assert lines[-2].endswith("(4 examples)")
    assert "step 7 to 9" in train(encoding, "--train_steps=9", *flags)[0]


def test_the_note_on_shared_streams_follows_the_first_line(train, monkeypatch):
    monkeypatch.setattr(plan, "sharing_note", lambda *_: "four workers")
    lines = train("png", *RESIZED, "--train_steps=1", "--eval_split=none")
    assert lines[1] == "note: four workers"


def test_what_an_earlier_cache_did_is_not_said(train):
    count(CacheCounts(hits=3, misses=2, fetched_bytes=100))
    assert "cache 3 hits" not in "\n".join(train("png", *RESIZED, "--train_steps=1", "--eval_split=none"))


def test_another_size_is_another_model(train):
    train("png", *RESIZED, "--train_steps=1", "--eval_split=none")
    with pytest.raises(UsageError, match=r"has image_shape \[32, 32, 3\], this run has \[24, 32, 3\]"):
        train("png", "--resize=24x32", "--model=lenet", "--train_steps=2")


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        ((), "resize"),
        (("--resize=32x32", "--distort=random_crop(size=16)"), "resize=(32, 32)"),
        (("--resize=8x8", "--model=lenet"), "8x8x3"),
    ],
)
def test_sizes_that_cannot_be(flags, facts, train):
    with pytest.raises(UsageError) as caught:
        train("png", "--train_steps=1", *flags)
    assert facts in str(caught.value)
