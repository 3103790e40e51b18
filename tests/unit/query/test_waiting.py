"""Stacks that wait for a device or for other threads, on a CPU as well as asleep, and stacks that only look like it."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.query.places import places_of
from bpfprof.query.rows import rows_by
from bpfprof.query.shares import SHARES
from bpfprof.query.work import work_of
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    kernel,
    native,
    python,
    wait,
)

MAIN = python("main", line=3)
CUDA, GOMP, LIBC = "/usr/lib/libcuda.so.580.1", "/usr/lib/libgomp.so.1", "/usr/lib/libc.so.6"
SYNC = [native("cudaStreamSynchronize", "/usr/lib/libcudart.so.13"), native("cuStreamSynchronize", CUDA)]
YIELD = [native("sched_yield", LIBC), kernel("__x64_sys_sched_yield")]


@pytest.mark.parametrize(
    ("stack", "share"),
    [
        ([MAIN, *SYNC, native("", CUDA)], "gpu"),
        ([MAIN, *SYNC, native("clock_gettime", LIBC)], "gpu"),
        ([MAIN, *SYNC, *YIELD], "gpu"),  # cudaDeviceScheduleYield
        ([MAIN, native("cuLaunchKernel", CUDA), native("", CUDA)], "native"),
        ([MAIN, *SYNC, python("callback")], "python"),  # the program's own, below a library's wait
        ([MAIN, native("", CUDA)], "native"),  # which of its functions is not known
        ([python("cuStreamSynchronize", line=1)], "python"),
        ([MAIN, native("GOMP_parallel", GOMP), native("", GOMP)], "spin"),
        ([MAIN, native("GOMP_parallel", GOMP), native("", GOMP), *YIELD], "spin"),
        ([native("start_thread", LIBC), native("", GOMP), native("", GOMP)], "spin"),
        ([native("start_thread", LIBC), native("", GOMP), native("kernel._omp_fn.0", "/srv/lib.so")], "native"),
        ([native("", GOMP), native("work", "/srv/lib.so"), native("GOMP_loop_dynamic_next", GOMP)], "native"),
        (
            [native("", GOMP), native("f", "/srv/lib.so"), native("GOMP_loop_dynamic_next", GOMP), native("", GOMP)],
            "native",
        ),
        ([native("blas_thread_server", "/usr/lib/libopenblas.so.0"), *YIELD], "spin"),
        (
            [
                native("blas_thread_server", "/usr/lib/libopenblas.so.0"),
                native("dgemm_kernel", "/lib/libopenblas.so.0"),
            ],
            "native",
        ),
        ([MAIN, *YIELD], "spin"),
        ([MAIN, native("wait_for_flag", "/srv/lib.so"), native("pthread_spin_lock", LIBC)], "spin"),
        ([MAIN, native("spin", "/srv/lib.so")], "native"),  # a name is no proof
    ],
)
def test_shares_of_cpu_time(stack: list[Frame], share: str) -> None:
    made = ProfileBuilder()
    made.spend(made.thread(100, "MainThread"), ON_CPU, 100 * MS, stack)
    profile = made.build()
    spent = {SHARES[place]: int(ns) for place, ns in enumerate(work_of(profile).share_ns()[: len(SHARES)]) if ns}
    assert spent == {share: 100 * MS}


@pytest.mark.parametrize("reason", ["lock", "poll", "device", "sleep", "syscall ioctl"])
def test_a_wait_in_such_a_call_is_the_same_wait(reason: str) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(10):
        made.spend(main, OFF_CPU, 9 * MS, [MAIN, *SYNC, wait(reason)])
        made.spend(main, ON_CPU, MS, [MAIN])
    assert work_of(made.build()).share_ns()[SHARES.index("gpu")] == 90 * MS


def test_a_call_that_does_not_return_is_neither_idle_nor_a_lock() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(100, "MainThread"), OFF_CPU, 9_000 * MS, [MAIN, *SYNC, wait("lock")])
    assert work_of(made.build()).share_ns()[SHARES.index("gpu")] == 9_000 * MS


def test_cpu_time_that_waits_leaves_the_cpu_column_and_not_the_thread() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    made.spend(main, ON_CPU, 90 * MS, [MAIN, *SYNC])
    made.spend(main, ON_CPU, 10 * MS, [MAIN])
    profile = made.build()
    work = work_of(profile)
    (place,) = places_of(profile, work)
    assert (place.cpu_ns, place.wait_ns) == (10 * MS, 90 * MS)
    row = next(row for row in rows_by(profile, work, "function") if row.name.startswith("main"))
    assert (row.own_ns, row.reasons) == ((10 * MS, 0, 90 * MS), {"gpu": 90 * MS})
    assert [row.name for row in rows_by(profile, work, "reason")] == ["gpu"]
    assert sum(work.waiting_cpu_ns(1)) == 90 * MS


@pytest.mark.parametrize(
    ("line", "last", "is_alike"), [(3, "FutexWait", True), (4, "FutexWait", False), (3, "Post", False)]
)
def test_a_stack_whose_middle_is_not_known_is_what_whole_ones_that_end_so_are(
    line: int, last: str, is_alike: bool
) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    end = [native("FutexWait", "/lib/libjax_common.so"), native("syscall", LIBC), wait("lock")]
    other = [MAIN, native("Post", "/lib/libjax_common.so"), native("syscall", LIBC), wait("lock")]
    cut = [
        Frame(FrameKind.TRUNCATED, "unwind table not ready yet"),
        python("main", line=line),
        native(last, "/lib/libjax_common.so"),
        native("syscall", LIBC),
        wait("lock"),
    ]
    for _ in range(10):
        made.spend(
            main,
            OFF_CPU,
            4 * MS,
            [MAIN, native("jax::PyArray::BlockUntilReady() const", "/lib/libjax_common.so"), *end],
        )
        made.spend(main, OFF_CPU, MS, other)
        made.spend(main, OFF_CPU, 4 * MS, cut)
        made.spend(main, ON_CPU, MS, [MAIN])
    assert work_of(made.build()).share_ns()[SHARES.index("gpu")] == (80 if is_alike else 40) * MS


def test_who_lost_its_cpu_in_a_call_that_spins_waits_as_before_and_who_was_woken_does_not() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    inside, asleep = [MAIN, *SYNC, native("", CUDA)], [MAIN, *SYNC, native("poll", LIBC)]
    for _ in range(10):
        made.spend(main, ON_CPU, 5 * MS, inside)
        made.spend(main, RUNQUEUE, 2 * MS, [*inside, READY])
        made.spend(main, OFF_CPU, 2 * MS, [*asleep, wait("poll")])
        made.spend(main, RUNQUEUE, MS, [*asleep, wait("poll")])
    shares = work_of(made.build()).share_ns()
    assert (shares[SHARES.index("gpu")], shares[SHARES.index("ready")]) == (90 * MS, 10 * MS)
