"""Training runs as processes: started, followed by their log lines, compared by their checkpoints."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Sequence

import tensorflow as tf

from tests.helpers import forked
from tests.helpers.forked import free_ports

Path = str | os.PathLike[str]
RECORD_KEY = "record/.ATTRIBUTES/py_state"  # part of the format: what resumes a run reads it
# The line of a run as soon as it receives a signal; its last one comes when it has saved.
STOPS = r"trainer\.run: SIG\w+(?: to .+)?: stops after the current steps? .*and saves; a second signal ends it .*\n"
ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from trainer import run
run.entry_point()
"""  # trainer.run, for `forked.Process(["-c", ...])`


def start(data_dir: Path, model_dir: Path, *flags: str, tf_config: str | None = None) -> forked.Process:
    """Starts `trainer.run`, of `mlp` unless flags name a model, a task or a file."""
    named = any(flag.startswith(("--model=", "--task=", "--config=")) for flag in flags)
    model = () if named else ("--model=mlp",)
    program = ["-m", "trainer.run", f"--data_dir={data_dir}", f"--model_dir={model_dir}", *model, *flags]
    return forked.Process(program, {"PYTHONUNBUFFERED": "1", "TF_CONFIG": tf_config})


def tf_configs(count: int) -> list[str]:
    """Returns the TF_CONFIG of each worker of a cluster on this machine."""
    addresses = [f"localhost:{port}" for port in free_ports(count)]
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [json.dumps({"cluster": {"worker": addresses}, "task": task}) for task in tasks]


def start_workers_by_flags(data_dir: Path, model_dirs: Sequence[Path], *flags: str) -> list[forked.Process]:
    """Starts the workers that `start_workers` does, by the classic flags instead of TF_CONFIG."""
    hosts = ",".join(f"localhost:{port}" for port in free_ports(len(model_dirs)))
    flags = ("--strategy=multiworker", f"--worker_hosts={hosts}", "--job_name=worker", *flags)
    return [start(data_dir, folder, *flags, f"--task_id={index}") for index, folder in enumerate(model_dirs)]


def start_workers(data_dir: Path, model_dirs: Sequence[Path], *flags: str) -> list[forked.Process]:
    """Starts a worker for each model_dir, with --strategy=multiworker."""
    flags, configs = ("--strategy=multiworker", *flags), tf_configs(len(model_dirs))
    return [start(data_dir, *one, *flags, tf_config=config) for *one, config in zip(model_dirs, configs, strict=True)]


def finish(*processes: forked.Process, timeout: float = forked.TIMEOUT) -> list[tuple[int | None, str, str]]:
    """Returns (exit code, rest of stdout, stderr) of each process at its end, or killed after `timeout` seconds."""
    outputs = [process.communicate(timeout) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def succeed(*processes: forked.Process, timeout: float = forked.TIMEOUT) -> list[str]:
    """Returns the stdout of each process; all must end with exit code 0, and say nothing on stderr."""
    ends = finish(*processes, timeout=timeout)
    assert [(code, err) for code, _, err in ends] == [(0, "")] * len(ends), ends
    return [out for _, out, _ in ends]


def train(data_dir: Path, model_dir: Path, *flags: str, tf_config: str | None = None) -> str:
    """Returns the stdout of a run to its end, of the process that `start` starts."""
    [out] = succeed(start(data_dir, model_dir, *flags, tf_config=tf_config))
    return out


def kill(*processes: forked.Process) -> None:
    """Kills processes, and waits for their ends."""
    for process in processes:
        process.kill()
    finish(*processes)


def saved_steps(model_dir: Path) -> list[int]:
    """Returns the steps of the checkpoints in a folder, sorted."""
    return sorted(int(path.stem.removeprefix("ckpt-")) for path in pathlib.Path(model_dir).glob("ckpt-*.index"))


def forget(model_dir: Path, *steps: int) -> None:
    """Removes the checkpoints of these steps, as if the run had been killed before it saved them."""
    for step in steps:
        for path in pathlib.Path(model_dir).glob(f"ckpt-{step}.*"):
            path.unlink()


def wait_for_step(process: forked.Process, step: int) -> None:
    """Reads the run's lines until a log line of that step or a later one; fails with its stderr if none comes."""
    for line in process.stdout:
        match = re.match(r"(?:[\d-]+ [\d:.]+: )?step (\d+), loss", line)  # with --log_time, too
        if match and int(match[1]) >= step:
            return
    raise AssertionError(process.stderr.read())


def checkpoint_bytes(model_dir: Path, step: int) -> dict[str, bytes]:
    """Returns every tensor of a checkpoint as bytes, and its record, if it has one, without the flags of the run."""
    reader = tf.train.load_checkpoint(str(pathlib.Path(model_dir) / f"ckpt-{step}"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name[0] != "_"}
    record = values.pop(RECORD_KEY, None)
    stored = {name: value if isinstance(value, bytes) else value.tobytes() for name, value in values.items()}
    if record is None:  # of a loop of one's own
        return stored
    record = json.loads(record)
    assert record.pop("config")
    return {**stored, RECORD_KEY: json.dumps(record, sort_keys=True).encode()}


def scalars(folder: pathlib.Path) -> dict[tuple[str, int], float]:
    """Returns {(tag, step): value} of the files in a folder as TensorBoard shows them: each process's start purges."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for i, record in enumerate(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()):
            event = tf.compat.v1.Event.FromString(record)
            assert (event.file_version == "brain.Event:2") == (i == 0)
            if event.session_log.status == event.session_log.START:
                found = {key: value for key, value in found.items() if key[1] < event.step}
            found.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
    return found
