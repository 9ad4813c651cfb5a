import io
import sys
import threading

import pytest

from beam_jobs.runs import quiet


def say_in_a_thread():
    thread = threading.Thread(target=lambda: print("thread", file=sys.stderr))
    thread.start()
    thread.join()
    print("main", file=sys.stderr)


def test_only_the_main_thread_is_heard(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with quiet.quiet_threads():
        say_in_a_thread()
    assert stream.getvalue() == "main\n"
    say_in_a_thread()
    assert stream.getvalue() == "main\nthread\nmain\n"


@pytest.mark.parametrize(("error", "heard"), [(ValueError, "thread\nmain\n"), (KeyboardInterrupt, "main\n")])
def test_threads_stay_silent_after_ctrl_c_only(error, heard, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(error), quiet.quiet_threads():
        raise error
    say_in_a_thread()
    assert stream.getvalue() == heard
