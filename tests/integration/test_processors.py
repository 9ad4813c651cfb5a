"""What computes passes on other kinds of processor, too: simulated, each in a process of its own.

TensorFlow turns oneDNN's operations on only where the processor has AVX-512 VNNI or better, so their absence is what
differs most: a ReLU fused into them gives 0 for NaN, Eigen's gives NaN. oneDNN's matrix products and XLA's code are
held to older instructions by variables of their own. What stays as it is: Eigen's kernels, which TensorFlow compiles
once for AVX, and libraries that choose for themselves (NumPy, libjpeg-turbo, CRC32C); these take such a processor.
"""

import os
import pathlib

import pytest

from tests.helpers import forked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]
BOUND = 2400  # seconds; 300 on two idle cores
PROCESSORS = {
    "AVX2, as Zen 3": ("0", "AVX2", "AVX2"),
    "AVX2 and oneDNN": ("1", "AVX2", "AVX2"),
    "SSE4.2": ("0", "SSE41", "SSE4_2"),
}
# TensorFlow asks the real processor whether oneDNN has bfloat16; held to AVX2 it then finds no such convolution. On one
# with AMX it takes oneDNN's products of these types even if it is told to do without oneDNN.
CPU = pathlib.Path("/proc/cpuinfo")
HAS_AMX = CPU.is_file() and "amx_bf16" in CPU.read_text()
HALVES = "(bfloat16 or scaled_gradients_overflow)"  # tests of bfloat16 and of float16
LEFT_OUT = {name: HALVES for name in PROCESSORS if HAS_AMX or name == "AVX2 and oneDNN"}
SENSITIVE = (  # what computes in floating point, and compares with numbers or with itself
    "tests/unit/pipeline/augmentation",
    "tests/unit/pipeline/order",
    "tests/unit/trainer/step",
    "tests/unit/trainer/test_task.py",
    "tests/unit/trainer/test_loop.py",
    "tests/integration/test_losses.py",
    "tests/integration/test_train.py",
)


def environment_of(processor):
    operations, onednn, xla = PROCESSORS[processor]
    return os.environ | {
        "TF_ENABLE_ONEDNN_OPTS": operations,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "XLA_FLAGS": f"--xla_cpu_max_isa={xla}",
        "PYTEST_ADDOPTS": "",
    }


@pytest.mark.parametrize("processor", PROCESSORS)
def test_what_computes_passes(processor, tmp_path):
    flags = ["-q", "-x", "-m", "not slow and not engines", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    if processor in LEFT_OUT:
        flags += ["-k", f"not {LEFT_OUT[processor]}"]
    done = forked.fresh(["-m", "pytest", *flags, *SENSITIVE], environment_of(processor), timeout=BOUND)
    assert done.returncode == 0, done.stdout[-5000:]


RELU = """
import numpy as np, tensorflow as tf
weights, bias = tf.ones([12, 64]), tf.zeros([64])
rows = np.full((8, 12), np.nan, np.float32)
hidden = tf.function(lambda x: tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weights), bias)))
print(float(hidden(tf.constant(rows))[0, 0]))
"""


def test_the_simulation_is_one():
    """Without oneDNN's operations a NaN passes a ReLU, as on Zen 3."""
    done = forked.fresh(["-c", RELU], environment_of("AVX2, as Zen 3") | {"ONEDNN_VERBOSE": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nan"
    assert "AVX512" not in done.stdout
