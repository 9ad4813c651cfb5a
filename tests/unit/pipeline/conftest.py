"""Fixtures of the pipeline's tests."""

import platform
import shutil

import pytest

from pipeline import operations
from pipeline.read import frames

SYSTEMS = ("Linux", "Darwin")  # that the compiled code is written for


@pytest.fixture(scope="session")
def compiled():
    """The code that was compiled when the package was installed."""
    if not frames.is_compiled():
        if _has_instructions() and shutil.which("cc"):
            pytest.fail(
                "pipeline.read._unpack was not built, though there is a compiler; install again and read the warnings"
            )
        pytest.skip("pipeline.read._unpack was not built: no compiler, or a processor without instructions for CRC32C")


def _has_instructions():
    """Whether the processor is one that the compiled code is written for."""
    return platform.system() in SYSTEMS and platform.machine() in ("x86_64", "aarch64", "arm64")


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
        if platform.system() in SYSTEMS and shutil.which("cc"):
            pytest.fail("pipeline.operations._operations was not built or not loaded, though there is a compiler")
        pytest.skip("pipeline.operations._operations was not built: no compiler, or neither Linux nor macOS")


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def feature(name, kind, content):
    return field(1, field(1, name) + field(2, field(kind, content)))


IMAGE, LABEL = feature(b"image", 1, field(1, b"i")), feature(b"label", 3, field(1, b"\x05"))
# An Example whose label is a number by itself, as proto2 writes it, where proto3 writes a list of numbers in bytes.
UNPACKED = field(1, IMAGE + feature(b"label", 3, b"\x08\x05"))
