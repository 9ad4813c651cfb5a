import time

import pytest

from pipeline import input_fn
from pipeline.read import progress
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.displays import terminal


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.0)


def test_what_takes_less_than_a_second_shows_nothing():
    with terminal(80) as sent:
        assert list(progress.bar(iter("abc"), 3, "reading")) == [*"abc"]
        assert sent() == ""


def test_what_takes_longer_shows_how_far_it_is_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.1)
    with terminal(80) as sent:
        for _ in progress.bar(range(4), 4, "reading"):
            time.sleep(0.15)
        found = sent()
    assert "reading:  50%|" in found
    assert found.rstrip("\r").endswith(" ")  # drawn over


def test_nothing_in_pipes_or_beside_a_live_line(at_once, capsys):
    assert list(progress.bar(range(3), 3, "reading")) == [0, 1, 2]
    with terminal(80) as sent, progress.hidden():
        assert list(progress.bar(range(3), 3, "reading")) == [0, 1, 2]
        assert sent() == ""
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (Kind(), {}, {"reading the data": 1, "decoding": 0, "first window": 0}),
        (Kind("png"), {}, {"reading the data": 1, "decoding the images": 1, "first window": 0}),
        (Kind(), {"shuffle_bytes": 6 * 144}, {"reading the data": 0, "reading the first window": 1}),
        (Kind("png"), {"shuffle_bytes": 6 * 144}, {"decoding": 0, "reading the first window": 1}),
    ],
)
@pytest.mark.quick(2)
def test_the_first_read_of_an_input(kind, more, said, at_once, tmp_path):
    write_dataset(tmp_path, (13, 9), (8, 6, 3), kind=kind)
    with terminal(80) as sent:
        for _ in input_fn(tmp_path, global_batch_size=2, training=True, epochs=2, **more):
            pass
        found = sent()
    assert {text: found.count(f"{text}:   0%") for text in said} == said
