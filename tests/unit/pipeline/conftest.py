"""Fixtures of the pipeline's tests."""

import platform
import shutil

import pytest

from pipeline import operations
from pipeline.read import frames


@pytest.fixture(scope="session")
def compiled():
    """The code that was compiled when the package was installed."""
    if not frames.is_compiled():
        if platform.machine() == "x86_64" and shutil.which("cc"):
            pytest.fail(
                "pipeline.read._unpack was not built, though there is a compiler; install again and read the warnings"
            )
        pytest.skip("pipeline.read._unpack was not built: no compiler, or not an x86-64 with SSE 4.2")


@pytest.fixture
def without_compiled(monkeypatch):
    """Has records unpacked by NumPy."""
    monkeypatch.setattr(frames, "_unpack", None)


@pytest.fixture(params=["compiled", "without_compiled"])
def engine(request):
    """Has records unpacked by compiled code, and without it."""
    request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def compiled_operation():
    """TensorFlow's operation that crops images in memory, which was compiled when the package was installed."""
    if not operations.is_compiled():
        if platform.system() == "Linux" and shutil.which("cc"):
            pytest.fail("pipeline.operations._operations was not built or not loaded, though there is a compiler")
        pytest.skip("pipeline.operations._operations was not built: no compiler, or not Linux")
