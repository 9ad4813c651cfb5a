"""Which gradients count, in simulated jobs: workers of all speeds, pauses and ends at any step."""

import heapq
import random
import types

import numpy as np
import pytest

from trainer.parameter_server.ledger import Row
from trainer.parameter_server.synchronous import Share, SyncScheduler

EPOCH = 5  # steps


class Simulated:
    """Closures on simulated workers, and the graphs that they run."""

    def __init__(self, workers, needed, slow, seed):
        self.needed, self.slow, self.draw = needed, slow, random.Random(seed)
        self.now, self.version, self.idle = 0.0, 0, list(range(workers))
        self.waiting, self.queued, self.running = 0, [], []
        self.batches = types.SimpleNamespace(
            epoch_end=lambda step: step - step % EPOCH + EPOCH, rows_of=lambda first, stop, share: (first, share)
        )
        self.rows = types.SimpleNamespace(unpacked=lambda row: row, loss=lambda row: 0.0)
        self.places, self.updates, self.ages, self.shared = {}, [], [], set()
        self.share = "share"

    def schedule(self, tag, function, columns, step, number, place, rows):
        assert rows == (int(step), int(number))
        self.waiting += 1
        self.queued.append((tag, int(step), int(number), int(place)))

    def next(self, timeout):
        while self.queued and self.idle:
            tag, step, number, place = self.queued.pop(0)
            worker = self.idle.pop(0)
            takes = self.draw.uniform(0.5, 1.5) * (20 if worker == self.slow else 1)
            heapq.heappush(
                self.running, (self.now + takes, tag, worker, step * self.needed + number, place, self.version)
            )
        if not self.running:
            return None
        self.now, tag, worker, share, place, version = heapq.heappop(self.running)
        self.idle.append(worker)
        self.waiting -= 1
        self.places[place] = share, version
        made = Share(np.array(version), np.array(1.0), Row(0.0, 1.0, np.ones(2)), np.array(True), 0.0, 0.1, worker)
        return tag, made

    def update(self, step, places, weights):
        assert int(step) == self.version
        taken = [self.places[int(place)] for place in places]
        self.updates.append([share for share, _ in taken])
        self.ages += [self.version - version for _, version in taken]
        self.version += 1
        return np.array(1.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("workers", "needed", "staleness"), [(1, 1, 0), (3, 3, 0), (3, 2, 0), (5, 3, 0), (5, 2, 2), (4, 1, 1)]
)
@pytest.mark.quick(6)
def test_each_share_of_an_epoch_counts_once(seed, workers, needed, staleness):
    simulated = Simulated(workers, needed, slow=seed % workers if seed % 2 else None, seed=seed)
    scheduler = SyncScheduler(
        simulated, simulated, None, workers, needed, staleness, types.SimpleNamespace(add=lambda *_: None)
    )
    draw, step, last = random.Random(seed), 0, 4 * EPOCH
    while step < last:
        end, stop_at = min(last, step + draw.randint(1, 8)), step + draw.randint(1, 8)
        stops = lambda stop_at=stop_at: simulated.version >= stop_at  # noqa: E731
        reports = list(scheduler.run(step, end, lambda step: step + 1, stops))
        assert [report.stop for report in reports] == list(range(step + 1, scheduler.reached + 1))
        assert scheduler.reached <= end
        step = scheduler.reached
        applied = sorted(share for update in simulated.updates for share in update)
        assert applied == list(range(step * needed))  # all before, none after
    assert max(simulated.ages) <= staleness
    for epoch in range(4):
        shares = sorted(s for update in simulated.updates[epoch * EPOCH : (epoch + 1) * EPOCH] for s in update)
        assert shares == list(range(epoch * EPOCH * needed, (epoch + 1) * EPOCH * needed))


def test_a_slow_worker_holds_nobody_up():
    took = {}
    for needed in (3, 2):
        simulated = Simulated(3, needed, slow=2, seed=1)
        scheduler = SyncScheduler(simulated, simulated, None, 3, needed, 0, types.SimpleNamespace(add=lambda *_: None))
        list(scheduler.run(0, 20 * EPOCH, lambda step: step + 1, lambda: False))
        took[needed] = simulated.now
        assert bool(scheduler.tally().dropped) == (needed == 2)
    assert took[2] < took[3] / 5
