"""Random histories of threads on CPUs against a second account of them: no time is lost, and none is booked twice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.ebpf_host.host import CONFIG, CONSTANTS, CPUS, STATUS, TGID, TID, Host
from tests.ebpf_host.scheduler import (
    DEAD,
    EPOLL_WAIT,
    FUTEX,
    KIND,
    READ,
    SLEEPING,
    STATE,
    UNINTERRUPTIBLE,
    Events,
    Scheduler,
    Task,
)

WAIT, SHORT, EXIT, FORK = (KIND[f"BP_EVENT_{name}"] for name in ("WAIT", "SHORT", "EXIT", "FORK"))
MIN_BLOCK_NS, STOLEN_MIN_NS, LONG_WAIT_NS = 100_000, CONSTANTS["BP_STOLEN_MIN_NS"], CONSTANTS["BP_LONG_WAIT_NS"]
TIMES = ("on_cpu_ns", "blocked_ns", "runqueue_ns", "stolen_ns")
THREAD_COUNT, STEPS = 6, 4000
KEPT_KINDS = ("syscall", "task_state", "flags", "arg")


@dataclass
class Account:
    """What one thread did, written down by who lets it happen."""

    task: Task
    first_ns: int
    since_ns: int
    cpu: int | None = None  # it is on this one
    is_ready: bool = True
    woken_ns: int | None = None  # since it left
    early_wake: bool = False
    may_be_woken: bool = False  # a wake-up found it on the run queue
    is_woken_unseen: bool = False  # that one was of the wait that followed
    is_new: bool = True  # its first run is to come
    left_state: int = 0
    has_slept: bool = False  # before it ran last
    is_unsampled: bool = False
    carried_ns: int = 0  # clocks that differ a little
    last_runqueue_ns: int = 0
    wait_count: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)  # of events
    events: int = 0  # waits that have one


class World:
    """Lets things happen at random; checks each event."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler, self.chance = scheduler, random.Random(seed)
        self.running: list[Account | None] = [None] * CPUS
        self.alive: list[Account] = []
        self.gone: list[Account] = []
        self.births = 0
        self.seen: Counter[str] = Counter()
        for _ in range(THREAD_COUNT):
            self.alive.append(self._account(scheduler.add(self._new_tid(), state=STATE["BP_THREAD_RUNNABLE"])))
            self.alive[-1].is_new = False

    def _new_tid(self) -> int:
        self.births += 1
        return TID + self.births

    def _account(self, task: Task) -> Account:
        task.queued_ns = 0  # what it waits is added to its run delay here
        return Account(task, self.scheduler.now, self.scheduler.now)

    def step(self) -> None:
        """Time goes by, then one thing happens."""
        self.scheduler.later(self.chance.choice((0, 1, 900, 900, 5_000, 20_000, 400_000)))
        cpu, action = self.chance.randrange(CPUS), self.chance.random()
        if action < 0.6:
            self._switch(cpu)
        elif action < 0.97:
            self._wake(cpu)
        elif len(self.alive) < THREAD_COUNT + 3 and self.running[cpu]:
            self._fork(cpu)

    def _current(self, cpu: int) -> Task:
        account = self.running[cpu]
        return account.task if account else self.scheduler.idle

    def _fork(self, cpu: int) -> None:
        child = self.scheduler.add(self._new_tid(), is_watched=False)
        (event,) = self.scheduler.fork(self._current(cpu), child, cpu)
        assert (event["kind"], event["tid"]) == (FORK, child.tid)
        self.alive.append(self._account(child))

    def _wake(self, cpu: int) -> None:
        chosen = self.chance.choice(self.alive)
        if chosen.cpu == cpu or (chosen.is_ready and chosen.cpu is None and self.chance.random() < 0.8):
            return
        if chosen.is_woken_unseen:  # the kernel does not report a second one
            return
        self.seen["wake"] += 1
        if chosen.cpu is not None and self.scheduler.now > chosen.since_ns:
            chosen.task.on_rq = self.chance.random() < 0.5
            chosen.early_wake |= not chosen.task.on_rq
            chosen.may_be_woken |= chosen.task.on_rq
        elif chosen.cpu is None and not chosen.is_ready:
            chosen.is_ready, chosen.woken_ns = True, self.scheduler.now
        assert not len(self.scheduler.wake(chosen.task, self._current(cpu), cpu))
        chosen.task.on_rq = True

    def _switch(self, cpu: int) -> None:
        left, ready = self.running[cpu], [item for item in self.alive if item.cpu is None and item.is_ready]
        came = self.chance.choice(ready) if ready and self.chance.random() < 0.8 else None
        if left is None and came is None:
            return
        self.seen["switch"] += 1
        state, is_preempted = self._leave(left) if left else (0, False)
        call = self.chance.choice((READ, EPOLL_WAIT, FUTEX, -1))
        if left and call >= 0:
            left.task.call(call, self.chance.choice((3, 4, 0x7000_0000)))
        elif left:
            left.task.in_user_mode()
        events = self.scheduler.switch(
            self._current(cpu), came.task if came else self.scheduler.idle, state, is_preempted, cpu
        )
        self.running[cpu] = came
        if left:
            events = self._check_end(left, events) if state & DEAD and not is_preempted else events
        if came:
            self._come(came, cpu, events)
        else:
            assert not len(events)
        if left and left in self.alive:
            left.is_unsampled = self.scheduler.entry(left.task)["status"] == STATUS.BP_NOT_SAMPLED

    def _leave(self, account: Account) -> tuple[int, bool]:
        """Books the time on the CPU; how it leaves."""
        now = self.scheduler.now
        wall = now - account.since_ns
        own = self.chance.choice((wall, wall, max(0, wall - 3000), max(0, wall - 70_000), 0, wall + 5000))
        account.task.exec_ns += own
        beyond, stolen, early = wall - own + account.carried_ns, 0, 0
        account.carried_ns = 0
        if beyond > STOLEN_MIN_NS:
            stolen = min(beyond, wall)
        elif beyond > 0:
            account.carried_ns = beyond
        else:
            early = min(-beyond, account.last_runqueue_ns)
        account.sums.update(stolen_ns=stolen, on_cpu_ns=wall - stolen + early, runqueue_ns=-early)
        before = self._enqueue(account, account.last_runqueue_ns - early)
        account.sums.update(runqueue_ns=-before, blocked_ns=before)
        account.last_runqueue_ns, account.since_ns, account.cpu, account.woken_ns = 0, now, None, None
        state = self.chance.choice((0, SLEEPING, SLEEPING, SLEEPING, UNINTERRUPTIBLE))
        is_preempted = self.chance.random() < 0.2
        if len(self.alive) > THREAD_COUNT and self.chance.random() < 0.1:
            state, is_preempted = DEAD, False
        account.left_state = 0 if is_preempted else state
        account.is_ready = not account.left_state or account.early_wake
        if account.left_state and account.early_wake:
            account.woken_ns = now
        elif account.left_state and account.may_be_woken and self.chance.random() < 0.5:
            account.is_ready = account.is_woken_unseen = True
            self.seen["woken unseen"] += 1
        account.early_wake = account.may_be_woken = False
        return state, is_preempted

    def _enqueue(self, account: Account, runqueue: int) -> int:
        """How much of it went by before the run queue, by the scheduler's run delay; only after a sleep."""
        queued = self.chance.choice((runqueue, runqueue + 700, runqueue // 2, 0))
        account.task.run_delay_ns += queued
        return max(0, runqueue - queued) if account.has_slept else 0

    def _come(self, account: Account, cpu: int, events: Events) -> None:
        now = self.scheduler.now
        woken = account.since_ns if account.woken_ns is None else account.woken_ns
        blocked, runqueue = woken - account.since_ns, now - woken
        account.sums.update(blocked_ns=blocked, runqueue_ns=runqueue)
        account.wait_count += 1
        self._check_wait(account, events, cpu, blocked, runqueue)
        account.last_runqueue_ns, account.since_ns, account.cpu, account.is_new = runqueue, now, cpu, False
        account.has_slept, account.is_woken_unseen = bool(account.left_state), False

    def _check_wait(self, account: Account, events: Events, cpu: int, blocked: int, runqueue: int) -> None:
        kinds = events["kind"].tolist()
        least_ns = LONG_WAIT_NS if account.is_unsampled else MIN_BLOCK_NS
        is_short = not account.is_new and blocked + runqueue < least_ns
        assert kinds == ([] if is_short and not kinds else [SHORT] if is_short else [WAIT])
        for event in events:
            assert (event["tid"], event["tgid"], event["time_ns"]) == (account.task.tid, TGID, self.scheduler.now)
            self._note(account, event)
        if is_short:
            self.seen["short"] += 1
            return
        self.seen["wait"] += 1
        account.events += 1
        (event,) = events
        assert (event["blocked_ns"], event["runqueue_ns"], event["cpu"]) == (blocked, runqueue, cpu)
        assert event["task_state"] == account.left_state and event["on_cpu_ns"] == account.sums["on_cpu_ns"]

    def _note(self, account: Account, event: np.void) -> None:
        self.seen[f"sent {event['kind']}"] += 1
        account.sent.update(blocked_ns=int(event["blocked_ns"]), runqueue_ns=int(event["runqueue_ns"]))
        account.sent["stolen_ns"] += int(event["stolen_ns"])
        if event["kind"] == SHORT:
            account.sent["count"] += int(event["args"][1])
        else:
            self._note_told_later(account.sent, event)
            account.sent["count"] += 1

    def _note_told_later(self, sums: Counter[str], row: np.void) -> None:
        """What a row, or a thread's entry, says of the row before."""
        self.seen["enqueued"] += int(row["enqueue_ns"] > 0)
        sums.update(runqueue_ns=-int(row["early_ns"]) - int(row["enqueue_ns"]), blocked_ns=int(row["enqueue_ns"]))

    def _check_end(self, account: Account, events: Events) -> Events:
        """What is left of the events after those of a thread's end."""
        self.seen["end"] += 1
        last = int(np.flatnonzero(events["kind"] == EXIT)[0])
        own, rest = events[: last + 1], events[last + 1 :]
        assert set(own["tid"].tolist()) == {account.task.tid} and set(own["kind"][:-1].tolist()) <= {SHORT}
        for event in own[:-1]:
            self._note(account, event)
        self._note_told_later(account.sent, own[-1])
        assert [int(own[-1][name]) for name in TIMES] == [account.sums[name] for name in TIMES]
        self._check_totals(account, account.sent)
        self.scheduler.free(account.task)
        assert self.scheduler.host.thread(account.task.tid) is None
        self.alive.remove(account)
        self.gone.append(account)
        self.check_wall(account)
        return rest

    def check_wall(self, account: Account) -> None:
        assert sum(account.sums[name] for name in TIMES) == account.since_ns - account.first_ns

    def check_entry(self, account: Account) -> None:
        """Its entry, and what was sent with what is still in there, say the same as the account."""
        entry = self.scheduler.entry(account.task)
        assert [int(entry[name]) for name in TIMES] == [account.sums[name] for name in TIMES]
        assert entry["wait_count"] == account.wait_count and entry["since_ns"] == account.since_ns
        assert sum(int(entry[name]) for name in TIMES) == int(entry["since_ns"]) - int(entry["first_ns"])
        sums = entry["short_waits"][entry["short_waits"]["count"] > 0]
        assert len({tuple(row) for row in sums[list(KEPT_KINDS)].tolist()}) == len(sums)
        left = account.sent.copy()
        for row in sums:
            left.update(blocked_ns=int(row["blocked_ns"]), runqueue_ns=int(row["runqueue_ns"]), count=int(row["count"]))
        self._note_told_later(left, entry)
        assert left["stolen_ns"] + int(entry["run_stolen_ns"]) == account.sums["stolen_ns"]
        self._check_totals(account, left)

    def _check_totals(self, account: Account, sent: Counter[str]) -> None:
        for name in ("blocked_ns", "runqueue_ns"):
            assert sent[name] == account.sums[name], name
        assert sent["count"] == account.wait_count


@pytest.mark.parametrize("stack_interval_ns", [0, 100_000, 1_000_000])
@pytest.mark.parametrize("seed", range(3))
def test_random_histories(scheduler: Scheduler, host: Host, seed: int, stack_interval_ns: int) -> None:
    flags = CONFIG["BP_CONFIG_OFF_CPU_STACKS"] | CONFIG["BP_CONFIG_WAKERS"]
    host.set_config(flags, min_block_ns=MIN_BLOCK_NS, stack_interval_ns=stack_interval_ns)
    host.set_process(0)
    world = World(scheduler, seed)
    for number in range(STEPS):
        world.step()
        if number % 100 == 0:
            for account in world.alive:
                world.check_entry(account)
    for account in world.alive:
        world.check_entry(account)
        world.check_wall(account)
    seen = world.seen
    assert seen["switch"] > STEPS / 3 and seen["wake"] > 300 and seen["end"] > 5
    assert seen["enqueued"] > 50 and seen["woken unseen"] > 5
    assert seen["short"] > 300 and seen["wait"] > 300 and seen[f"sent {SHORT}"] > 50
