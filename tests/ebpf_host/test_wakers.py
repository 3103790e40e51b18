"""Who ends a wait: another thread, with its stack where it is watched, or an interrupt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof.unwind.interpret import Registers
from tests.ebpf_host import host as host_module
from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, TGID, TID, Host, compile_programs
from tests.ebpf_host.native_image import CALL, END, STACK, call_stack, install_rules
from tests.ebpf_host.python_image import CHUNK, CHUNK_BYTES, STATE, PythonImage, ThreadState, chain, frames_of
from tests.ebpf_host.scheduler import (
    CLOCK_NANOSLEEP,
    EPOLL_WAIT,
    EXIT,
    EXIT_GROUP,
    FUTEX,
    KILL,
    MICROSECOND,
    NANOSLEEP,
    READ,
    SLEEPING,
    TGKILL,
    TKILL,
    UNINTERRUPTIBLE,
    WAKER,
    WRITE,
    Scheduler,
    Task,
)

# Calls that send something, and two that do not: arch/x86/entry/syscalls/syscall_64.tbl.
CLOSE, WRITEV, SENDFILE, CONNECT, SENDTO, SHUTDOWN, SENDMMSG, SOCKET, BIND = 3, 20, 40, 42, 44, 48, 307, 41, 49
UNKNOWN, THREAD, INTERRUPT, SOFT = (
    WAKER[f"BP_WAKER_{name}"] for name in ("UNKNOWN", "THREAD", "INTERRUPT", "SOFT_INTERRUPT")
)
WAKERS, OFF_CPU = CONFIG["BP_CONFIG_WAKERS"], CONFIG["BP_CONFIG_OFF_CPU_STACKS"]
MIN_BLOCK_NS = 100 * MICROSECOND
OTHER_TID, OTHER_TGID = 4242, 4240


@pytest.fixture
def sleeper(host: Host, scheduler: Scheduler) -> Task:
    host.set_config(WAKERS, min_block_ns=MIN_BLOCK_NS)
    return scheduler.add(TID)


def ended_by(
    scheduler: Scheduler, sleeper: Task, waker: Task | None, state: int = SLEEPING, blocked_ns: int = MIN_BLOCK_NS
) -> np.void:
    """The event of a wait that this task ended."""
    scheduler.switch(sleeper, scheduler.idle, state)
    scheduler.later(blocked_ns)
    scheduler.wake(sleeper, waker, cpu=1)
    scheduler.later(MIN_BLOCK_NS)
    (event,) = scheduler.switch(scheduler.idle, sleeper)
    event_copy: np.void = event
    return event_copy


def test_another_thread(scheduler: Scheduler, sleeper: Task) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE, 4)
    event = ended_by(scheduler, sleeper.call(READ, 3), waker)
    assert (event["waker_kind"], event["waker_tid"], event["waker_tgid"]) == (THREAD, OTHER_TID, OTHER_TGID)
    assert event["waker_stack"] == 0, "it is no target"
    assert not scheduler.stacks


def test_an_idle_cpu(scheduler: Scheduler, sleeper: Task) -> None:
    assert ended_by(scheduler, sleeper.call(READ, 3), None)["waker_kind"] == INTERRUPT


def test_a_thread_that_was_interrupted_in_its_own_code(scheduler: Scheduler, sleeper: Task) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).in_user_mode()
    assert ended_by(scheduler, sleeper.call(READ, 3), waker)["waker_kind"] == INTERRUPT


# A wait in one call, ended while the current thread is in another.
@pytest.mark.parametrize(
    ("waits_in", "current_in", "kind"),
    [
        *((FUTEX, call, THREAD) for call in (FUTEX, EXIT, EXIT_GROUP, KILL, TKILL, TGKILL)),
        *((FUTEX, call, INTERRUPT) for call in (READ, WRITE, EPOLL_WAIT, NANOSLEEP)),
        *((call, TGKILL, THREAD) for call in (NANOSLEEP, CLOCK_NANOSLEEP)),
        *((call, KILL, THREAD) for call in (NANOSLEEP, CLOCK_NANOSLEEP)),
        *((call, FUTEX, INTERRUPT) for call in (NANOSLEEP, CLOCK_NANOSLEEP)),
        *((call, EXIT_GROUP, THREAD) for call in (NANOSLEEP, CLOCK_NANOSLEEP)),  # SIGCHLD
        *((READ, call, THREAD) for call in (READ, WRITE, FUTEX, EPOLL_WAIT)),
        (EPOLL_WAIT, WRITE, THREAD),
    ],
)
def test_calls_that_end_waits(scheduler: Scheduler, sleeper: Task, waits_in: int, current_in: int, kind: int) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(current_in)
    assert ended_by(scheduler, sleeper.call(waits_in, 0x7000), waker)["waker_kind"] == kind


@pytest.mark.parametrize(("waits_in", "kind"), [(READ, THREAD), (FUTEX, INTERRUPT), (NANOSLEEP, INTERRUPT)])
def test_a_kernel_thread(scheduler: Scheduler, sleeper: Task, waits_in: int, kind: int) -> None:
    waker = scheduler.add(17, 17, is_watched=False).as_kernel_thread()
    event = ended_by(scheduler, sleeper.call(waits_in, 3), waker)
    assert event["waker_kind"] == kind
    if kind == THREAD:
        assert (event["waker_tid"], event["waker_tgid"]) == (17, 17)


# preempt_count() while the current thread is in a call: include/linux/preempt.h.
@pytest.mark.parametrize(
    ("preempt_count", "current_in", "kind"),
    [
        *((count, READ, THREAD) for count in (0, 1, 3, 0x200, 0x600)),  # spin locks; soft interrupts switched off
        *((count, call, INTERRUPT) for count in (0x10000, 0x100000, 0x10101) for call in (READ, WRITE, FUTEX, KILL)),
        *((0x100, call, SOFT) for call in (READ, FUTEX, EPOLL_WAIT)),  # a soft interrupt is served
        *((0x101, call, THREAD) for call in (WRITE, CLOSE, WRITEV, SENDFILE, CONNECT, SENDTO, SHUTDOWN, SENDMMSG)),
        *((0x100, call, SOFT) for call in (SOCKET, BIND)),
    ],
)
@pytest.mark.parametrize("waits_in", [READ, FUTEX, NANOSLEEP])
def test_what_the_cpu_is_in_the_middle_of(
    scheduler: Scheduler, sleeper: Task, waits_in: int, preempt_count: int, current_in: int, kind: int
) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(current_in).in_the_middle_of(preempt_count)
    assert ended_by(scheduler, sleeper.call(waits_in, 3), waker)["waker_kind"] == kind


@pytest.mark.parametrize(("state", "kind"), [(SLEEPING, THREAD), (UNINTERRUPTIBLE, SOFT), (0x102, SOFT)])
def test_who_sends_does_not_end_a_wait_for_a_disk(scheduler: Scheduler, sleeper: Task, state: int, kind: int) -> None:
    """A disk's soft interrupt can come in the middle of a call that sends something."""
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE).in_the_middle_of(0x100)
    assert ended_by(scheduler, sleeper.call(READ, 3), waker, state)["waker_kind"] == kind


@pytest.mark.parametrize(("preempt_count", "kind"), [(0, THREAD), (0x100, SOFT), (0x10000, INTERRUPT)])
def test_what_a_kernel_thread_is_in_the_middle_of(
    scheduler: Scheduler, sleeper: Task, preempt_count: int, kind: int
) -> None:
    waker = scheduler.add(17, 17, is_watched=False).as_kernel_thread().in_the_middle_of(preempt_count)
    assert ended_by(scheduler, sleeper.call(FUTEX, 3), waker)["waker_kind"] == kind


@pytest.mark.parametrize(
    ("preempt_count", "kind"), [(0, THREAD), (0x100, SOFT), (0x10000, INTERRUPT), (0x10100, INTERRUPT)]
)
@pytest.mark.parametrize("waits_in", [READ, FUTEX, NANOSLEEP])
def test_what_a_thread_in_its_own_code_is_in_the_middle_of(
    scheduler: Scheduler, sleeper: Task, waits_in: int, preempt_count: int, kind: int
) -> None:
    """Without an interrupt it does something for itself, like a page fault that wakes whoever is to serve it."""
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).in_user_mode().in_the_middle_of(preempt_count)
    assert ended_by(scheduler, sleeper.call(waits_in, 3), waker)["waker_kind"] == kind


@pytest.mark.parametrize(
    ("preempt_count", "kind"),
    [(0, SOFT), (1, SOFT), (0x100, SOFT), (0x10000, INTERRUPT), (0x10100, INTERRUPT), (0x100000, INTERRUPT)],
)
def test_what_an_idle_cpu_is_in_the_middle_of(
    scheduler: Scheduler, sleeper: Task, preempt_count: int, kind: int
) -> None:
    """The idle task wakes nobody for itself."""
    scheduler.idle.in_the_middle_of(preempt_count)
    event = ended_by(scheduler, sleeper.call(READ, 3), None)
    assert (event["waker_kind"], event["waker_tid"]) == (kind, 0)


@pytest.mark.parametrize("is_queue_readable", [False, True])
def test_what_cannot_be_read_says_nothing(scheduler: Scheduler, sleeper: Task, is_queue_readable: bool) -> None:
    """Then the calls say who it is, as if the way to it was not known."""
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE).in_the_middle_of(0x10000)
    waker.hide_preempt_count(is_queue_readable)
    assert ended_by(scheduler, sleeper.call(READ, 3), waker)["waker_kind"] == THREAD
    assert ended_by(scheduler, sleeper.call(FUTEX, 3), waker)["waker_kind"] == INTERRUPT


def test_a_kernel_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance to the preempt count is 0 then, and what is at that distance is none."""
    monkeypatch.setattr(host_module, "_percpu_distance", lambda *_: 0)
    scheduler = Scheduler(Host(compile_programs(tmp_path)))
    scheduler.host.set_config(WAKERS, min_block_ns=MIN_BLOCK_NS)
    sleeper, waker = scheduler.add(TID), scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False)
    for task in (scheduler.idle, waker.call(WRITE)):
        task.in_the_middle_of(0)
        task.queue_image[0] = 0x100
    assert ended_by(scheduler, sleeper.call(READ, 3), waker)["waker_kind"] == THREAD
    assert ended_by(scheduler, sleeper.call(FUTEX, 3), waker)["waker_kind"] == INTERRUPT
    assert ended_by(scheduler, sleeper.call(READ, 3), None)["waker_kind"] == INTERRUPT


def test_a_page_fault_is_ended_by_who_is_in_a_call(scheduler: Scheduler, sleeper: Task) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(READ)
    assert ended_by(scheduler, sleeper.in_user_mode(), waker)["waker_kind"] == THREAD


def test_a_short_wait_has_no_waker(scheduler: Scheduler, sleeper: Task) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE, 4)
    sleeper.call(READ, 3)
    assert ended_by(scheduler, sleeper, waker, blocked_ns=MIN_BLOCK_NS - 1)["waker_kind"] == UNKNOWN
    assert ended_by(scheduler, sleeper, waker)["waker_kind"] == THREAD
    assert ended_by(scheduler, sleeper, waker, blocked_ns=MIN_BLOCK_NS - 1)["waker_kind"] == UNKNOWN, "not the last one"


def test_a_wait_for_a_cpu_has_no_waker(scheduler: Scheduler, sleeper: Task) -> None:
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE, 4)
    assert ended_by(scheduler, sleeper, waker, state=0)["waker_kind"] == UNKNOWN


def test_only_the_first_wakes(scheduler: Scheduler, sleeper: Task) -> None:
    first = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE, 4)
    second = scheduler.add(OTHER_TID + 1, OTHER_TGID, is_watched=False).call(WRITE, 4)
    scheduler.switch(sleeper.call(READ, 3), scheduler.idle, SLEEPING)
    scheduler.later(MIN_BLOCK_NS)
    scheduler.wake(sleeper, first)
    scheduler.wake(sleeper, second)
    (event,) = scheduler.switch(scheduler.idle, sleeper)
    assert event["waker_tid"] == OTHER_TID


def test_wakers_only_if_they_are_wanted(scheduler: Scheduler, host: Host, sleeper: Task) -> None:
    host.set_config(OFF_CPU, min_block_ns=MIN_BLOCK_NS)
    waker = scheduler.add(OTHER_TID, OTHER_TGID, is_watched=False).call(WRITE, 4)
    event = ended_by(scheduler, sleeper.call(READ, 3), waker)
    assert (event["waker_kind"], event["waker_tid"]) == (UNKNOWN, 0)


def test_a_thread_that_wakes_itself(scheduler: Scheduler, sleeper: Task) -> None:
    event = ended_by(scheduler, sleeper.call(READ, 3), sleeper)
    assert (event["waker_kind"], event["waker_tid"]) == (UNKNOWN, 0) and event["blocked_ns"] == MIN_BLOCK_NS


# --- where it was


WAKER_NATIVE = (CALL, CALL + 1, CALL + 2, END)


@pytest.fixture
def pair(host: Host, scheduler: Scheduler) -> tuple[Task, Task]:
    """Two threads of a Python process: the first sleeps, the second wakes it."""
    scheduler.later(CONSTANTS["BP_RESEND_NS"] + 1)
    host.set_config(WAKERS | OFF_CPU | CONFIG["BP_CONFIG_NATIVE"], min_block_ns=MIN_BLOCK_NS)
    index = install_rules(host)
    sleeper, waker = scheduler.add(TID), scheduler.add(TID + 1)
    image = PythonImage()
    image.link(chain(3, CHUNK + 24, CHUNK + 0x1000))
    image.link(chain(5, CHUNK + 0x1000, CHUNK + CHUNK_BYTES))
    leaves = (
        chain(count, low, CHUNK + CHUNK_BYTES)[0].address for count, low in ((3, CHUNK + 24), (5, CHUNK + 0x1000))
    )
    threads = [
        ThreadState(STATE + 0x1000 * n, leaf, thread_pointer=task.thread_pointer)
        for n, (leaf, task) in enumerate(zip(leaves, (sleeper, waker)))
    ]
    stacks = [call_stack((CALL, END)), call_stack(WAKER_NATIVE, start=STACK + 0x10000)]
    image.install_threads(host, threads, stacks, PROCESS["BP_PROCESS_UNWIND"], index=index, count=1)
    sleeper.call(FUTEX, 0x7000).at(Registers(CALL, STACK, 0))
    waker.call(FUTEX, 0x7000).at(Registers(CALL, STACK + 0x10000, 0))
    return sleeper, waker


def test_the_stack_of_a_waker(scheduler: Scheduler, host: Host, pair: tuple[Task, Task]) -> None:
    sleeper, waker = pair
    scheduler.switch(sleeper, scheduler.idle, SLEEPING)
    (own,) = scheduler.stacks
    scheduler.later(MIN_BLOCK_NS)
    scheduler.wake(sleeper, waker, cpu=1)
    (stack,) = scheduler.stacks
    assert stack.pcs == WAKER_NATIVE and stack.header["tgid"] == TGID
    assert frames_of(stack) == [frame.record for frame in chain(5, CHUNK + 0x1000, CHUNK + CHUNK_BYTES)]
    (event,) = scheduler.switch(scheduler.idle, sleeper)
    assert (event["waker_tid"], event["waker_stack"]) == (waker.tid, stack.header["key"])
    assert event["stack"] == own.header["key"] != stack.header["key"]
    assert scheduler.entry(waker)["stack"] == 0 and scheduler.entry(waker)["flags"] == 0


def test_stacks_of_a_waker_and_of_its_own_waits(scheduler: Scheduler, pair: tuple[Task, Task]) -> None:
    """All on one CPU, whose scratch memory they share: where a thread waits is not where it wakes."""
    sleeper, waker = pair
    keys, woken = [], set()
    for task in pair:
        scheduler.switch(task, scheduler.idle, SLEEPING)
        keys.append(int(scheduler.entry(task)["stack"]))
        scheduler.switch(scheduler.idle, task)
    for place in (1, 2, 3):
        scheduler.switch(sleeper, scheduler.idle, SLEEPING)
        scheduler.later(MIN_BLOCK_NS)
        waker.at(Registers(CALL + place, STACK + 0x10000, 0))
        scheduler.wake(sleeper, waker)
        woken.add(int(scheduler.entry(sleeper)["waker_stack"]))
        waker.at(Registers(CALL, STACK + 0x10000, 0))
        (event,) = scheduler.switch(waker, sleeper, SLEEPING)
        assert [event["stack"], scheduler.entry(waker)["stack"]] == keys
        scheduler.switch(scheduler.idle, waker)
    assert len({*keys, *woken}) == 5 and not woken & {0, *keys}


def test_an_interrupt_has_no_stack(scheduler: Scheduler, host: Host, pair: tuple[Task, Task]) -> None:
    sleeper, waker = pair
    assert ended_by(scheduler, sleeper, waker)["waker_stack"] != 0
    event = ended_by(scheduler, sleeper, waker.call(READ, 3))
    assert (event["waker_kind"], event["waker_stack"]) == (INTERRUPT, 0), "nor that of the wait before"


def test_a_waker_of_another_process(scheduler: Scheduler, host: Host, pair: tuple[Task, Task]) -> None:
    """It is watched, and nothing is known of its process yet."""
    sleeper, _ = pair
    waker = scheduler.add(OTHER_TID, OTHER_TGID).call(FUTEX)
    event = ended_by(scheduler, sleeper, waker)
    assert (event["waker_kind"], event["waker_tid"], event["waker_tgid"]) == (THREAD, OTHER_TID, OTHER_TGID)
    assert event["waker_stack"] == 0 and event["stack"] != 0
