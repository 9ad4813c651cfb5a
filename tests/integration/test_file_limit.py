"""A limit on the size of files (`ulimit -f`), met by whatever is written."""

import re

import pytest

from tests.helpers import forked

LIMITED = """
import resource, runpy, sys
sys.dont_write_bytecode = True  # half of what Python compiles would be left in __pycache__
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
"""
MLP = "--data_dir={data} --model_dir={tmp}/run --model=mlp"
SAYS = "File too large: this process may write files of {limit:,} bytes at most; raise ulimit -f and rerun the command"


@pytest.mark.parametrize(
    ("module", "arguments", "limit", "file"),
    [
        ("beam_jobs.convert", "--dataset=digits --data_dir={tmp}/out", 100_000, r"out/train-\S+\.tfrecord"),
        ("trainer.run", f"{MLP} --train_steps=2", 100_000, r"run/saving-\S+/ckpt-2\S+"),
        ("trainer.run", f"{MLP} --train_steps=9 --log_every=1", 4096, r"run/\S+"),
        ("pipeline.inspect", "{data} --png={tmp}/one.png", 1000, r"one\.png"),
    ],
    ids=["shard", "checkpoint", "log", "picture"],
)
@pytest.mark.quick(2)
def test_the_file_and_the_limit_are_named(module, arguments, limit, file, digits, tmp_path):
    words = arguments.format(data=digits, tmp=tmp_path).split()
    program = LIMITED.replace("sys.argv[1]", "sys.argv.pop(1)").format(limit=limit)
    done = forked.run(["-c", program, module, *words])
    assert done.returncode == 1, (done.stdout, done.stderr)
    line = done.stderr.splitlines()[-1]
    assert re.match(rf"{module}: (--png=)?{tmp_path}/{file}\W", line), line
    assert line.endswith(SAYS.format(limit=limit))
    assert "Traceback" not in done.stderr
