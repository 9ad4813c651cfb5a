"""The classic flags --worker_hosts, --ps_hosts, --job_name and --task_index as a TF_CONFIG."""

from __future__ import annotations

import json

from pipeline.errors import UsageError
from trainer.config.flags.cluster import ClusterFlags

SOURCE = "--worker_hosts and the like"  # what messages call it


def tf_config(flags: ClusterFlags, strategy: str) -> str:
    """Returns the TF_CONFIG text that flags say.

    Args:
      flags: with --worker_hosts.
      strategy: without parameter servers, every process is a worker.

    Raises:
      UsageError: they do not say which process this is.
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
    if flags.task_index is None and len(jobs[job]) > 1:
        raise UsageError(
            f"--job_name={job}: say which of its {len(jobs[job])} processes this is: --task_index=0 and up"
        )
    return json.dumps({"cluster": jobs, "task": {"type": job, "index": flags.task_index or 0}})
