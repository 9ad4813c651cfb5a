import pytest

from beam_jobs.runs.failures import as_ours
from pipeline.errors import TransientError

# As they come from Flink 1.19 and Spark 3.5 on a cluster, less most of the frames.
POOL_KILLED_FLINK = """\
Pipeline job-d3d6eef3 failed in state FAILED: java.util.concurrent.ExecutionException: \
org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: CANCELLED: client cancelled
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
\tat org.apache.beam.runners.fnexecution.control.SdkHarnessClient.close(SdkHarnessClient.java:522)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: CANCELLED: client cancelled
\tat org.apache.beam.vendor.grpc.v1p60p1.io.grpc.Status.asRuntimeException(Status.java:529)
\t... 1 more
"""
POOL_KILLED_SPARK = """\
Pipeline BeamApp-root-1122122458 failed in state FAILED: org.apache.spark.SparkException: Job aborted due to stage \
failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in stage 1.0 (TID 7) (localhost \
executor 1): org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.concurrent.UncheckedExecutionException: \
org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.cache.LocalCache$Segment.get(LocalCache.java:2086)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception
\tat org.apache.beam.vendor.grpc.v1p60p1.io.grpc.stub.ClientCalls.toStatusRuntimeException(ClientCalls.java:268)
Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.AbstractChannel$AnnotatedConnectException: \
finishConnect(..) failed: Connection refused: localhost/127.0.0.1:50000
Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused
\tat org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.unix.Errors.newConnectException0(Errors.java:166)

Driver stacktrace:
"""
TASK_MANAGER_KILLED = """\
Pipeline job-1 failed in state FAILED: org.apache.flink.runtime.JobException: Recovery is suppressed by \
NoRestartBackoffTimeStrategy
\tat org.apache.flink.runtime.executiongraph.failover.Handler.handle(ExecutionFailureHandler.java:219)
Caused by: org.apache.flink.runtime.jobmaster.JobMasterException: TaskManager with id localhost:36-4f is no longer \
reachable.
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
PYTHON = """\
Pipeline job-1 failed in state FAILED: java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error \
received from SDK harness for instruction 3: Traceback (most recent call last):
  File "x.py", line 1, in process
RuntimeError: not this time [while running 'Convert/MakeShards']

\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
Caused by: java.lang.RuntimeException: Error received from SDK harness for instruction 3: Traceback \
(most recent call last):
  File "x.py", line 1, in process
RuntimeError: not this time [while running 'Convert/MakeShards']

\tat org.apache.beam.runners.fnexecution.control.FnApiControlClient.onNext(FnApiControlClient.java:180)
\t... 2 more
"""
OTHER = """\
Pipeline job-1 failed in state FAILED: java.lang.IllegalStateException: no such jar
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            POOL_KILLED_FLINK,
            "the cluster lost a worker (StatusRuntimeException: CANCELLED: client cancelled); "
            "run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (
            POOL_KILLED_SPARK,
            "the cluster lost a worker (AbstractChannel$AnnotatedConnectException: finishConnect(..) failed: "
            "Connection refused: localhost/127.0.0.1:50000); "
            "run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (
            TASK_MANAGER_KILLED,
            "the cluster lost a worker (JobMasterException: TaskManager with id localhost:36-4f is no longer "
            "reachable.); run the same command again (docs/clusters.md: when a machine dies)",
        ),
        (PYTHON, "the job failed on the cluster: RuntimeError: not this time [while running 'Convert/MakeShards']"),
        (OTHER, "the job failed on the cluster: IllegalStateException: no such jar"),
        ("ValueError: at (x) more", "Beam: RuntimeError: ValueError: at (x) more"),
    ],
    ids=["pool, Flink", "pool, Spark", "task manager", "Python", "other", "not Java"],
)
def test_a_failure_on_a_cluster_is_one_line(text, line):
    error = as_ours(RuntimeError(text))
    assert str(error) == line
    assert isinstance(error, TransientError) is line.startswith("the cluster lost a worker")
