"""Which workers start again, and when."""

import collections
import math
import pathlib
import tempfile

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.lanes import examples
from tests.unit.trainer.launching.local.puppets import Puppets, named
from trainer.launching.local.restarts import AsynchronousWorkers, BackOff, WorkerPool

DELAY = 10.0
SECONDS = st.sampled_from([1.0, DELAY, 2 * DELAY, 4 * DELAY])  # until the next group starts


class Slots(RuleBasedStateMachine):
    """Groups of workers that start, step, fail and are stopped; what is expected of a slot is counted in its history.

    A history has `lost`, `tried` (it started again after that), `stepped`, `forgiven`, and `failed` or `failed at
    start`.
    """

    @initialize(counts=st.sampled_from([[1, 2], [1, 2, 3], [1, 2, 4], [2, 3]]), max_restarts=st.integers(0, 3))
    def begins(self, counts, max_restarts):
        self.counts, self.max_restarts, self.now = counts, max_restarts, 0.0
        self.pool = WorkerPool(self.counts, max_restarts, DELAY)
        self.histories = [[] for _ in range(max(counts))]
        self.retry_at = {}  # of lost slots
        self.starts(0.0)

    def usable(self):
        return [n for n in range(len(self.histories)) if self.retry_at.get(n, -math.inf) <= self.now]

    def starts(self, seconds):
        self.now += seconds
        usable = self.usable()
        self.group, self.have_stepped = usable[: max((c for c in self.counts if c <= len(usable)), default=0)], set()
        assert self.pool.chosen(self.now) == self.group
        for number in self.group:
            if self.retry_at.pop(number, None) is not None:
                self.histories[number].append("tried")

    @precondition(lambda self: self.group)
    @rule(data=st.data())
    def some_make_a_step(self, data):
        numbers = data.draw(st.sets(st.sampled_from(self.group)))
        self.pool.stepped(numbers, self.now)
        for number in numbers:
            self.histories[number].append("stepped")
        self.have_stepped |= numbers
        for number, when in self.retry_at.items():
            if numbers and when == math.inf:  # the wait begins, twice as long each time
                self.retry_at[number] = self.now + DELAY * 2 ** (self.histories[number].count("lost") - 1)

    @precondition(lambda self: self.group)
    @rule(data=st.data(), seconds=SECONDS)
    def one_fails(self, data, seconds):
        number = data.draw(st.sampled_from(self.group))
        at_start = number not in self.have_stepped
        self.histories[number].append("failed at start" if at_start else "failed")
        is_lost = self.must_be_lost(self.histories[number])
        assert self.pool.failed(number, at_start) == is_lost
        if is_lost:
            self.histories[number].append("lost")
            self.retry_at[number] = math.inf
        self.starts(seconds)

    def must_be_lost(self, history):
        since_lost = history[len(history) - [*reversed(history), "lost"].index("lost") :]
        failures = at_start = 0
        for event in since_lost:
            if event == "stepped":
                at_start = 0
            elif event == "forgiven":
                failures = at_start
            elif event != "tried":
                failures, at_start = failures + 1, at_start + (event == "failed at start")
        on_trial = "tried" in since_lost and "stepped" not in since_lost
        return failures > self.max_restarts or at_start >= (1 if on_trial else 2)

    @rule(seconds=SECONDS)
    def all_are_stopped(self, seconds):
        self.starts(seconds)

    @rule()
    def a_checkpoint_is_saved(self):
        self.pool.forgive()
        for history in self.histories:
            history.append("forgiven")

    @invariant()
    def lost_slots_wait_for_their_time(self):
        assert self.pool.lost == sorted(self.retry_at)
        for size in range(len(self.histories) + 1):
            larger = [count for count in self.counts if size < count <= len(self.usable())]
            assert self.pool.can_grow(size, self.now) == bool(larger)


test_a_slot_is_lost_and_tried_again_as_its_history_says = Slots.TestCase
test_a_slot_is_lost_and_tried_again_as_its_history_says.settings = settings(max_examples=examples(200))


def test_a_slot_is_lost_after_its_restarts_and_tried_again():
    slots = WorkerPool([1, 2, 3], max_restarts=1, delay=10.0)
    assert slots.chosen(0.0) == [0, 1, 2]
    slots.stepped([0, 1, 2], 0.0)
    assert not slots.failed(1, at_start=False)
    assert slots.chosen(1.0) == [0, 1, 2]
    assert slots.failed(1, at_start=False)
    assert (slots.chosen(2.0), slots.lost) == ([0, 2], [1])
    assert not slots.can_grow(2, 1000.0)  # the others have made no step yet
    slots.stepped([0, 2], 20.0)
    assert not slots.can_grow(2, 29.0)
    assert slots.can_grow(2, 30.0)
    assert (slots.chosen(30.0), slots.lost) == ([0, 1, 2], [])


@given(st.sampled_from([0.5, 1.0, 50.0, 100.0]), st.lists(st.none() | st.integers(0, 5), max_size=20))
def test_delays_double_up_to_a_bound_until_there_is_a_step_beyond_all_earlier_ones(delay, steps):
    back_off, without_progress = BackOff(delay), 0
    for number, step in enumerate(steps):
        is_progress = step is not None and all(old is None or old < step for old in steps[:number])
        without_progress = 0 if is_progress else without_progress
        assert back_off.next(step) == min(delay * 2**without_progress, max(60.0, delay))
        without_progress += 1


class Workers(RuleBasedStateMachine):
    """Asynchronous workers, shells instead of trainers, that fail, are asked to end and fall silent, in any order.

    What is expected follows from how often each was started again. With a delay none is, as long as a test takes.
    """

    @initialize(max_restarts=st.integers(0, 2), delay=st.sampled_from([0, 10**6]))
    def begins(self, max_restarts, delay):
        self.folder = tempfile.TemporaryDirectory()
        flags = (f"--max_restarts={max_restarts}", f"--restart_delay={delay}", "--num_workers=3", "--num_ps=1")
        self.launch = Puppets(pathlib.Path(self.folder.name, "run"), *flags).__enter__()
        self.group = self.launch.start()
        self.launch.records.started(self.group)
        self.workers = AsynchronousWorkers(self.group, self.launch.reporter)
        self.max_restarts, self.delay, self.step = max_restarts, delay, 0
        self.running, self.restarts = {0, 1, 2}, collections.Counter()
        self.due, self.failed = 0, []

    @rule()
    def the_chief_makes_a_step(self):
        self.step += 1
        self.launch.order("chief", f"beat {self.step}")
        self.launch.wait_for_step(self.group, self.step)

    @precondition(lambda self: self.running and not self.failed)
    @rule(data=st.data(), how=st.sampled_from(["exit 75", "exit 3", "kill -9 $$", "exit 1", "exit 2", "silent"]))
    def one_fails(self, data, how):
        process = self.ends(data, how)
        if how in ("exit 1", "exit 2") or not self.step:
            self.failed.append(process)  # so would the others, or those that start again
        elif self.restarts[process.task.slot] == self.max_restarts:
            self.failed += [] if self.running or self.due else [process]
        else:
            self.restarts[process.task.slot] += 1
            self.due += bool(self.delay)
            self.running |= set() if self.delay else {process.task.slot}
        self.workers.look_after([process])

    @precondition(lambda self: self.running and not self.failed)
    @rule(data=st.data(), how=st.sampled_from(["exit 0", "told"]))
    def one_ends_as_it_should(self, data, how):
        self.workers.look_after([self.ends(data, how)])

    def ends(self, data, how):
        slot = data.draw(st.sampled_from(sorted(self.running)))
        process = named(self.group, f"worker {slot}")
        if how == "silent":
            process.kill("gave no sign of life for 9 s")
        elif how == "told":
            process.ask_to_end()
        else:
            self.launch.order(process.task.name, how)
        self.launch.wait(self.group, process.task.name)
        self.running.remove(slot)
        return process

    @invariant()
    def those_run_that_should(self):
        self.workers.look_after(self.group.poll())
        workers = [one for one in self.group.processes if one.task.job == "worker"]
        assert {one.task.slot for one in workers if one.exit_status is None} == self.running
        assert [self.launch.records.restarts_of(one.task) for one in workers] == [self.restarts[i] for i in range(3)]
        assert self.group.failed == self.failed
        assert {one.task.name for one in self.group.running} >= {"chief", "ps 0"}

    def teardown(self):
        if hasattr(self, "launch"):
            self.launch.__exit__()
            self.folder.cleanup()


test_a_worker_is_started_again_given_up_or_ends_the_job_as_its_history_says = Workers.TestCase
test_a_worker_is_started_again_given_up_or_ends_the_job_as_its_history_says.settings = settings(
    max_examples=6, stateful_step_count=10
)


def test_the_delays_of_a_worker_double_and_its_failure_is_in_the_report(puppets, capfd):
    launch = puppets("--num_workers=2", "--num_ps=1", "--restart_delay=0.01")
    group = launch.start()
    launch.records.started(group)
    workers = AsynchronousWorkers(group, launch.reporter)
    launch.order("chief", "beat 5")
    launch.wait_for_step(group, 5)
    for _ in range(3):
        launch.order("worker 1", "exit 3")
        [failed] = launch.wait(group, "worker 1")
        workers.look_after([failed])
        while named(group, "worker 1") is failed:
            workers.look_after([])
    lines = [line for line in capfd.readouterr().err.splitlines() if "starting it again" in line]
    assert [line.partition(" again in ")[2].partition(" s")[0] for line in lines] == ["0.01", "0.02", "0.04"]
    report = launch.records.report("training", [])
    restarts = {one.name: (one.restarts, one.last_error) for one in report.processes}
    assert restarts["worker 0"] == (0, None)
    assert restarts["worker 1"][0] == 3
    assert f"(process {failed.pid})" in restarts["worker 1"][1]
    assert report.restarts == 0  # of the group
