import pytest

from pipeline.bench import subject
from pipeline.errors import UsageError


@pytest.mark.parametrize("replicas", [None, 1])
def test_one_replica_on_a_cpu_needs_no_strategy(replicas):
    assert subject.strategy_of(replicas, 8) is None
    assert subject.names_of(None) == ["CPU:0"]


def test_more_replicas_are_logical_cpus():
    strategy = subject.strategy_of(2, 8)
    assert subject.names_of(strategy) == ["CPU:0", "CPU:1"]
    with pytest.raises(UsageError, match="^--replicas=8: .* 4$"):
        subject.strategy_of(8, 8)
