import dataclasses
import json

import pytest

from trainer.config.model import OptimizerFlags
from trainer.config.train_config import changed_flags


@pytest.fixture
def stored(config_of):
    """The flags of an earlier run, as a checkpoint has them."""
    return json.loads(json.dumps(dataclasses.asdict(config_of())))


def test_what_shapes_the_training_and_has_changed_is_named(stored, config_of):
    assert changed_flags(stored, config_of()) == []
    assert changed_flags(stored, config_of(learning_rate=0.01, resize="8x8", on_corrupt="skip", momentum=0.8)) == [
        "--resize was unset, is 8x8",
        "--on_corrupt was raise, is skip",
        "--learning_rate was 0.05, is 0.01",
        "--momentum was 0.9, is 0.8",
    ]


def test_where_how_long_and_in_which_order_it_runs_is_not(stored, config_of):
    elsewhere = {"data_dir": "E", "model_dir": "N", "eval_split": "none", "strategy": "mirrored", "num_replicas": 2}
    longer = {"train_steps": 7, "log_every": 3, "summary_every": 0, "checkpoint_every": 9, "steps_per_loop": 2}
    order = {"train_split": "train[:9]", "seed": 4, "prefetch": 0, "streams": 2, "shuffle_bytes": 999}
    cache = {"cache_dir": "C", "cache_bytes": 9}
    assert changed_flags(stored, config_of(**elsewhere, **longer, **order, **cache)) == []


def test_where_a_schedule_ends_is_named_if_it_shapes_the_rate(config_of):
    stored = json.loads(json.dumps(dataclasses.asdict(config_of(schedule="cosine", epochs=3))))
    assert changed_flags(stored, config_of(schedule="cosine", epochs=5)) == ["--epochs was 3, is 5"]


@dataclasses.dataclass(frozen=True)
class MoreFlags:
    smoothing: float = 0.5


def test_a_later_flag_is_compared_once_it_is_stored(stored, config_of, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Later:
        model: MoreFlags = MoreFlags()
        more: MoreFlags = MoreFlags()
        optimizer: OptimizerFlags = dataclasses.field(
            default_factory=lambda: OptimizerFlags(learning_rate=0.05, ema=0.0)
        )

    assert changed_flags(stored, Later()) == []
    stored["model"]["smoothing"] = 0.25
    assert "--smoothing was 0.25, is 0.5" in changed_flags(stored, Later())
    del stored["model"]["smoothing"]
    stored["more"] = {"smoothing": None}
    assert "--smoothing was unset, is 0.5" in changed_flags(stored, Later())


def test_a_checkpoint_of_an_earlier_version_has_no_flags(config_of):
    assert changed_flags({}, config_of(learning_rate=0.01)) == []
