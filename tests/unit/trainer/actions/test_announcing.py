import pytest

from trainer.actions import announcing
from trainer.actions.output import Output


@pytest.mark.parametrize(
    ("step", "steps", "noted"), [(0, 0, False), (30, 15, False), (35, 5, False), (35, 0, True), (35, 3, True)]
)
def test_a_resumed_run_says_from_which_step_its_means_are(step, steps, noted, capsys):
    """Epochs of 15 steps; what a checkpoint of an earlier version lacks, or one of other epochs."""
    announcing.say_epoch(Output(), step, 15, steps)
    note = (
        "note: the checkpoint has no loss and metrics of its epoch so far; those shown until step 45 are means from "
        "step 36 on\n"
    )
    assert capsys.readouterr().out == (note if noted else "")


@pytest.mark.parametrize("installed", [True, False])
def test_tensorboard_is_named_with_how_to_get_it(installed, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(announcing.importlib.util, "find_spec", lambda name: object() if installed else None)
    announcing.say_end(Output(), 5, (), "ckpt-5", None, tmp_path)
    how = "" if installed else " (pip install tensorboard)"
    assert capsys.readouterr().out == f"checkpoint: ckpt-5; logs: tensorboard --logdir={tmp_path}{how}\n"
