"""The classic flags --worker_hosts, --ps_hosts, --job_name and --task_index as a TF_CONFIG."""

from __future__ import annotations

import json
import os

from pipeline.errors import UsageError
from trainer.cluster.tf_config import VARIABLE
from trainer.config.run import ClusterFlags

SOURCE = "--worker_hosts"  # what messages call it


def tf_config(flags: ClusterFlags, strategy: str) -> str:
    """Returns the TF_CONFIG text that flags say.

    Args:
      flags: with --worker_hosts.
      strategy: without parameter servers, every process is a worker.

    Raises:
      UsageError: they do not say which process this is, or the environment's TF_CONFIG says something else.
    """
    hosts = flags.hosts
    lists = {"chief": hosts(flags.chief_host), "worker": hosts(flags.worker_hosts), "ps": hosts(flags.ps_hosts)}
    jobs = {job: addresses for job, addresses in lists.items() if addresses}
    job = flags.job_name or ("worker" if strategy == "multiworker" else None)
    if job is None:
        raise UsageError(f"--worker_hosts={flags.worker_hosts}: say which process this is: --job_name=ps or worker")
    if job == "chief" and not flags.chief_host:
        raise UsageError(
            "--job_name=chief: needs --chief_host=host:port, on all processes; without it the process of worker 0 is "
            "the chief"
        )
    if job not in jobs:
        raise UsageError(f"--job_name={job} with --strategy={strategy}: must be {' or '.join(jobs)}")
    index, count = flags.task_index, len(jobs[job])
    if index is None and count > 1:
        raise UsageError(f"--job_name={job}: say which of its {count} processes this is: --task_index=0 and up")
    if index is not None and index >= count:
        raise UsageError(f"--task_index={index}: --job_name={job} has {count}, numbered from 0")
    text = json.dumps({"cluster": jobs, "task": {"type": job, "index": index or 0}})
    if os.environ.get(VARIABLE, "").strip() not in ("", text):  # equal: set by an earlier run in this process
        raise UsageError(f"--worker_hosts={flags.worker_hosts} and {VARIABLE}: give one of them")
    return text
