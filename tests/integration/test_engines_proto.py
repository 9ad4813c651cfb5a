"""The pipeline as a cluster gets it: small, and whole without this process, its files and its main module."""

import base64
import bz2
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from apache_beam import Pipeline
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from beam_jobs.config import ConvertConfig
from beam_jobs.conversion.job import Conversion
from beam_jobs.plan import make_plan
from beam_jobs.runs.run import OverShards
from tests.helpers.forked import ROOT, fresh

MAX_BYTES = 64 << 10  # 64 KiB
OURS = "beam:dofn:pickled_python_info:v1"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of the digits in five shards."""
    folder = tmp_path_factory.mktemp("plan")
    config = ConvertConfig(dataset="digits", data_dir=str(folder), num_shards="train:4,test:1")
    return make_plan(config, folder)


@pytest.fixture(scope="module")
def proto(plan):
    """The pipeline, translated for a cluster whose workers are containers."""
    pipeline = Pipeline(options=PipelineOptions(["--runner=PortableRunner", "--environment_type=DOCKER"]))
    pipeline | "Convert" >> OverShards(Conversion(plan))
    return pipeline.to_runner_api()


def pickled(proto):
    """Returns {name of the transform: the pickle that a worker loads} of the ParDos."""
    found = {}
    for transform in proto.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            pardo = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if pardo.do_fn.urn == OURS:  # else it is one of Beam's that has no code to ship
                found[transform.unique_name] = pardo.do_fn.payload
    return found


def unpacked(data):
    """Returns the plain pickle in what Beam wraps it into."""
    return bz2.decompress(base64.b64decode(data))


def test_the_chain_is_linear_and_small(proto):
    assert len(proto.SerializeToString()) < MAX_BYTES
    steps = [step for step in proto.components.transforms.values() if not step.subtransforms]
    steps = [step for step in steps if set(step.inputs.values()) != set(step.outputs.values())]  # those do nothing
    consumers = [collection for step in steps for collection in step.inputs.values()]
    assert len(consumers) == len(set(consumers))  # nothing is read twice: some runners lose a branch
    assert all(len(transform.outputs) <= 1 for transform in proto.components.transforms.values())


def test_one_more_shard_adds_only_its_number(plan, proto):
    more = dataclasses.replace(plan, num_shards={"train": 1000, "test": 1})
    pipeline = Pipeline(options=PipelineOptions(["--runner=PortableRunner", "--environment_type=DOCKER"]))
    pipeline | "Convert" >> OverShards(Conversion(more))
    grown = len(pipeline.to_runner_api().SerializeToString()) - len(proto.SerializeToString())
    assert grown < 996 * 64


def test_our_steps_hold_a_plan_and_nothing_of_this_process(plan, proto):
    steps = pickled(proto)
    ours = {name: unpacked(data) for name, data in steps.items() if re.search("Make|Check|Write", name)}
    assert len(ours) == 3
    for name, data in ours.items():
        assert len(data) < 16 << 10, name
        assert b"<lambda>" not in data, name
        assert b"cloudpickle" not in data, name  # code by value: of a lambda, or of what only this process has
        assert b"/tmp/" not in data.replace(plan.config.data_dir.encode(), b""), name  # but the folder that was named
    assert plan.data_dir.name.encode() in next(data for name, data in ours.items() if "Make" in name)
    for name, data in steps.items():
        assert b"__main__" not in unpacked(data), name


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """What `--setup_file=./setup.py` ships to a worker, unpacked: made as Beam makes it."""
    checkout, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("shipped")
    for name in ("setup.py", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in ("stepfeed", "pipeline", "beam_jobs", "trainer"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "setup.py", "--quiet", "sdist", f"--dist-dir={out}"]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    (archive,) = out.glob("stepfeed-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


def test_a_worker_with_nothing_but_the_package_can_load_every_step(proto, shipped, tmp_path):
    """In a separate interpreter, in another folder, like a worker."""
    file = tmp_path / "steps.txt"
    file.write_bytes(b"\n".join(pickled(proto).values()))
    script = (
        "import sys; from apache_beam.internal import pickler\n"
        "for line in open(sys.argv[1], 'rb'): pickler.loads(line.strip())\n"
        "import beam_jobs.shards.writer; print(beam_jobs.shards.writer.__file__, 'tensorflow' in sys.modules)\n"
    )
    # Without the interpreter's site-packages, which may contain this checkout: -S, and the libraries by name.
    libraries = os.pathsep.join([str(shipped), *(path for path in sys.path if path.endswith("site-packages"))])
    done = fresh(["-S", "-c", script, file], {"PYTHONPATH": libraries}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(shipped / "beam_jobs" / "shards" / "writer.py"), "False"]
