import io
import sys
import threading

from beam_jobs.runs.main_thread_only import MainThreadOnly


def test_only_the_main_thread_is_heard(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", MainThreadOnly(stream))
    thread = threading.Thread(target=lambda: print("thread", file=sys.stderr, flush=True))
    thread.start()
    thread.join()
    print("main", file=sys.stderr, flush=True)
    assert stream.getvalue() == "main\n"
    assert not sys.stderr.isatty()
