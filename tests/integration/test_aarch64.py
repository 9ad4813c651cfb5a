"""The compiled code for 64-bit ARM, in an emulator: it gives the same bytes and errors as this processor's build."""

import shutil

import numpy as np
import pytest

from tests.kernels import cases, expected, programs

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = [command for command in (COMPILER, EMULATOR, "cc") if shutil.which(command) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)}"),
]
SOURCES = {source.name: source for source in programs.sources()}
FLAGS, CALLS, SEEDS = ("-O3", "-DNDEBUG", "-Wall", "-Werror"), 1500, 3


@pytest.mark.parametrize("name", SOURCES)
def test_fuzzed_calls_give_the_same_on_both_processors(name, tmp_path):
    source = SOURCES[name]
    here = programs.build(tmp_path / "here", source, FLAGS)
    there = programs.build(tmp_path / "there", source, [*FLAGS, "-static"], COMPILER)
    for seed in range(SEEDS):
        given = programs.drawn(here, source, seed, CALLS)
        results = programs.run(here, given)
        assert programs.run(there, given, [EMULATOR]) == results
        for case, result in zip(given, results, strict=True):
            expected.check(case, result)


@pytest.mark.parametrize("compiler", [COMPILER, "clang"])
def test_long_records_have_the_same_crcs(compiler, tmp_path):
    """So long that the CRCs of their parts are joined; cases of other tests are shorter."""
    source, flags = SOURCES["pipeline.read._unpack"], [*FLAGS, "-static"]
    if compiler == "clang":  # which names the instructions otherwise
        if shutil.which(compiler) is None:
            pytest.skip("no clang")
        flags += ["--target=aarch64-linux-gnu", "-I/usr/aarch64-linux-gnu/include", "-L/usr/aarch64-linux-gnu/lib"]
    there = programs.build(tmp_path, source, flags, compiler)
    rng = np.random.default_rng(0)
    given = [cases.check_of(rng, size) for size in (750, 768, 769, 3 * 4096, 3 * 4096 + 9, 100_000)]
    for case, result in zip(given, programs.run(there, given, [EMULATOR]), strict=True):
        assert not result.problem
        expected.check(case, result)


def test_a_wrong_instruction_would_be_seen(tmp_path):
    source = SOURCES["pipeline.read._unpack"]

    def changed(name, text):
        return text.replace("CRC_OF_WORD __crc32cd", "CRC_OF_WORD __crc32d")  # another polynomial

    there = programs.build(tmp_path, source, [*FLAGS, "-static"], COMPILER, changed)
    [result] = programs.run(there, [cases.check_of(np.random.default_rng(0), 100)], [EMULATOR])
    assert result.buffers[2] != bytes(len(result.buffers[2]))


def test_a_processor_without_the_instructions_is_refused(tmp_path):
    source = SOURCES["pipeline.read._unpack"]

    def changed(name, text):
        return text.replace("HAS_CRC32 = 1 << 7", "HAS_CRC32 = 0")

    there = programs.build(tmp_path, source, [*FLAGS, "-static"], COMPILER, changed)
    with pytest.raises(programs.FaultError, match="no instructions for CRC32C"):
        programs.run(there, [], [EMULATOR])
