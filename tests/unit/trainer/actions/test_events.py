import numpy as np
import pytest
import tensorflow as tf

from tests.runs import scalars
from trainer.actions.events import EventFile


def write_runs(folder):
    """Writes 100 to 500 at every 100th step, as killed at 550; then, resumed from 300, from 350 on."""
    first = EventFile(folder, 0)
    for step in range(100, 600, 100):
        first.scalars(step, {"train/loss": 1.0})
    first.scalars(500, {"eval/test/accuracy": 0.5})
    resumed = EventFile(folder, 300)
    for step in range(350, 600, 50):
        resumed.scalars(step, {"train/loss": 2.0})


EXPECTED = {100: 1.0, 200: 1.0, 300: 1.0, 350: 2.0, 400: 2.0, 450: 2.0, 500: 2.0, 550: 2.0}


def test_after_a_resume_every_step_is_shown_once(tmp_path):
    write_runs(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path) == {("train/loss", step): value for step, value in EXPECTED.items()}


def accumulators():
    package = "tensorboard.backend.event_processing"
    public, own = (
        pytest.importorskip(f"{package}.{name}", reason="needs tensorboard: pip install tensorboard")
        for name in ("event_accumulator", "plugin_event_accumulator")
    )
    return public.EventAccumulator, own.EventAccumulator


def test_tensorboard_shows_that(tmp_path):
    public, own = accumulators()
    write_runs(tmp_path)
    read = public(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == list(EXPECTED.items())
    shown = own(str(tmp_path)).Reload()
    found = [(event.step, event.tensor_proto.float_val[0]) for event in shown.Tensors("train/loss")]
    assert found == list(EXPECTED.items())
    assert not shown.Tensors("eval/test/accuracy")


def test_without_scalars_there_is_no_file(tmp_path):
    EventFile(tmp_path / "logs", 0)
    EventFile(tmp_path / "logs", 0, writes=False).scalars(1, {"loss": 1.0})
    assert not (tmp_path / "logs").exists()


def test_scalars_can_be_read_as_soon_as_they_are_written(tmp_path):
    writer = EventFile(tmp_path / "runs" / "logs", 0)
    for step in (1, 2):
        writer.scalars(step, {"loss": 0.5})
        assert list(scalars(tmp_path / "runs" / "logs")) == [("loss", one) for one in range(1, step + 1)]


def test_tensorboard_shows_histograms_images_and_the_graph(tmp_path):
    public, _ = accumulators()
    file = EventFile(tmp_path, 0)
    row = [-1.0, 2.0, 3.5, 5.25, 1.0, *[0.0] * 28, 2.0]
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="one")
    file.graph(graph)
    for step in (10, 20):
        file.histograms(step, {"weights/w": row})
        file.images(step, {"images/0": np.full((4, 3, 3), step, np.uint8)})
    EventFile(tmp_path, 10).scalars(11, {"train/loss": 1.0})  # resumed: step 20 is forgotten
    shown = public(str(tmp_path), size_guidance={"histograms": 0, "images": 0}).Reload()
    assert [event.step for event in shown.Histograms("weights/w")] == [10]
    found = shown.Histograms("weights/w")[0].histogram_value
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1.0, 2.0, 3.0, 3.5, 5.25)
    assert [(event.step, event.width, event.height) for event in shown.Images("images/0")] == [(10, 3, 4)]
    assert [node.name for node in shown.Graph().node] == ["one"]


def test_a_folder_has_one_graph(tmp_path):
    assert EventFile(tmp_path, 0).is_first
    EventFile(tmp_path, 0).scalars(1, {"loss": 1.0})
    assert not EventFile(tmp_path, 0).is_first
