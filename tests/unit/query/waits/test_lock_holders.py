"""Who held a lock while others waited, against answers worked out by hand and a count of every nanosecond."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.spans import CONDITION_LOCK, PARKED_LOCK, SHARED_LOCK
from bpfprof.model.states import reason_text
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.code.functions import function_of_frames
from bpfprof.query.tables.rows import rows_by
from bpfprof.query.waits.lock_holders import LockWaits, _Held, hog_of, lock_waits, waits_while_held
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait

AUDIT, HOG = python("audit", line=20), python("hog", line=40)


def found_in(made: ProfileBuilder) -> list[LockWaits]:
    profile = made.build()
    return lock_waits(profile, work_of(profile))


def holders(made: ProfileBuilder) -> dict[tuple[int, str], int]:
    """Of the first lock: milliseconds by waker and function."""
    profile = made.build()
    (lock, *_) = lock_waits(profile, work_of(profile))
    names = [frame.name for frame in profile.frames] + [""]
    return {(share.value, names[share.frame]): round(share.ns / MS) for share in lock.holders}


def queue_of_three(made: ProfileBuilder, times: int = 2) -> None:
    """The first holds it for 50 ms, then the second for 2 ms, then the third; each gets it from the one before.

    Only a third of the hand-overs are the first one's.
    """
    threads = [made.thread(100 + number, f"worker-{number}") for number in range(3)]
    wakers = [made.thread_waker(thread) for thread in threads]
    for _ in range(times):
        made.spend(threads[0], OFF_CPU, 50 * MS, [HOG, wait("sleep")])
        made.wait(threads[0], 4 * MS, [HOG, wait("lock")], waker=wakers[2], waker_stack=[AUDIT], lock=0x7F00)
        for number, before_ms in ((1, 50), (2, 52)):
            giver = wakers[number - 1]
            stack = [HOG if number == 1 else AUDIT]
            made.wait(
                *(threads[number], before_ms * MS, [AUDIT, wait("lock")]),
                **{"waker": giver, "waker_stack": stack, "lock": 0x7F00},
            )
            made.spend(threads[number], OFF_CPU, 2 * MS, [AUDIT, wait("sleep")])
            made.spend(threads[number], ON_CPU, (52 - before_ms) * MS, [AUDIT])


def test_the_hog_is_named_though_each_gets_it_from_the_next() -> None:
    made = ProfileBuilder()
    queue_of_three(made)
    found = holders(made)
    # While the first had it both others waited; of the other four hand-overs two or one did.
    assert found[0, "hog"] == 4 * 50 and found[1, "audit"] == 2 * (2 + 2) and found[2, "audit"] == 2 * 2
    profile = made.build()
    work = work_of(profile)
    (lock,) = lock_waits(profile, work)
    hog = hog_of(lock, function_of_frames(profile.frames))
    assert hog is not None and (hog.value, profile.frames[hog.frame], hog.ns) == (0, HOG, 200 * MS)
    held_ns, reasons = waits_while_held(profile, work, 1)
    assert held_ns == 2 * 54 * MS
    assert [(reason_text(share.value), share.ns) for share in reasons[:1]] == [("sleep", 2 * 54 * MS)]


def test_the_verdict_and_the_rows_say_it() -> None:
    made = ProfileBuilder()
    queue_of_three(made, 20)
    profile = made.build()
    work = work_of(profile)
    found = verdict_of(profile, work)
    assert (
        found.bound == "lock"
        and found.where == HOG
        and "held through sleeps there; hog (train.py:40) of" in found.sentence
    )
    (row,) = rows_by(profile, work, "lock")
    assert row.lock is not None and (row.name, row.lock.number, row.own_ns[2]) == ("#1", 1, row.lock.ns)


def test_after_the_last_release_nobody_is_known() -> None:
    made = ProfileBuilder()
    one, other = made.thread(100), made.thread(101)
    made.wait(one, 10 * MS, [AUDIT, wait("lock")], lock=0x7F00, waker=made.thread_waker(other), waker_stack=[AUDIT])
    made.spend(other, ON_CPU, 10 * MS, [AUDIT])
    made.wait(other, 30 * MS, [AUDIT, wait("lock")], lock=0x7F00)
    assert holders(made) == {(-1, ""): 30, (0, "audit"): 10}


def test_of_two_threads_none_is_a_hog() -> None:
    made = ProfileBuilder()
    threads = [made.thread(100), made.thread(101)]
    for thread, ms in zip(threads, (90, 10)):
        waker = made.thread_waker(threads[1 - thread])
        made.wait(thread, ms * MS, [AUDIT, wait("lock")], lock=0x7F00, waker=waker, waker_stack=[AUDIT])
    (lock,) = found_in(made)
    assert hog_of(lock, function_of_frames(made.build().frames)) is None


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ({"lock": 0x100}, {"lock": 0x100}, 1),
        ({"lock": 0x100}, {"lock": 0x200}, 2),
        ({"reason": "file-lock", "object": 1}, {"reason": "file-lock", "object": 1, "pid": 200}, 1),
        ({"reason": "file-lock", "object": 1}, {"reason": "file-lock", "object": 2}, 2),
        (
            {"reason": "file-lock", "object": 1, "lock": 8},
            {"reason": "file-lock", "object": 1, "lock": 8, "pid": 200},
            1,
        ),
        ({"reason": "file-lock", "object": 1, "lock": 8}, {"reason": "file-lock", "object": 1, "lock": 0}, 2),
        ({"reason": "file-lock"}, {"reason": "file-lock", "pid": 200}, 1),
        ({"lock": 0x100}, {"lock": 0x100, "pid": 200}, 2),
        ({"lock": 0x100 | SHARED_LOCK}, {"lock": 0x100 | SHARED_LOCK, "pid": 200}, 1),
        ({"reason": "kernel-lock"}, {"reason": "kernel-lock", "pid": 200}, 2),
        ({"lock": 0x100, "parked": True}, {"lock": 0x200, "parked": True}, 1),
        ({"lock": 0x100 | PARKED_LOCK, "parked": True}, {"lock": 0x100 | PARKED_LOCK, "parked": True}, 1),
        ({"lock": 0x100 | PARKED_LOCK, "parked": True}, {"lock": 0x200 | PARKED_LOCK, "parked": True}, 2),
    ],
)
def test_which_waits_are_for_one_lock(first: dict[str, Any], second: dict[str, Any], count: int) -> None:
    made = ProfileBuilder()
    for number, values in enumerate((first, second)):
        values = dict(values)
        thread = made.thread(100 + number, pid=values.pop("pid", 100))
        stack = [
            AUDIT,
            *[native("_PySemaphore_Wait")] * values.pop("parked", False),
            wait(values.pop("reason", "lock")),
        ]
        made.spend(thread, ON_CPU, 10 * MS, [AUDIT])
        made.wait(thread, 10 * MS, stack, **values)
    assert len(found_in(made)) == count


@pytest.mark.parametrize("seed", range(20))
def test_times_of_threads_against_a_count(seed: int) -> None:
    draw = random.Random(seed)
    rows = [(draw.randrange(3), *sorted((draw.randrange(60), draw.randrange(60)))) for _ in range(draw.randrange(20))]
    held = _Held(*np.array(rows, np.int64).reshape(-1, 3).T)
    inside = {(thread, at) for thread, first, last in rows for at in range(first, last)}
    assert held.total_ns == len(inside)
    asked = [(draw.randrange(5), *sorted((draw.randrange(90), draw.randrange(90)))) for _ in range(50)]
    counts = [sum((thread, at) in inside for at in range(first, last)) for thread, first, last in asked]
    assert held.within(*np.array(asked).T).tolist() == counts


THREADING = "/usr/lib/python3.11/threading.py"
ACQUIRE = [python(name, THREADING) for name in ("Semaphore.acquire", "Condition.wait")]
RELEASE = [python(name, THREADING) for name in ("Semaphore.release", "Condition.notify")]
END_OF_WITH = [python("Semaphore.__exit__", THREADING), *RELEASE]
SEMAPHORES = 0x1000 | CONDITION_LOCK, 0x2000 | CONDITION_LOCK


@pytest.mark.parametrize(
    ("first_waits_too", "giver", "is_lock"),
    [
        (False, [HOG, *RELEASE], False),
        (True, [HOG, *RELEASE], True),
        (False, [HOG, *END_OF_WITH], True),
        (False, [AUDIT, *RELEASE], True),
    ],
)
@pytest.mark.parametrize("lock", [SEMAPHORES[0], CONDITION_LOCK])
def test_a_semaphore_is_a_lock_where_who_releases_it_had_taken_it(
    first_waits_too: bool, giver: list[Frame], is_lock: bool, lock: int
) -> None:
    made = ProfileBuilder()
    first, second = (made.thread(100 + number, f"worker-{number}") for number in range(2))
    wakers = {first: made.thread_waker(first), second: made.thread_waker(second)}
    stack = [AUDIT, *ACQUIRE, wait("lock")]
    for _ in range(4):
        made.wait(first, 10 * MS, stack, waker=wakers[second], waker_stack=giver, lock=lock)
        made.spend(second, ON_CPU, 10 * MS, [HOG])
        if first_waits_too:
            made.wait(second, 5 * MS, stack, waker=wakers[first], waker_stack=[AUDIT, *RELEASE], lock=lock)
            made.spend(first, ON_CPU, 5 * MS, [AUDIT])
    found = found_in(made)
    assert [lock.ns for lock in found] == ([4 * (10 + 5 * first_waits_too) * MS] if is_lock else [])


def test_two_semaphores_in_one_function() -> None:
    """One is a lock, the other says that something is there."""
    made = ProfileBuilder()
    first, second = (made.thread(100 + number, f"worker-{number}") for number in range(2))
    waker = made.thread_waker(second)
    for lock, giver in zip(SEMAPHORES, ([HOG, *END_OF_WITH], [HOG, *RELEASE])):
        made.wait(first, 10 * MS, [AUDIT, *ACQUIRE, wait("lock")], waker=waker, waker_stack=giver, lock=lock)
    made.spend(second, ON_CPU, 20 * MS, [HOG])
    assert [lock.ns for lock in found_in(made)] == [10 * MS]


def test_condition_wait_takes_its_lock_again() -> None:
    made = ProfileBuilder()
    first, second = (made.thread(100 + number, f"worker-{number}") for number in range(2))
    waker, stack = made.thread_waker(second), [AUDIT, python("Condition.wait", THREADING), wait("lock")]
    notify = [HOG, python("Condition.notify", THREADING)]
    made.wait(first, 10 * MS, stack, waker=waker, waker_stack=notify, lock=SEMAPHORES[0])
    made.wait(first, 5 * MS, stack, waker=waker, waker_stack=[HOG], lock=0x3000)
    made.spend(second, ON_CPU, 15 * MS, [HOG])
    assert [lock.ns for lock in found_in(made)] == [5 * MS]


@pytest.mark.parametrize("is_given", [True, False])
def test_a_wait_whose_time_ran_out_is_one_for_a_lock_that_others_had(is_given: bool) -> None:
    """Else it was a look whether there is something to do."""
    made = ProfileBuilder()
    first, second = (made.thread(100 + number, f"worker-{number}") for number in range(2))
    timer, waker = made.waker("timer"), made.thread_waker(second)
    for _ in range(4):
        made.wait(first, 10 * MS, [AUDIT, wait("lock")], waker=timer, lock=0x100)
    if is_given:
        made.wait(first, 10 * MS, [AUDIT, wait("lock")], waker=waker, waker_stack=[HOG], lock=0x100)
    made.spend(second, ON_CPU, 50 * MS, [HOG])
    found = found_in(made)
    assert [lock.ns for lock in found] == ([50 * MS] if is_given else [])
    if is_given:
        assert [(share.value, share.ns) for share in found[0].holders] == [(1, 50 * MS)]


def test_a_thread_that_waits_for_a_lock_all_the_time_is_not_idle() -> None:
    made = ProfileBuilder()
    starved, first, second = (made.thread(100 + number, f"worker-{number}") for number in range(3))
    made.wait(starved, 100 * MS, [AUDIT, wait("lock")], lock=0x100)
    made.spend(first, ON_CPU, 90 * MS, [AUDIT])
    made.wait(first, 10 * MS, [AUDIT, wait("lock")], lock=0x100, waker=made.thread_waker(second), waker_stack=[HOG])
    made.spend(second, ON_CPU, 100 * MS, [HOG])
    (lock,) = found_in(made)
    assert lock.ns == 110 * MS and [(share.value, share.ns) for share in lock.holders] == [(0, 110 * MS)]
