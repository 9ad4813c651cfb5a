"""Reports to Kubeflow Trainer, to a server on this machine with a CA and a token of its own."""

import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests import manifests
from tests.status_server import StatusServer
from trainer.callbacks import kubeflow
from trainer.callbacks.kubeflow import KubeflowReporter
from trainer.loop import Progress, Spent
from trainer.task import Evaluation


def progress(step, **values):
    """Returns a progress whose epoch has these values, other than its last batch."""
    epoch = values or {"total_loss": 0.5}
    result = SimpleNamespace(means=SimpleNamespace(numpy=lambda: np.array(list(epoch.values()))))
    return Progress(step, dict.fromkeys(epoch, 9.0), Spent(1, 1.0), Spent(1, 1.0), result)


@pytest.fixture
def server(tmp_path):
    server = StatusServer(tmp_path)
    yield server
    server.close()


@pytest.fixture
def said():
    return []


@pytest.fixture
def reporter_of(monkeypatch, said):
    """Returns a function that makes a reporter in the environment of a pod."""

    def reporter_of(server, is_chief=True, **changes):
        for name, value in {**server.environment, **changes}.items():
            monkeypatch.setenv(name, str(value))
        return KubeflowReporter(200, is_chief, said.append)

    return reporter_of


def wait_for(list_, count=1):
    end = time.monotonic() + 20
    while len(list_) < count:
        assert time.monotonic() < end, list_
        time.sleep(0.01)


def values_of(status):
    return {metric["name"]: metric["value"] for metric in status["metrics"]}


def test_a_status_as_kubeflow_wants_it(server, reporter_of, said):
    reporter = reporter_of(server)
    reporter.on_loop(progress(50))
    time.sleep(0.2)
    reporter.on_evaluation(80, Evaluation("test", 8, 0, 0.25, {"accuracy": 0.9}))
    reporter.report(progress(100, total_loss=0.5, accuracy=0.75))
    wait_for(server.received)
    (request,) = server.received
    manifests.check_trainer_api(request, "TrainerV1alpha1UpdateTrainJobStatusRequest", moments=("lastUpdatedTime",))
    status = request["trainerStatus"]
    assert status["progressPercentage"] == 50
    assert status["estimatedRemainingSeconds"] == 0  # 100 steps at 50 in 0.2 s
    assert values_of(status) == {
        "step": "100", "total_loss": "0.5", "accuracy": "0.75",
        "eval/test/loss": "0.25", "eval/test/accuracy": "0.9",
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", status["lastUpdatedTime"])
    assert said == []


def test_the_time_left_follows_from_the_steps_so_far():
    assert kubeflow.status(30, 120, 90.4, {})["estimatedRemainingSeconds"] == 90
    assert kubeflow.status(30, 120, 90.4, {})["progressPercentage"] == 25
    assert "estimatedRemainingSeconds" not in kubeflow.status(1, 120, None, {})
    assert kubeflow.status(1, 120, 1e12, {})["estimatedRemainingSeconds"] == 2**31 - 1  # an int32


def test_what_the_server_would_refuse_is_left_out():
    many = {f"{i:03d}{'x' * 100}": 1.0 for i in range(300)} | {"bad": float("nan")}
    metrics = kubeflow.status(1, 2, None, many)["metrics"]
    assert len(metrics) == 256
    assert max(len(metric["name"]) for metric in metrics) == 64


def test_the_end_is_reported_before_the_process_ends(server, reporter_of):
    reporter = reporter_of(server)
    reporter.on_evaluation(200, Evaluation("test", 8, 0, 0.25, {}))
    reporter.on_end(200)
    (request,) = server.received
    assert request["trainerStatus"]["progressPercentage"] == 100
    assert request["trainerStatus"]["estimatedRemainingSeconds"] == 0
    assert values_of(request["trainerStatus"]) == {"step": "200", "eval/test/loss": "0.25"}


def test_a_proxy_is_not_asked(server, reporter_of, said, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    reporter_of(server).on_end(1)
    assert (len(server.received), said) == (1, [])


def test_a_new_token_is_read(server, reporter_of, said):
    server.token.write_text("an old one")
    reporter = reporter_of(server)
    reporter.on_end(1)
    assert (server.received, server.refused) == ([], [403])
    server.token.write_text("the-token-of-the-pod")
    reporter.on_end(2)
    assert len(server.received) == 1
    assert len(said) == 1


@pytest.mark.parametrize("answer", [403, 422, 500])
def test_a_refusal_is_said_once(server, reporter_of, said, answer):
    server.answer = answer
    reporter = reporter_of(server)
    for step in (1, 2, 3):
        reporter.report(progress(step))
        wait_for(server.refused, step)
        reporter._thread.join()
    reporter.on_end(3)
    (line,) = said
    assert re.fullmatch(
        rf"note: Kubeflow Trainer does not get the progress \(HTTP {answer} .+\); training continues", line
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({kubeflow.CA_CERT: "missing.crt"}, "No such file"),
        ({kubeflow.TOKEN: "missing"}, "No such file"),
        ({kubeflow.URL: "https://127.0.0.1:1/"}, "Connection refused"),
        ({kubeflow.URL: "http://127.0.0.1:1/"}, "not an https:// address"),
        ({kubeflow.URL: "what"}, "not an https:// address"),
    ],
)
def test_what_cannot_work_is_said_once(server, reporter_of, said, changes, words):
    reporter = reporter_of(server, **changes)
    reporter.on_end(1)
    reporter.on_end(1)
    (line,) = said
    assert words in line
    assert server.received == []


def test_a_server_of_another_ca_gets_no_token(server, reporter_of, said, tmp_path):
    (tmp_path / "other").mkdir()
    other = StatusServer(tmp_path / "other")
    reporter_of(server, **{kubeflow.CA_CERT: other.ca}).on_end(1)
    other.close()
    assert (server.received, server.refused) == ([], [])
    assert "CERTIFICATE_VERIFY_FAILED" in said[0]


def test_training_does_not_wait_for_the_server(reporter_of, server, said, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(server, "judge", lambda *request: answered.wait(20) and 200)
    reporter = reporter_of(server)
    began = time.monotonic()
    for step in range(1, 4):
        reporter.report(progress(step))
    assert time.monotonic() - began < 1
    answered.set()


def test_only_the_chief_reports_and_only_where_kubeflow_asks(server, reporter_of, monkeypatch):
    chief, other = reporter_of(server), reporter_of(server, is_chief=False)
    assert (chief.actions()[0].seconds, other.actions()[0].seconds) == (10.0, 0.0)
    other.report(progress(1))
    other.on_end(1)
    monkeypatch.delenv(kubeflow.URL)
    alone = KubeflowReporter(200, True, print)
    assert alone.actions()[0].seconds == 0.0
    alone.on_end(1)
    assert (server.received, server.refused) == ([], [])
