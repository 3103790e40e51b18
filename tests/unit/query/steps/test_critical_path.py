"""Training loops made by hand: what they wait for counts, what others do meanwhile does not."""

from __future__ import annotations

import pytest

from bpfprof.model.profile import Profile
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.steps.critical_path import CriticalPath, critical_path
from bpfprof.query.steps.phases import find_phases
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, native, python, wait

STEP = python("step", line=7)
TORCH = "/usr/lib/python3/dist-packages/torch"
LOAD = [STEP, python("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py", 700)]
GET = [*LOAD, python("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 103), wait("pipe")]
FORWARD = [STEP, python("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1500), native("sgemm_", "/lib/blas.so")]
DECODE = [python("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 300), python("decode", line=20)]
QUEUE = [DECODE[0], python("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 103), wait("pipe")]
SECOND = 1000 * MS


def loop(computes: int, waits: int, decodes: int, workers: int = 2, pins: bool = False) -> Profile:
    """100 steps: milliseconds that one computes, waits for data, and that each worker decodes meanwhile.

    pins: a thread of the loop's process waits for the workers, and the loop for it.
    """
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    threads = [made.thread(200 + it, "MainThread", pid=200 + it, process="pt_data_worker") for it in range(workers)]
    wakers = [made.thread_waker(it) for it in threads]
    pin = made.thread(101, "pin_memory") if pins else -1
    pinned = made.thread_waker(pin) if pins else 0
    by_main = made.thread_waker(main)
    for step in range(100):
        if waits:
            made.wait(main, waits * MS, GET, waker=pinned or wakers[step % workers])
        if pins:
            made.wait(pin, (waits + computes) * MS, GET[1:], waker=wakers[step % workers])
        made.spend(main, ON_CPU, computes * MS, FORWARD)
        for worker in threads:
            made.spend(worker, ON_CPU, decodes * MS, DECODE)
            if (rest := waits + computes - decodes) > 0:
                made.wait(worker, rest * MS, QUEUE, waker=by_main)
    return made.build()


def path_of(profile: Profile) -> CriticalPath | None:
    work = work_of(profile)
    return critical_path(profile, work, find_phases(work.stack_frames.frames, work.stack_frames))


def verdict(profile: Profile) -> Verdict:
    return verdict_of(profile, work_of(profile))


@pytest.mark.parametrize("pins", [False, True])
def test_a_loop_that_waits_for_its_workers(pins: bool) -> None:
    found = verdict(loop(computes=3, waits=7, decodes=10, pins=pins))
    assert found.bound == "data" and found.where is not None and found.where.name == "decode"
    assert "Data-bound: the loop waits 70% of the time for data from 2 loaders, busy 100% of theirs" in found.sentence
    # Two make 10 ms of work in 10 ms each, and a step computes for 3.
    assert found.advice.startswith("7 loaders (num_workers=7)")


def test_workers_that_nobody_waits_for() -> None:
    """They do twice as much as the loop."""
    profile = loop(computes=10, waits=0, decodes=10)
    found = verdict(profile)
    assert found.bound == "native" and found.where is not None and found.where.name == "step"
    path = path_of(profile)
    assert path is not None and path.loops == (0,) and path.data_ns == path.loading_ns == 0
    assert int(path.work.rows["ns"].sum()) == SECOND


def test_a_loop_that_loads_itself() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(100):
        made.spend(main, ON_CPU, 8 * MS, [*LOAD, python("decode", line=20)])
        made.spend(main, ON_CPU, 2 * MS, FORWARD)
    found = verdict(made.build())
    assert found.sentence.startswith(
        "Data-bound: the loop loads data itself for 80% of the time; that is CPU time in Python"
    )
    assert found.where is not None and found.where.name == "decode" and found.advice.startswith("4 loaders")


def test_a_loop_that_reads_itself() -> None:
    """That it waits is its own work: no other one makes the data meanwhile."""
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(100):
        made.wait(main, 8 * MS, [*LOAD, python("read", line=30), wait("disk")])
        made.spend(main, ON_CPU, 2 * MS, FORWARD)
    found = verdict(made.build())
    assert found.sentence.startswith(
        "Data-bound: the loop loads data itself for 80% of the time; that is waiting for the disk in read"
    )
    assert found.bound == "data"


def test_that_it_lacks_the_gil_while_it_loads_is_not_the_datas() -> None:
    made = ProfileBuilder()
    main, other = made.thread(100, "MainThread"), made.thread(101, "decoder")
    holds = python("decode", line=20)
    for _ in range(100):
        made.wait(main, 8 * MS, [*LOAD, wait("gil")], behind=[(1, other, [holds])])
        made.spend(main, ON_CPU, 2 * MS, FORWARD)
        made.spend(other, ON_CPU, 10 * MS, [holds])
    assert verdict(made.build()).bound == "gil"


def test_a_program_that_trains_nothing() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(100), ON_CPU, SECOND, [STEP])
    profile = made.build()
    assert path_of(profile) is None


def test_a_device_is_waited_for_in_a_function_of_its_library() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(100):
        made.spend(main, ON_CPU, 2 * MS, FORWARD)
        made.spend(main, ON_CPU, 4 * MS, [STEP, native("cudaStreamSynchronize", "/lib/libcudart.so.12")])
        stack = [STEP, native("cudaStreamSynchronize", "/lib/libcudart.so.12"), wait("device")]
        made.spend(main, OFF_CPU, 4 * MS, stack)
    found = verdict(made.build())
    assert (found.bound, round(found.share, 4)) == ("gpu", 0.8)
    assert "Waits for the GPU 80% of the time: step (train.py:" in found.sentence
    assert found.sentence.endswith(", in cudaStreamSynchronize().")
