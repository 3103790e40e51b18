"""Threads and processes that are born, become another program, and go."""

from __future__ import annotations

import pytest

from tests.ebpf_host.host import CONFIG, CONSTANTS, PROCESS, STATUS, TGID, TID, Host
from tests.ebpf_host.scheduler import DEAD, EXECVE, KIND, STATE, Scheduler, Task
from tests.ebpf_host.test_scheduler import EXIT_EVENT, FORK, MIN_BLOCK_NS, WAIT, kinds, times


@pytest.fixture
def main(scheduler: Scheduler) -> Task:
    """A thread that is on a CPU."""
    return scheduler.add(TID)


def test_the_first_run_has_an_event(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_config(CONFIG["BP_CONFIG_OFF_CPU_STACKS"], min_block_ns=MIN_BLOCK_NS, stack_interval_ns=1_000_000)
    host.set_process(0)
    born = scheduler.add(2000, is_watched=False)
    (event,) = scheduler.fork(main, born)
    assert (event["kind"], event["tid"], event["tgid"], event["args"][0]) == (FORK, 2000, TGID, TGID)
    assert event["time_ns"] == scheduler.entry(born)["first_ns"] == scheduler.now
    scheduler.later(90)
    (event,) = scheduler.switch(scheduler.idle, born)
    assert (event["kind"], event["status"]) == (WAIT, STATUS.BP_NOT_STARTED) and times(event) == (0, 90)
    assert (event["stack"], event["syscall"], event["on_cpu_ns"]) == (0, -1, 0)
    assert kinds(scheduler.wait(born, 300)) == []


def test_a_thread_of_no_target_is_not_watched(scheduler: Scheduler, host: Host) -> None:
    stranger, born = scheduler.add(50, 50, is_watched=False), scheduler.add(51, 50, is_watched=False)
    assert not len(scheduler.fork(stranger, born)) and host.thread(51) is None
    host.set_config(CONFIG["BP_CONFIG_ALL_PROCESSES"])
    assert kinds(scheduler.fork(stranger, born)) == [FORK] and host.thread(51) is not None


@pytest.mark.parametrize("flag", [0, PROCESS["BP_PROCESS_FOLLOW_CHILDREN"]])
def test_a_child_is_watched_if_children_are(scheduler: Scheduler, host: Host, main: Task, flag: int) -> None:
    host.set_process(flag | PROCESS["BP_PROCESS_ASKED"], gil=0x1234)
    child = scheduler.add(3000 + flag, 3000 + flag, is_watched=False)
    events, record = scheduler.fork(main, child), host.process(child.tgid)
    assert kinds(events) == ([FORK] if flag else [])
    if flag:
        assert record is not None and record["gil"] == 0x1234, "what is known of the parent is true of it"
        assert record["flags"] == flag | PROCESS["BP_PROCESS_KNOWN"], "it may ask for itself"
    else:
        assert record is None and host.thread(child.tid) is None


def test_more_threads_than_there_is_room_for(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_process(0)
    lost = host.counter("BP_LOST_THREAD_TABLE_FULL")
    born = [scheduler.add(2000 + n, is_watched=False) for n in range(20)]
    forked = sum(len(scheduler.fork(main, task)) for task in born)
    assert host.counter("BP_LOST_THREAD_TABLE_FULL") - lost == len(born) - forked > 0
    assert [host.thread(task.tid) is not None for task in born].count(True) == forked


def test_a_thread_id_that_was_given_again_is_not_forgotten(scheduler: Scheduler, host: Host, main: Task) -> None:
    scheduler.free(main)
    assert host.thread(TID) is not None, "it is not dead"


def test_another_thread_than_the_first_becomes_a_program(scheduler: Scheduler, host: Host, main: Task) -> None:
    """It goes on under the first one's id; what it did under its own is told."""
    host.set_process(0)
    first = scheduler.add(TGID, state=STATE["BP_THREAD_DEAD"])
    scheduler.later(900, main)
    first.exec_ns = main.exec_ns
    events = scheduler.exec(first, main.tid)
    assert kinds(events) == [EXIT_EVENT, WAIT, KIND["BP_EVENT_EXEC"]]
    assert (events[0]["tid"], events[0]["on_cpu_ns"], events[2]["args"][0]) == (TID, 900, TID)
    assert (events[1]["tid"], events[1]["syscall"]) == (TGID, EXECVE) and times(events[1]) == (900, 0)
    assert not events[0]["args"].any(), "its name is gone: the current thread is the first one"
    scheduler.later(50, first)
    (event,) = scheduler.wait(first, 100, 20)
    assert (event["tid"], event["on_cpu_ns"]) == (TGID, 50) and times(event) == (100, 20)


def test_another_thread_goes_on_as_the_first_before_it_is_a_program(scheduler: Scheduler, host: Host) -> None:
    """The kernel gives it the first one's id when that one has not left the CPU yet, and tells of it much later."""
    host.set_process(0)
    first, other = scheduler.add(TGID), scheduler.add(TID)
    for task, exec_ns in ((first, 5000), (other, 700)):
        task.exec_ns = exec_ns
        now = {"since_ns": scheduler.now, "first_ns": scheduler.now}
        host.watch(task.tid, tgid=TGID, state=STATE["BP_THREAD_ON_CPU"], exec_ns=exec_ns, task=task.address, **now)
    scheduler.later(100, first, other)
    first.tid, other.tid = other.tid, first.tid
    other.put("pid", other.tid)
    assert kinds(scheduler.switch(first, scheduler.idle, DEAD)) == [EXIT_EVENT]
    scheduler.later(30, other)
    events = [*scheduler.wait(other, 50, 7)]
    assert [(event["tid"], event["on_cpu_ns"], *times(event)) for event in events] == [(TGID, 130, 50, 7)]
    scheduler.later(10, other)
    assert kinds(scheduler.exec(other, first.tid)) == [KIND["BP_EVENT_EXEC"]]
    scheduler.later(10, other)
    (event,) = scheduler.wait(other, 4, 2)
    assert (event["on_cpu_ns"], *times(event)) == (150, 4, 2)


def test_a_program_that_begins_when_the_recording_is_over(scheduler: Scheduler, host: Host, main: Task) -> None:
    host.set_process(0)
    first = scheduler.add(TGID, state=STATE["BP_THREAD_DEAD"])
    host.set_config(CONFIG["BP_CONFIG_STOPPED"])
    before, record = [scheduler.entry(task).tobytes() for task in (main, first)], process_bytes(host)
    scheduler.later(900, main)
    assert not len(scheduler.exec(first, main.tid))
    assert [scheduler.entry(task).tobytes() for task in (main, first)] == before and process_bytes(host) == record


@pytest.mark.parametrize("more", [0, CONFIG["BP_CONFIG_ALL_PROCESSES"]])
def test_what_is_born_when_the_recording_is_over(scheduler: Scheduler, host: Host, main: Task, more: int) -> None:
    host.set_process(PROCESS["BP_PROCESS_FOLLOW_CHILDREN"])
    host.set_config(CONFIG["BP_CONFIG_STOPPED"] | more)
    thread, child = scheduler.add(2000, is_watched=False), scheduler.add(2500, 2500, is_watched=False)
    for born in (thread, child):
        assert not len(scheduler.fork(main, born)) and host.thread(born.tid) is None
    assert host.process(child.tgid) is None


def process_bytes(host: Host) -> bytes:
    found = host.process(TGID)
    assert found is not None
    return found.tobytes()


AT_ONCE = CONSTANTS["BP_BIRTHS_AHEAD_NS"] // CONSTANTS["BP_BIRTH_NS"] + 1


def flood(scheduler: Scheduler, parent: Task, count: int) -> int:
    """How many are watched of so many threads that a process starts now, each of which ends at once."""
    born = scheduler.add(5000 + parent.tgid, parent.tgid, is_watched=False)
    return sum(len(scheduler.fork(parent, born)) for _ in range(count))


def test_a_process_starts_more_than_are_watched(scheduler: Scheduler, host: Host, main: Task) -> None:
    """As many as in four seconds at once, and one each millisecond."""
    host.set_process(0)
    lost = host.counter("BP_LOST_BIRTH")
    assert flood(scheduler, main, AT_ONCE + 100) == AT_ONCE
    assert host.counter("BP_LOST_BIRTH") - lost == 100
    scheduler.later(50 * CONSTANTS["BP_BIRTH_NS"])
    assert flood(scheduler, main, 100) == 50


@pytest.mark.parametrize("parents_end", [False, True])
def test_descendants_have_the_account_of_their_family(
    scheduler: Scheduler, host: Host, main: Task, parents_end: bool
) -> None:
    """Also when those between have ended. A process that was there before has its own."""
    host.set_config(CONFIG["BP_CONFIG_ALL_PROCESSES"])
    price, parent = 0, main
    for number in range(3):
        child = scheduler.add(3000 + number, 3000 + number, is_watched=False)
        price += CONSTANTS["BP_PROCESS_BIRTH_NS"] * len(scheduler.fork(parent, child))
        price += CONSTANTS["BP_BIRTH_NS"] * flood(scheduler, child, AT_ONCE // 2)
        if parents_end:
            scheduler.free(parent)
        parent = child
    assert CONSTANTS["BP_BIRTHS_AHEAD_NS"] < price <= CONSTANTS["BP_BIRTHS_AHEAD_NS"] + CONSTANTS["BP_BIRTH_NS"]
    assert flood(scheduler, scheduler.add(4000, 4000, is_watched=False), 100) == 100
