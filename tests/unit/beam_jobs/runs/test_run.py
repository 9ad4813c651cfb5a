import io
import os
import subprocess
import sys
import tempfile
import threading
import traceback

import grpc
import pytest
import requests

from beam_jobs.runs import run
from beam_jobs.runs.run import Display, MainThreadOnly, as_ours, carried
from pipeline.errors import DataError, RerunError, TransientError, UsageError
from tests.helpers.displays import later, terminal

KEEP = """
import tempfile, time
from beam_jobs.runs.run import temporary_folder
with temporary_folder() as folder:
    tempfile.mkdtemp(prefix="beam-pipeline-temp")
    print(folder, flush=True)
    time.sleep(60)
"""


def caused(error, cause):
    error.__cause__ = cause
    return error


WORKER_DIED = "a worker process died (out of memory?); run again with fewer --direct_num_workers"
OURS = DataError("/x/train: cannot be written: No space left on device")


@pytest.mark.parametrize(
    ("failure", "kind", "text"),
    [
        (OURS, DataError, "/x/train: cannot be written: No space left on device"),
        (
            caused(RuntimeError("bundle failed"), OURS),
            DataError,
            "/x/train: cannot be written: No space left on device",
        ),
        (ValueError("first\n\n  last  \n"), DataError, "Beam: ValueError: last"),
        (RuntimeError("Channel closed prematurely."), TransientError, WORKER_DIED),
        (RuntimeError(), DataError, "Beam: RuntimeError: no message"),
    ],
)
def test_our_error_is_found(failure, kind, text):
    found = as_ours(failure)
    assert type(found) is kind
    assert str(found) == text


@pytest.mark.parametrize("kind", [DataError, UsageError, TransientError, RerunError])
def test_an_error_of_ours_survives_the_text_that_a_runner_makes_of_it(kind):
    """A worker in another process sends its traceback, and where in the pipeline it was; Go's escape its lines."""
    with pytest.raises(RuntimeError) as caught, carried():
        raise kind("/x: first [a: 'b']\nlast \udc80 ]")
    trace = (
        "".join(traceback.format_exception(caught.value)).rstrip()
        + " [while running 'Convert/MakeShards']\n\n\tat a.B(C.java:1)"
    )
    for text in (trace, repr(trace)):
        found = as_ours(RuntimeError(text))
        assert type(found) is kind
        assert str(found) == "/x: first [a: 'b']\nlast \udc80 ]"


def test_a_job_server_that_is_lost_is_named():
    with grpc.insecure_channel("localhost:1") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/job/Run")(b"", timeout=30)
    text = str(as_ours(caught.value))
    assert text.startswith("the runner's job server is gone or failed: failed to connect to all addresses")
    assert "\n" not in text
    assert str(as_ours(grpc.FutureTimeoutError())) == "the runner's job server does not answer"


def test_a_job_manager_that_is_lost_is_named():
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("http://127.0.0.1:1/v1/jobs", timeout=5)
    error = as_ours(caught.value)
    assert type(error) is TransientError
    assert str(error) == "Flink does not answer any more at 127.0.0.1:1; run the same command again once it does"


def test_only_the_main_thread_is_heard(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", MainThreadOnly(stream))
    thread = threading.Thread(target=lambda: print("thread", file=sys.stderr, flush=True))
    thread.start()
    thread.join()
    print("main", file=sys.stderr, flush=True)
    assert stream.getvalue() == "main\n"
    assert not sys.stderr.isatty()


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def start(place):
    environment = os.environ | {"TMPDIR": str(place)}
    process = subprocess.Popen([sys.executable, "-c", KEEP], stdout=subprocess.PIPE, env=environment, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_run_leaves_goes_with_it(place):
    with run.temporary_folder() as folder:
        left = tempfile.mkdtemp(prefix="beam-pipeline-temp")
        assert os.path.dirname(left) == str(folder)
    assert tempfile.gettempdir() == str(place)
    assert list(place.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(place):
    killed, left = start(place)
    running, kept = start(place)
    killed.kill()
    killed.wait()
    assert len(os.listdir(left)) == 1
    (place / "stepfeed-run-file").touch()
    (place / "other").mkdir()
    with run.temporary_folder() as mine:
        assert set(place.iterdir()) == {
            mine,
            place / os.path.basename(kept),
            place / "other",
            place / "stepfeed-run-file",
        }
        assert len(os.listdir(kept)) == 1
    running.kill()
    running.wait()


class Counter(Display):
    """Goes up by one with each look; there is nothing to see for a second then."""

    seconds_between_looks = 1.0

    def text(self):
        return f"{self.done} of {self.total}"

    def _look(self):
        self.done += 1


def test_a_line_after_five_seconds_with_the_time_that_is_left_and_none_before(capsys):
    with Counter(9) as counter:
        for seconds in (0, 4.9, 0.2, 0, 5):
            later(counter, seconds)
            counter.show()
    # The first was done before: 1 in 5 seconds, 2 in 10.
    assert capsys.readouterr().out == "2 of 9, 00:35 left\n3 of 9, 00:30 left\n"


def test_a_bar_looks_when_it_is_time_and_is_taken_away(capsys):
    with terminal(60) as sent, Counter(4) as counter:
        assert " 25%|██" in (first := sent())
        assert "| 1 of 4, 00:00<" in first
        counter.show()
        assert sent() == ""
        later(counter, 1.1)
        counter.show()
        assert " 50%|████" in (second := sent())
        assert "| 2 of 4, 00:00<" in second
        counter.__exit__(None, None, None)
        assert sent().rpartition("\r")[0].strip() == ""
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("columns", "lines"), [(20, 40), (40, 40), (0, 0), (80, 0), (0, 24)])
def test_a_bar_is_never_wider_than_the_terminal_or_80_columns_where_it_does_not_say_its_size(columns, lines):
    class Long(Counter):
        def text(self):
            return "1 of 9" + "x" * 100

    with terminal(columns, lines) as sent, Long(9):
        shown = sent()
    assert "1 of 9" in shown
    assert max(map(len, shown.replace("\r", "\n").splitlines())) <= (columns or 80)


class Result:
    """Of a pipeline that ended in a state, or is at work still."""

    def __init__(self, state):
        self.state, self.cancelled = state, threading.Event()

    def wait_until_finish(self):
        return self.state

    def cancel(self):
        self.cancelled.set()
        raise RuntimeError("the cluster is gone")


@pytest.mark.parametrize(("state", "fails"), [("DONE", False), (None, False), ("FAILED", True), ("CANCELLED", True)])
def test_the_state_in_which_a_runner_ends_decides(monkeypatch, state, fails):
    class Pipeline:
        def __init__(self, *_):
            pass

        def __or__(self, _):
            return self

        def run(self):
            return Result(state)

    monkeypatch.setattr(run.beam, "Pipeline", Pipeline)
    monkeypatch.setattr(run, "OverShards", lambda job: job)
    job = run._Run(None, None, None)
    job.run()
    assert isinstance(job.failure, TransientError) == fails
    assert not fails or str(job.failure) == f"the runner ended in state {state}; see its log"


def test_a_job_is_cancelled_once_it_has_begun_and_an_error_of_that_is_nobodys():
    job = run._Run(None, None, None)
    job.cancel()  # nothing to cancel
    job._result = result = Result(None)
    job.cancel()
    assert result.cancelled.is_set()


# As they come from Flink 1.19 and Spark 3.5 on a cluster, less most of the frames.
POOL_KILLED_FLINK = """\
Pipeline job-d3d6eef3 failed in state FAILED: java.util.concurrent.ExecutionException: \
org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: CANCELLED: client cancelled
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
\tat org.apache.beam.runners.fnexecution.control.SdkHarnessClient.close(SdkHarnessClient.java:522)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: CANCELLED: client cancelled
\tat org.apache.beam.vendor.grpc.v1p60p1.io.grpc.Status.asRuntimeException(Status.java:529)
\t... 1 more
"""
POOL_KILLED_SPARK = """\
Pipeline BeamApp-root-1122122458 failed in state FAILED: org.apache.spark.SparkException: Job aborted due to stage \
failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 7) (localhost \
executor 1): org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.concurrent.UncheckedExecutionException: \
org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.cache.LocalCache$Segment.get(LocalCache.java:2086)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.beam.vendor.grpc.v1p60p1.io.grpc.stub.ClientCalls.toStatusRuntimeException(ClientCalls.java:268)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.AbstractChannel$AnnotatedConnectException: \
finishConnect(..) failed: Connection refused: localhost/127.0.0.1:50000
Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused
\tat org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.unix.Errors.newConnectException0(Errors.java:166)

Driver stacktrace:
"""
TASK_MANAGER_KILLED = """\
Pipeline job-1 failed in state FAILED: org.apache.flink.runtime.JobException: Recovery is suppressed by \
NoRestartBackoffTimeStrategy
\tat org.apache.flink.runtime.executiongraph.failover.Handler.handle(ExecutionFailureHandler.java:219)
Caused by: org.apache.flink.runtime.jobmaster.JobMasterException: TaskManager with id localhost:36-4f is no longer \
reachable.
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
PYTHON = """\
Pipeline job-1 failed in state FAILED: java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error \
received from SDK harness for instruction 3: Traceback (most recent call last):
  File "x.py", line 1, in process
RuntimeError: not this time [while running 'Convert/MakeShards']

\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
Caused by: java.lang.RuntimeException: Error received from SDK harness for instruction 3: Traceback \
(most recent call last):
  File "x.py", line 1, in process
RuntimeError: not this time [while running 'Convert/MakeShards']

\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.onNext(FnApiControlClient.java:180)
\t... 2 more
"""
OTHER = """\
Pipeline job-1 failed in state FAILED: java.lang.IllegalStateException: no such jar
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            POOL_KILLED_FLINK,
            "the cluster lost a worker (StatusRuntimeException: CANCELLED: client cancelled); "
            "run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (
            POOL_KILLED_SPARK,
            "the cluster lost a worker (AbstractChannel$AnnotatedConnectException: finishConnect(..) failed: "
            "Connection refused: localhost/127.0.0.1:50000); "
            "run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (
            TASK_MANAGER_KILLED,
            "the cluster lost a worker (JobMasterException: TaskManager with id localhost:36-4f is no longer "
            "reachable.); run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (PYTHON, "the job failed on the cluster: RuntimeError: not this time [while running 'Convert/MakeShards']"),
        (OTHER, "the job failed on the cluster: IllegalStateException: no such jar"),
        ("ValueError: at (x) more", "Beam: RuntimeError: ValueError: at (x) more"),
    ],
    ids=["pool, Flink", "pool, Spark", "task manager", "Python", "other", "not Java"],
)
def test_a_failure_on_a_cluster_is_one_line(text, line):
    error = as_ours(RuntimeError(text))
    assert str(error) == line
    assert isinstance(error, TransientError) is line.startswith("the cluster lost a worker")
