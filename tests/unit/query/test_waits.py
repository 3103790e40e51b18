"""Every wait with a row: what it was for, who ended it, and whether anything was to do."""

from __future__ import annotations

from typing import Any

import pytest

from bpfprof.model.profile import WAIT_ROW_DTYPE, Profile, WaitTable, Waker
from bpfprof.model.samples import UNSAMPLED, WAITS_FOR_GIL, FdKind, WakerKind
from bpfprof.model.syscalls import syscall_numbers
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from tests.unit.profile.views import text
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, NANOSLEEP, START_NS, HandMade, Story

THREAD, INTERRUPT = WakerKind.THREAD, WakerKind.INTERRUPT


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(100)
    return empty


def built(made: HandMade, end_ms: float = 100) -> tuple[Profile, WaitTable]:
    made.end = {"end_ns": START_NS + int(end_ms * MS)}
    profile = build_profile(made.recording(), ProfileOptions(with_spans=True))
    assert profile.waits is not None and profile.waits.rows.dtype == WAIT_ROW_DTYPE
    return profile, profile.waits


def stack_of(profile: Profile, number: int) -> list[str]:
    return [text(profile, frame) for frame in profile.stacks[number]]


def test_the_columns_of_a_wait(made: HandMade) -> None:
    f, g = made.stack((made.code("f"), 0, 0)), made.stack((made.code("g"), 0, 0))
    waker = made.waker(1, 100, 101)
    story = Story.begin(made).run(5 * MS)
    values = {"waker": waker, "waker_kind": THREAD, "waker_stack": g, "args": (0xABC0, 0, 0)}
    story.block(20 * MS, 2 * MS, f, FUTEX, **values).run(MS).preempt(3 * MS, f).run(MS).block(4 * MS, 0, f, IOCTL)
    story.total()
    Story.begin(made, tid=101).run(36 * MS).total()
    profile, table = built(made, 36)
    lock, preempted, ioctl = table.rows
    assert (lock["start_ns"], lock["blocked_ns"], lock["runqueue_ns"]) == (5 * MS, 20 * MS, 2 * MS)
    assert (lock["thread"], lock["lock"], lock["intervals"], lock["task_state"]) == (0, 0xABC0, 1, 1)
    assert [table.reasons[row["reason"]] for row in table.rows] == ["lock", "runqueue", "syscall ioctl"]
    assert stack_of(profile, lock["stack"]) == ["f", "wait lock"]
    assert stack_of(profile, lock["waker_stack"] - 1) == ["g"]
    assert table.wakers[lock["waker"] - 1] == Waker("thread", 100, 101, "", "main", 1), "its last name"
    assert (preempted["blocked_ns"], preempted["runqueue_ns"], preempted["task_state"]) == (0, 3 * MS, 0)
    assert stack_of(profile, preempted["stack"]) == ["f", "runqueue"]
    assert (ioctl["start_ns"], ioctl["blocked_ns"]) == (32 * MS, 4 * MS), "had not ended"
    assert [ioctl[name] for name in ("waker", "waker_stack", "waker_wait", "lock")] == [0, 0, 0, 0]
    assert not table.rows["is_idle"].any()


def test_wakers_that_are_no_targets(made: HandMade) -> None:
    daemon = made.waker(-1, 7, 8, "kworker")
    Story.begin(made).run(MS).block(MS, waker=daemon, waker_kind=THREAD).run(MS).total()
    _, table = built(made, 3)
    assert table.wakers[table.rows["waker"][0] - 1] == Waker("thread", 7, 8, "daemon", "kworker", -1)


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        ("nanosleep", (), "timer"),
        ("futex", (0x1000,), "timer"),
        ("epoll_wait", (3, 0x1000), "timer"),
        ("poll", (0x1000, 1, 10), "timer"),
        ("poll", (0x1000, 1, 500), "interrupt"),
        ("poll", (0x1000, 1, 0xFFFF_FFFF), "interrupt"),
        ("ppoll", (0x1000, 1), "timer"),
        ("select", (4, 0x1000), "timer"),
        ("pselect6", (4, 0x1000), "timer"),
        ("recvfrom", (3,), "interrupt"),
        ("wait4", (3,), "interrupt"),
        ("fsync", (3,), "interrupt"),
        ("ioctl", (3,), "interrupt"),
    ],
)
def test_what_an_interrupt_was(made: HandMade, call: str, args: tuple[int, ...], expected: str) -> None:
    values: dict[str, Any] = {"syscall": next(iter(syscall_numbers(call))), "args": (*args, 0, 0, 0)[:3]}
    Story.begin(made).run(MS).block(10 * MS, waker_kind=INTERRUPT, **values).run(MS).total()
    _, table = built(made, 12)
    assert table.wakers[table.rows["waker"][0] - 1].kind == expected


def test_a_device_that_is_waited_for_with_a_timeout(made: HandMade) -> None:
    for call, kind in (("poll", "timer"), ("ioctl", "interrupt")):
        values: dict[str, Any] = {"syscall": next(iter(syscall_numbers(call))), "args": (0x1000, 1, 10)}
        story = Story.begin(made, tid=100 + len(made.threads)).run(MS)
        story.block(10 * MS, waker_kind=INTERRUPT, fd_kind=FdKind.DEVICE, **values).run(MS).total()
        _, table = built(made, 12)
        assert table.reasons[table.rows["reason"][-1]] == "device"
        assert table.wakers[table.rows["waker"][-1] - 1].kind == kind


def test_a_timer_ends_no_wait_for_the_gil(made: HandMade) -> None:
    """What ended the last slice, which is too short for a row, is not known."""
    story = Story.begin(made).run(MS).block(5 * MS, syscall=FUTEX, flags=WAITS_FOR_GIL, waker_kind=INTERRUPT)
    story.run(1000).block_short(20_000, syscall=FUTEX, flags=WAITS_FOR_GIL).run(MS).total()
    assert built(made, 8)[1].rows["waker"].tolist() == [0]


def test_rows_stand_for_waits_that_were_only_added_up(made: HandMade) -> None:
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(MS).block(2 * MS, 0, stack, FUTEX).run(MS).block(12 * MS, 0, stack, FUTEX).run(MS)
    for _ in range(3):
        story.block_short(MS, syscall=FUTEX, flags=UNSAMPLED).run(MS)
    story.preempt(MS, stack).run(MS).total()
    other = Story.begin(made, tid=101).run(MS).block_short(9 * MS, syscall=FUTEX, flags=UNSAMPLED).run(15 * MS).total()
    profile, table = built(made, (other.now_ns - START_NS) / MS)
    rows = table.rows[["thread", "blocked_ns", "total_ns", "count"]].tolist()
    assert rows == [
        (0, 2 * MS, 5 * MS, 4),
        (0, 12 * MS, 12 * MS, 1),
        (0, 0, 0, 0),
        (1, 0, 9 * MS, 1),
    ], "preempted; and on its own what none of the thread's waits is like"
    assert stack_of(profile, table.rows["stack"][3]) == ["not_sampled", "wait lock"]


def test_holders_of_the_gil_are_those_of_each_wait(made: HandMade) -> None:
    f, g = made.stack((made.code("f"), 0, 0)), made.stack((made.code("g"), 0, 0))
    story = Story.begin(made).run(MS)
    for stack, holder in ((f, 1), (g, 2)):
        values = {"flags": WAITS_FOR_GIL, "holder": holder + 1, "holder_stack": stack, "waker_kind": THREAD}
        story.block(4 * MS, syscall=FUTEX, args=(0x7010, 0, 0), **values).run(MS)
    story.block_short(16 * MS // 2, syscall=FUTEX, flags=WAITS_FOR_GIL | UNSAMPLED).run(MS).total()
    for tid in (101, 102):
        Story.begin(made, tid=tid).run(20 * MS).total()
    profile, table = built(made, 20)
    found = [(int(row["wait"]), int(row["holder"]), int(row["ns"]) // MS) for row in table.holders]
    assert found == [(0, 1, 8), (1, 2, 8)], "with half of the time that was only added up"
    assert [stack_of(profile, row["stack"] - 1) for row in table.holders] == [["f"], ["g"]]


def test_the_wait_before_is_none_that_could_run_all_the_time(made: HandMade) -> None:
    made.waker(1)
    Story.begin(made).run(MS).block(19 * MS, waker=1, waker_kind=THREAD).run(MS).total()
    Story.begin(made, tid=101).run(2 * MS).block(2 * MS).run(MS).preempt(MS).run(15 * MS).total()
    rows = built(made, 21)[1].rows
    assert rows["waker_wait"][0] == 2 and rows["blocked_ns"].tolist() == [19 * MS, 2 * MS, 0]


def test_the_wait_before_of_who_woke(made: HandMade) -> None:
    made.waker(1)
    woken = Story.begin(made).run(MS)
    for _ in range(3):
        woken.block(9 * MS, MS, waker=1, waker_kind=THREAD).run(MS)  # woken at 10, 21, 32 ms
    woken.total()
    waker = Story.begin(made, tid=101).run(12 * MS)
    waker.block(2 * MS).run(MS).block(6 * MS).run(MS).block(9 * MS, 2 * MS).run(MS).total()  # until 14, 21, 33 ms
    Story.begin(made, tid=102).run(34 * MS).total()
    _, table = built(made, 34)
    rows = table.rows
    assert rows["waker_wait"].tolist() == [0, 5, 5, 0, 0, 0], "none before; ended at that moment; the next is too late"
    assert (rows["thread"][4], rows["blocked_ns"][4]) == (1, 6 * MS)


def test_a_lock_is_no_gil(made: HandMade) -> None:
    made.processes[0]["gil"] = [0x7000, 208]
    story = Story.begin(made).run(MS).block(MS, syscall=FUTEX, args=(0x7010, 0, 0)).run(MS)
    story.block(MS, syscall=FUTEX, args=(0x8010, 0, 0)).run(MS).block(MS, syscall=NANOSLEEP, args=(5, 0, 0)).total()
    assert built(made, 6)[1].rows["lock"].tolist() == [0, 0x8010, 0]


def test_without_being_asked_there_is_no_table(made: HandMade) -> None:
    Story.begin(made).run(MS).block(MS).total()
    assert build_profile(made.recording()).waits is None
    _, table = built(HandMade())
    assert len(table.rows) == 0 and table.reasons == ()
