"""Fixtures of the pipeline's tests."""

import platform
import shutil

import pytest

from pipeline.read import unpack


@pytest.fixture(scope="session")
def compiled():
    """The code that was compiled when the package was installed."""
    if not unpack.is_compiled():
        if platform.machine() == "x86_64" and shutil.which("cc"):
            pytest.fail(
                "pipeline.read._unpack was not built, though there is a compiler; install again and read the warnings"
            )
        pytest.skip("pipeline.read._unpack was not built: no compiler, or not an x86-64 with SSE 4.2")


@pytest.fixture(params=["compiled", "NumPy"])
def engine(request, monkeypatch):
    """Has records unpacked by compiled code, and without it."""
    if request.param == "NumPy":
        monkeypatch.setattr(unpack, "_unpack", None)
    else:
        request.getfixturevalue("compiled")
    return request.param
