"""The waits of a profile: how long, who ended each, and what that one had waited for before."""

from __future__ import annotations

from bpfprof.model.profile import Profile
from bpfprof.model.samples import UNSAMPLED, WAITS_FOR_GIL, WakerKind
from bpfprof.model.states import reason_text
from bpfprof.query.work.waits import find_waits
from tests.unit.profile.views import built, text
from tests.unit.recording.hand_made import FOR_CONDITION, FUTEX, IOCTL, MS, NANOSLEEP, HandMade, Story

BY_THREAD = {"waker_kind": WakerKind.THREAD}


def stack_of(profile: Profile, number: int) -> list[str]:
    return [text(profile, frame) for frame in profile.stacks[number]]


def test_the_columns_of_a_wait(made: HandMade) -> None:
    f, g = made.stack((made.code("f"), 0, 0)), made.stack((made.code("g"), 0, 0))
    values = {"waker": made.waker(1, 100, 101), "waker_stack": g, "args": (0xABC0, 128, 0), **BY_THREAD}
    story = Story.begin(made).run(5 * MS).block(20 * MS, 2 * MS, f, FUTEX, **values).run(MS).preempt(3 * MS, f)
    story.run(MS).block(4 * MS, 0, f, IOCTL).total()
    Story.begin(made, tid=101).run(36 * MS).total()
    profile = built(made, 36)
    lock, ioctl = find_waits(profile).rows  # what was runnable all the time is no wait
    assert [lock[name] for name in ("blocked_ns", "total_ns", "count")] == [20 * MS, 20 * MS, 1]
    assert [lock[name] for name in ("thread", "lock", "is_shown", "is_idle")] == [0, 0xABC0, True, False]
    assert [reason_text(row["reason"]) for row in (lock, ioctl)] == ["lock", "syscall ioctl"]
    assert stack_of(profile, lock["stack"]) == ["f", "wait lock"]
    assert stack_of(profile, lock["waker_stack"] - 1) == ["g"]
    assert ioctl["blocked_ns"] == 4 * MS, "had not ended"
    assert [ioctl[name] for name in ("waker", "waker_stack", "before", "lock")] == [0, 0, -1, 0]


def test_waits_that_none_stands_for_are_there_as_sums(made: HandMade) -> None:
    stack = made.stack((made.code("f"), 0, 0))
    story = Story.begin(made).run(MS).block(2 * MS, 0, stack, FUTEX, one_in=2).run(MS).block(12 * MS, 0, stack, FUTEX)
    for _ in range(3):
        story.run(MS).block_short(MS, syscall=FUTEX, flags=UNSAMPLED)
    story.run(2 * MS).total()
    Story.begin(made, tid=101).run(MS).block_short(9 * MS, syscall=FUTEX, flags=UNSAMPLED).run(13 * MS).total()
    profile = built(made, 23)
    rows = find_waits(profile).rows
    assert rows[rows["is_shown"]][["thread", "blocked_ns", "total_ns", "count"]].tolist() == [
        (0, 2 * MS, 5 * MS, 4),
        (0, 12 * MS, 12 * MS, 1),
        (1, 0, 9 * MS, 1),
    ]
    assert stack_of(profile, rows["stack"][-1]) == ["not_sampled", "wait lock"]


def test_a_wait_for_the_gil_is_one_behind_all_its_holders(made: HandMade) -> None:
    f, g = made.stack((made.code("f"), 0, 0)), made.stack((made.code("g"), 0, 0))
    gil = {"flags": WAITS_FOR_GIL, "args": (0x7010, FOR_CONDITION, 0), **BY_THREAD}
    long = Story.begin(made).run(MS).block(12 * MS, syscall=FUTEX, holder=2, holder_stack=f, **gil).run(MS)
    other = Story.begin(made, tid=101).run(5 * MS).block(MS, syscall=FUTEX, holder=3, holder_stack=g, **gil).run(8 * MS)
    for story in (long, other, Story.begin(made, tid=102).run(14 * MS)):
        story.total()
    profile = built(made, 14)
    waits = find_waits(profile)
    assert waits.rows["blocked_ns"].tolist() == [12 * MS, MS]
    held = [(int(row["holder"]) - 1, int(row["stands_for_ns"]) // MS) for row in waits.held]
    assert held == [(1, 4), (2, 1), (1, 7), (2, 1)] and waits.held_by.tolist() == [0, 0, 0, 1]
    assert [stack_of(profile, row["holder_stack"] - 1) for row in waits.held[:2]] == [["f"], ["g"]]


def test_the_wait_before_of_who_woke(made: HandMade) -> None:
    made.waker(1)
    woken = Story.begin(made).run(MS)
    for _ in range(3):
        woken.block(9 * MS, MS, waker=1, **BY_THREAD).run(MS)  # woken at 10, 21, 32 ms
    woken.total()
    waker = Story.begin(made, tid=101).run(12 * MS)
    waker.block(2 * MS).run(MS).block(6 * MS).run(MS).block(11 * MS).run(MS).total()  # until 14, 21, 33 ms
    Story.begin(made, tid=102).run(34 * MS).total()
    rows = find_waits(built(made, 34)).rows
    assert rows["before"].tolist() == [-1, 4, 4, -1, -1, -1], "none before; ended at that moment; the next is too late"
    assert (rows["thread"][4], rows["blocked_ns"][4]) == (1, 6 * MS)


def test_the_wait_before_is_none_that_could_run_all_the_time(made: HandMade) -> None:
    made.waker(1)
    Story.begin(made).run(MS).block(19 * MS, waker=1, **BY_THREAD).run(MS).total()
    Story.begin(made, tid=101).run(2 * MS).block(2 * MS).run(MS).preempt(MS).run(15 * MS).total()
    rows = find_waits(built(made, 21)).rows
    assert rows["before"][0] == 1 and rows["blocked_ns"].tolist() == [19 * MS, 2 * MS]


def test_a_lock_is_no_gil(made: HandMade) -> None:
    made.processes[0]["gil"] = [0x7000, 208]
    story = Story.begin(made).run(MS).block(MS, syscall=FUTEX, args=(0x7010, 128, 0)).run(MS)
    story.block(MS, syscall=FUTEX, args=(0x8010, 128, 0)).run(MS).block(MS, syscall=NANOSLEEP, args=(5, 0, 0)).total()
    assert find_waits(built(made, 6)).rows["lock"].tolist() == [0, 0x8010, 0]
