import pytest

from pipeline.errors import UsageError
from trainer.config.data import OrderFlags
from trainer.launching.job import check_sharing, sharing


@pytest.mark.parametrize(
    ("order", "per_worker", "working"),
    [
        (OrderFlags(global_batch_size=24), 1, [1, 2, 3, 4, 6, 8]),
        (OrderFlags(global_batch_size=24), 2, [1, 2, 3, 4, 6]),
        (OrderFlags(global_batch_size=24, virtual_replicas=4), 1, [1, 2, 4]),
    ],
)
def test_workers_share_a_batch_where_their_replicas_divide_it(order, per_worker, working):
    assert sharing(order, range(1, 9), per_worker) == working


@pytest.mark.parametrize(
    ("order", "num_workers", "per_worker", "said"),
    [
        (OrderFlags(global_batch_size=64), 3, 1, "--num_workers=3: must divide --global_batch_size=64; .*: 2 and 4"),
        (
            OrderFlags(global_batch_size=64, virtual_replicas=8),
            3,
            2,
            "--num_workers=3 of 2 GPUs each: must divide --virtual_replicas=8; .*: 2 and 4",
        ),
        (OrderFlags(global_batch_size=7), 1, 2, "of 2 GPUs each: must divide --global_batch_size=7$"),
    ],
)
def test_a_number_that_does_not_work_is_an_error_with_the_nearest_that_do(order, num_workers, per_worker, said):
    with pytest.raises(UsageError, match=said):
        check_sharing(order, num_workers, per_worker)
