"""A run that reports to Kubeflow Trainer, and one whose reports are refused."""

from tests import forked
from tests.status_server import StatusServer

FLAGS = ("--train_steps=30", "--log_every=10", "--summary_every=10")


def run(data, folder, environment):
    program = ["-m", "trainer.run", f"--data_dir={data}", f"--model_dir={folder}", *FLAGS]
    return forked.run(program, environment)


def test_the_end_of_a_run_is_reported(digits, tmp_path):
    server = StatusServer(tmp_path)
    result = run(digits, tmp_path / "run", server.environment)
    assert (result.returncode, result.stderr) == (0, "")
    status = server.received[-1]["trainerStatus"]
    assert status["progressPercentage"] == 100
    values = {metric["name"]: float(metric["value"]) for metric in status["metrics"]}
    assert values["step"] == 30
    assert f"test accuracy = {values['eval/test/accuracy']:.4f}" in result.stdout

    server.token.write_text("another")
    result = run(digits, tmp_path / "refused", server.environment)
    server.close()
    assert (result.returncode, result.stderr) == (0, "")
    line = "note: Kubeflow Trainer does not get the progress (HTTP 403 Forbidden); training continues"
    assert result.stdout.splitlines().count(line) == 1
