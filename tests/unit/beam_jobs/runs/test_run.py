import io
import sys
import threading

import grpc
import pytest
import requests

from beam_jobs.runs.run import MainThreadOnly, as_one_line
from pipeline.errors import DataError, TransientError, UsageError


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
        (DataError("/x: bad [while running 'Convert/WriteShard']"), DataError, "/x: bad"),
        (
            RuntimeError(
                "Error received from SDK harness for instruction 3: Traceback (most recent call last):\n"
                '  File "x.py", line 1\n'
                "pipeline.errors.DataError: /x: first\n\nDuring handling of ...\n"
                "pipeline.errors.DataError: /x: first [while running 'Convert/WriteShard-ptransform-7']\n"
            ),
            DataError,
            "/x: first",
        ),
        (RuntimeError("Traceback\npipeline.errors.UsageError: --flag: no"), UsageError, "--flag: no"),
        (RuntimeError("Traceback\npipeline.errors.TransientError: no room"), TransientError, "no room"),
        (RuntimeError("Traceback\npipeline.errors.OtherError: text"), DataError, "text"),
        (ValueError("first\n\n  last  \n"), DataError, "Beam: ValueError: last"),
        (RuntimeError("Channel closed prematurely."), TransientError, WORKER_DIED),
        (RuntimeError(), DataError, "Beam: RuntimeError: no message"),
    ],
)
def test_our_error_is_found(failure, kind, text):
    found = as_one_line(failure)
    assert type(found) is kind
    assert str(found) == text


def test_a_job_server_that_is_lost_is_named():
    with grpc.insecure_channel("localhost:1") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/job/Run")(b"", timeout=30)
    text = str(as_one_line(caught.value))
    assert text.startswith("the runner's job server is gone or failed: failed to connect to all addresses")
    assert "\n" not in text
    assert str(as_one_line(grpc.FutureTimeoutError())) == "the runner's job server does not answer"


def test_a_job_manager_that_is_lost_is_named():
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get("http://127.0.0.1:1/v1/jobs", timeout=5)
    error = as_one_line(caught.value)
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
