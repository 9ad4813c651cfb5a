"""tf.data service with dynamic sharding: one dispatcher and one worker, from which all ranks take batches."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import tf_data, tfrecords

TITLE = "tf.data service: `DYNAMIC`"
PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
DOCS = (
    "https://www.tensorflow.org/api_docs/python/tf/data/experimental/service",
    "https://www.tensorflow.org/api_docs/python/tf/data/experimental/service/ShardingPolicy",
)
NOTE = (
    "`distribute(ShardingPolicy.DYNAMIC, job_name=...)`, a job per epoch that all ranks share; its iterators cannot be "
    "checkpointed. (Its coordinated reads keep steps even, over data without end only.)"
)
SKIPS = True
RESUMES = ELASTIC = ENDLESS = False
write = tfrecords.write


class Loader:
    """Takes batches from the service, which runs in the first rank's process."""

    def __init__(self, job: Job) -> None:
        import tensorflow as tf  # noqa: PLC0415

        self._job = job
        if job.rank == 0:
            service = tf.data.experimental.service
            self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=job.port, protocol="grpc"))
            self._worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=f"localhost:{job.port}"))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields this rank's batches of the epoch."""
        import tensorflow as tf  # noqa: PLC0415

        service = tf.data.experimental.service
        options = {"service": f"grpc://localhost:{self._job.port}", "job_name": f"epoch-{number}"}
        made = tf_data.dataset(self._job, seed=number, shard=False)
        made = made.apply(service.distribute(processing_mode=service.ShardingPolicy.DYNAMIC, **options))
        for batch in made:
            yield list(batch.numpy()), None
