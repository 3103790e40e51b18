"""Fronts in Python that wait for threads without it, made by hand: what those wait for is the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SHARED_LOCK
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, READY, RUNQUEUE, ProfileBuilder, native, python, wait

STEPS = 50
TRAIN, STEP = python("train", line=22), python("step", line=31)
TAKE = [TRAIN, native("pthread_cond_wait"), wait("lock")]
FLUSH = [native("work", "/lib/libfeeder.so"), native("flush", "/lib/libfeeder.so"), native("ioctl"), wait("device")]
SUBMIT = [FLUSH[0], native("submit", "/lib/libfeeder.so"), native("pthread_mutex_lock"), wait("lock")]
UNLOCK = [*SUBMIT[:2], native("pthread_mutex_unlock")]
DECODE = [FLUSH[0], native("decode", "/lib/libfeeder.so")]


def verdict(profile: Profile) -> Verdict:
    return verdict_of(profile, work_of(profile))


def fronts(count: int, locked_ms: int = 0, worker: list = FLUSH, hands: int = 1) -> Profile:  # type: ignore[type-arg]
    """For each process the front waits for 16 ms and works for 4, and its worker asks its device for 17 ms.

    locked_ms: of these the worker waits for a lock that the worker of the process before has so long, in turn. hands:
    so many threads hand a batch on to the front.
    """
    made = ProfileBuilder()
    names = [f"/dev/npu{number}" for number in range(count)]
    mains, workers = [], []
    for number in range(count):
        pid = 100 * (number + 1)
        mains.append(made.thread(pid, "MainThread", pid=pid))
        workers.append(
            [made.thread(pid + 1 + hand, "feeder", pid=pid, first_ns=number * locked_ms * MS) for hand in range(hands)]
        )
    wakers = [[made.thread_waker(it) for it in those] for those in workers]
    for _ in range(STEPS):
        for number, (main, those) in enumerate(zip(mains, workers)):
            made.wait(main, 16 * MS, TAKE, waker=wakers[number][0])
            made.spend(main, ON_CPU, 4 * MS, [TRAIN, STEP])
            for hand in range(hands - 1):
                made.wait(those[hand], 20 * MS, [native("hand"), *TAKE[1:]], waker=wakers[number][hand + 1])
            last = those[-1]
            if locked_ms:
                before = wakers[number - 1][-1]
                made.wait(
                    last, locked_ms * MS, SUBMIT, waker=before, waker_stack=UNLOCK, lock=SHARED_LOCK | 64, object=9
                )
            made.wait(last, (17 - locked_ms) * MS, worker, object=number + 1)
            made.spend(last, ON_CPU, 3 * MS, DECODE)
    objects = (*names, *[""] * (8 - count), "/dev/shm/lock")
    return replace(made.build(), objects=objects)


def test_one_front() -> None:
    found = verdict(fronts(1))
    assert found.sentence == (
        "The main thread waits 80% of the time for thread feeder (101), in train (train.py:22). "
        "That one waits 85% for a device, /dev/npu0, in flush (libfeeder.so)."
    )
    assert found.bound == "device" and found.where == TRAIN


def test_several_that_share_a_lock() -> None:
    found = verdict(fronts(5, locked_ms=4))
    assert found.sentence == (
        "The main threads of 5 processes wait 80% of the time for threads feeder, in train (train.py:22). "
        "Those wait 65% for a device, /dev/npu*, in flush (libfeeder.so). "
        "They wait 20% for one lock of 5 processes, held in submit (libfeeder.so), which waits for a device."
    )
    assert found.bound == "device"


def test_a_chain_of_threads_is_followed_to_its_end() -> None:
    said = verdict(fronts(1, hands=3)).sentence
    assert "for thread feeder (101), in train" in said and "That one waits for thread feeder (103). That one" in said


def test_a_worker_that_computes_is_told_of_as_such() -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100, "MainThread"), made.thread(101, "feeder")
    for _ in range(STEPS):
        made.wait(main, 20 * MS, TAKE, waker=1)
        made.spend(worker, ON_CPU, 20 * MS, DECODE)
    made.thread_waker(worker)
    assert verdict(made.build()).sentence.startswith("CPU-bound in native code: 100% of the time, called from train")


def test_a_worker_of_python_is_named_by_its_own_line() -> None:
    found = verdict(fronts(1, worker=[python("fetch", line=40), native("ioctl"), wait("device")]))
    assert found.sentence.startswith("Waits for a device") and found.where is not None and found.where.name == "fetch"


NAP = [native("work", "/lib/libreduce.so"), native("nap"), wait("sleep")]


def reducing(cpu_ms: int, ready_ms: int, wait_ms: int, last: list[Frame] = NAP) -> Verdict:
    """Loaders compute more than all others do; the loop waits for a thread that waits for another one, which sleeps."""
    made = ProfileBuilder()
    main, hand, peer = (made.thread(100 + number, name) for number, name in enumerate(("MainThread", "reduce", "peer")))
    loaders = [made.thread(110 + number, "loader") for number in range(4)]
    timer = made.waker("timer")
    of_hand, of_peer = made.thread_waker(hand), made.thread_waker(peer)
    for _ in range(STEPS):
        made.spend(main, ON_CPU, cpu_ms * MS, [TRAIN, STEP])
        made.spend(main, RUNQUEUE, ready_ms * MS, [TRAIN, STEP, READY])
        made.wait(main, wait_ms * MS, TAKE, waker=of_hand)
        made.wait(hand, 40 * MS, [native("work", "/lib/libreduce.so"), native("recv"), wait("net")], waker=of_peer)
        made.wait(peer, 40 * MS, last, waker=timer)
        for loader in loaders:
            made.spend(loader, ON_CPU, 40 * MS, [python("decode", line=7), native("inflate", "/lib/libz.so")])
    return verdict(made.build())


@pytest.mark.parametrize(("times", "part"), [((12, 0, 28), "70%"), ((15, 7, 18), "45%")])
def test_what_the_main_thread_waits_for_goes_before_the_sum_of_all_threads(
    times: tuple[int, int, int], part: str
) -> None:
    """Where that is most of its time, or more than anything else."""
    found = reducing(*times)
    assert found.sentence == (
        f"The main thread waits {part} of the time for thread reduce (101), in train (train.py:22). "
        "That one waits for thread peer (102). That one sleeps 100% of the time."
    )
    assert (found.bound, found.where) == ("sleep", TRAIN)


def test_what_to_try_is_for_what_the_last_of_them_waits_for() -> None:
    """Also where that depends on what it is."""
    copies = [native("work", "/lib/libreduce.so"), native("cuStreamSynchronize", "/lib/libcuda.so.1"), wait("poll")]
    found = reducing(12, 0, 28, copies)
    assert found.bound == "gpu" and found.advice == "wait less often; else make what the GPU computes faster"


@pytest.mark.parametrize(("times", "cpu", "waits"), [((22, 0, 18), "55%", "45%"), ((20, 8, 12), "50%", "30%")])
def test_of_a_main_thread_that_computes_more_than_it_waits_both_are_said(
    times: tuple[int, int, int], cpu: str, waits: str
) -> None:
    """As parts of its own time: that loaders compute more is no part of what it is late by."""
    found = reducing(*times)
    assert found.bound == "python" and found.whole.ns == sum(times) * STEPS * MS
    assert found.sentence == (
        f"CPU-bound in Python: {cpu} of the time in step (train.py:31). The main thread waits {waits} of the time for "
        "thread reduce (101), that one for thread peer (102), which sleeps."
    )


def test_a_main_thread_that_waits_little_is_a_part_of_the_sum() -> None:
    found = reducing(28, 6, 6)
    assert found.bound == "native" and "The main thread" not in found.sentence
