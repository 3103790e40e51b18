"""Stacks that wait for a device or for other threads, on a CPU as well as asleep, and stacks that only look like it."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.spans import SpanFlag
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.tables.rows import rows_by
from bpfprof.query.work.places import places_of
from bpfprof.query.work.shares import IDLE, SHARES
from bpfprof.query.work.table import work_of
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
MPI, PAL, OMP = "/usr/lib/libmpi.so.40", "/usr/lib/libopen-pal.so.80", "/usr/lib/llvm-14/lib/libomp.so.5"
IOMP, TBB, TORCH = "/venv/lib/libiomp5.so", "/venv/lib/libtbb.so.12", "/venv/torch/lib/libtorch_cpu.so"
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
        ([MAIN, native("gloo::transport::tcp::Buffer::waitRecv()", TORCH), native("poll", LIBC)], "spin"),
        ([MAIN, native("gloo::allreduce(gloo::AllreduceOptions&)", TORCH), native("sum<float>", TORCH)], "native"),
        ([MAIN, native("MPI_Allreduce", MPI), native("opal_progress", PAL), native("", PAL)], "spin"),
        ([MAIN, native("MPI_Allreduce", MPI), native("ompi_op_base_2buff_sum_float", MPI)], "native"),
        ([native("__kmp_launch_thread", OMP), native("__kmp_hyper_barrier_release", OMP)], "spin"),
        ([native("__kmp_launch_thread", OMP), native("__kmp_invoke_microtask", OMP), native("", "/x.so")], "native"),
        ([MAIN, native("__kmpc_fork_call", IOMP), native("", IOMP)], "spin"),
        ([MAIN, native("__kmpc_fork_call", IOMP), native("", IOMP), native("body", "/srv/lib.so")], "native"),
        ([native("start_thread", LIBC), native("", TBB), native("", TBB)], "spin"),
        ([native("start_thread", LIBC), native("", TBB), native("body", "/srv/lib.so")], "native"),
        ([MAIN, native("tbb::detail::r1::spawn(tbb::detail::d1::task&)", TBB), native("", TBB)], "native"),
        ([native("start_thread", LIBC), native("thread_main", TORCH)], "spin"),
        ([native("start_thread", LIBC), native("thread_main", TORCH), native("xnn_f32_gemm", TORCH)], "native"),
        ([native("blas_thread_server", "/usr/lib/libopenblas.so.0"), *YIELD], "spin"),
        (
            [
                native("blas_thread_server", "/usr/lib/libopenblas.so.0"),
                native("dgemm_kernel", "/lib/libopenblas.so.0"),
            ],
            "native",
        ),
        ([MAIN, native("cuMemAlloc_v2", CUDA), native("ioctl", LIBC)], "gpu"),
        ([MAIN, native("cudaMallocAsync_v11020", "/usr/lib/libcudart.so.13")], "gpu"),
        ([MAIN, native("malloc", LIBC)], "python"),
        ([MAIN, python("query", line=1), native("cuEventQuery", CUDA)], "gpu"),
        ([MAIN, native("cuMemcpyDtoDAsync_v2", CUDA)], "native"),  # the device copies, later
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


def driver(number: int) -> Frame:
    """One of the driver's functions, of which none has a name, by the address that it returns to."""
    return native("", CUDA, offset=number)


@pytest.mark.parametrize(
    ("call", "turn", "sentence"),
    [
        ("cuLaunchKernel", "sched_yield", "Waits for the GPU 80% of the time, whose queue is full: main"),
        ("cuLaunchKernel", "clock_gettime", "The host is late"),  # it may look at the time for any reason
        ("cuMemcpyDtoHAsync_v2", "clock_gettime", "Waits for the GPU 100% of the time: main"),
        ("cuMemcpyHtoDAsync_v2", "sched_yield", "Waits for the GPU 100% of the time: main"),
        ("cuMemFree_v2", "sched_yield", "Waits for the GPU 100% of the time: main"),
    ],
)
def test_a_call_that_waits_in_a_loop_waits_for_the_device_and_the_rest_of_it_does_what_it_does(
    call: str, turn: str, sentence: str
) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    outside = [MAIN, native(call, CUDA), driver(1), driver(2)]
    loop, does = [*outside, driver(3)], [*outside, driver(4), driver(5)]
    for _ in range(100):
        made.spend(main, ON_CPU, 20 * MS, [*loop, driver(6), native(turn, LIBC)])
        made.spend(main, ON_CPU, 40 * MS, [*loop, driver(7), driver(8)])  # what it looks at
        made.spend(main, ON_CPU, 20 * MS, [*loop, driver(9)])  # the loop itself
        made.spend(main, ON_CPU, 20 * MS, does)
    profile = made.build()
    assert verdict_of(profile, work_of(profile)).sentence.startswith(sentence)


HIP, CANN = "/opt/rocm/lib/libamdhip64.so.6", "/usr/lib/libascendcl.so"
MOVE = native("__memmove_avx_unaligned_erms", LIBC)
UP, DOWN, EITHER = (
    "Copies pageable memory to the",
    "Copies from the GPU to pageable",
    "Copies pageable memory to or from the",
)


@pytest.mark.parametrize(
    ("inside", "sentence"),
    [
        ([native("cuMemcpyHtoD_v2", CUDA), driver(1), MOVE], UP),
        ([native("cuMemcpyDtoH_v2", CUDA), driver(1), MOVE], DOWN),
        ([native("cuMemcpyHtoD_v2", CUDA), driver(1)], "Copies to or from the GPU"),  # it may wait for the device
        ([native("cuMemcpyHtoD_v2", CUDA), driver(1), kernel("asm_exc_page_fault"), kernel("clear_page")], UP),
        ([native("cuMemcpyDtoH_v2", CUDA), native("ioctl", LIBC), kernel("pin_user_pages_fast")], DOWN),
        ([native("cuMemcpyHtoD_v2", CUDA), native("ioctl", LIBC), kernel("do_vfs_ioctl")], "Copies to or from the GPU"),
        ([native("hipMemcpyHtoD", HIP), native("memcpy", LIBC)], UP),
        ([native("hipMemcpy", HIP), native("", HIP), MOVE], "Copies to or from the GPU"),  # or on the host
        ([native("hipMemcpy", HIP), native("", HIP), kernel("pin_user_pages_fast")], EITHER),
        ([native("cudaMemcpy", CUDA), MOVE], "Copies to or from the GPU"),
        ([native("cuMemcpyAtoH_v2", CUDA), MOVE], EITHER),
        ([native("clEnqueueReadBuffer", CUDA), MOVE], EITHER),
        ([native("urEnqueueMemBufferWrite", CUDA), MOVE], EITHER),
        ([native("clEnqueueCopyBuffer", CUDA), MOVE], "Copies to or from the GPU"),
        ([native("hipMemcpyWithStream", HIP), MOVE, kernel("exc_page_fault")], EITHER),
        ([native("hipMemcpy", HIP), native("memcpy_rect", HIP)], "Copies to or from the GPU"),
        ([native("hipMemcpyAsync", HIP), native("", HIP)], "Copies to or from the GPU"),  # of which memory is not known
        ([native("aclrtMemcpy", CANN), native("memcpy_s", "/usr/lib/libc_sec.so")], "Copies to or from the GPU"),
        ([native("aclrtSynchronizeStream", CANN), MOVE], "Waits for the GPU"),
    ],
)
@pytest.mark.parametrize("pageable_ms", [6, 4])
def test_memory_is_pageable_where_most_of_the_time_proves_it(
    inside: list[Frame], sentence: str, pageable_ms: int
) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(200):
        made.spend(main, ON_CPU, pageable_ms * MS, [MAIN, *inside])
        made.spend(main, ON_CPU, (10 - pageable_ms) * MS, [MAIN, inside[0]])
    profile = made.build()
    expected = sentence if pageable_ms > 5 or sentence not in (UP, DOWN, EITHER) else "Copies to or from the GPU"
    assert verdict_of(profile, work_of(profile)).sentence.startswith(expected)


def test_memory_is_pageable_both_ways_where_neither_has_most_of_the_time() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for number in range(200):
        call = ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2")[number % 2]
        made.spend(main, ON_CPU, 10 * MS, [MAIN, native(call, CUDA), MOVE])
    profile = made.build()
    assert verdict_of(profile, work_of(profile)).sentence.startswith(EITHER)


@pytest.mark.parametrize(("own_ms", "spun_ms"), [(10, 100), (50, 50)])
def test_a_function_that_does_nothing_but_give_its_cpu_away_spins_in_its_own_code_too(
    own_ms: int, spun_ms: int
) -> None:
    made = ProfileBuilder()
    main, loop = made.thread(100, "MainThread"), native("wait_for_flag", "/srv/lib.so")
    made.spend(main, ON_CPU, (100 - own_ms) * MS, [MAIN, loop, *YIELD])
    made.spend(main, ON_CPU, own_ms * MS, [MAIN, loop])
    assert work_of(made.build()).share_ns()[SHARES.index("spin")] == spun_ms * MS


@pytest.mark.parametrize(("asking_ms", "waiting"), [(60, 100), (10, 10)])
def test_a_line_of_python_that_mostly_asks_whether_a_device_is_done_waits_for_it(asking_ms: int, waiting: int) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    library = python("Event.query", file="/usr/lib/python3/dist-packages/torch/cuda/streams.py")
    made.spend(main, ON_CPU, asking_ms * MS, [MAIN, library, native("cuEventQuery", CUDA)])
    made.spend(main, ON_CPU, (70 - asking_ms) * MS, [MAIN, library])
    made.spend(main, ON_CPU, 30 * MS, [MAIN])
    assert work_of(made.build()).share_ns()[SHARES.index("gpu")] == waiting * MS


@pytest.mark.parametrize(
    ("file", "is_idle"),
    [
        (CUDA, True),
        ("/venv/nvidia/nccl/lib/libnccl.so.2", True),
        ("/opt/rocm/lib/librccl.so.1", True),
        ("/srv/libfeeder.so", False),
    ],
)
def test_a_thread_of_a_driver_waits_for_work_whatever_it_does_then(file: str, is_idle: bool) -> None:
    made = ProfileBuilder()
    main, other = made.thread(100, "MainThread"), made.thread(101, "events")
    begun = [native("start_thread", LIBC), native("", file)]
    for _ in range(100):
        made.spend(main, ON_CPU, 10 * MS, [MAIN])
        made.spend(other, ON_CPU, 4 * MS, [*begun, native("handle", file)])
        made.spend(other, OFF_CPU, 6 * MS, [*begun, native("sem_wait", LIBC), wait("lock")])
    shares = work_of(made.build()).share_ns()
    assert (shares[IDLE], shares[SHARES.index("lock")]) == ((600 * MS, 0) if is_idle else (0, 600 * MS))
    assert shares[SHARES.index("native")] == 400 * MS


@pytest.mark.parametrize("other", ["native", "python"])
def test_who_serves_a_busy_thread_of_python_without_running_any_does_not_count_beside_it(other: str) -> None:
    made = ProfileBuilder()
    main, second = made.thread(100, "MainThread"), made.thread(101, "server")
    stack = [native("serve", "/srv/libserve.so")] if other == "native" else [python("serve", line=9)]
    for _ in range(100):
        made.spend(main, ON_CPU, 10 * MS, [MAIN])
        made.spend(second, ON_CPU, 4 * MS, stack)
        made.spend(second, OFF_CPU, 6 * MS, [*stack, wait("lock")], flags=SpanFlag.IDLE)
    profile = made.build()
    whole = verdict_of(profile, work_of(profile)).whole
    assert len(whole.threads) == (1 if other == "native" else 2)


@pytest.mark.parametrize("reason", ["lock", "poll", "device", "sleep", "syscall ioctl"])
def test_a_wait_in_such_a_call_is_the_same_wait(reason: str) -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    for _ in range(10):
        made.spend(main, OFF_CPU, 9 * MS, [MAIN, *SYNC, wait(reason)])
        made.spend(main, ON_CPU, MS, [MAIN])
    profile = made.build()
    work = work_of(profile)
    assert work.share_ns()[SHARES.index("gpu")] == 90 * MS
    assert [row.name for row in rows_by(profile, work, "reason")] == ["gpu"]


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
    (row,) = rows_by(profile, work, "thread")
    assert (row.own_ns, row.waited_ns) == ((10 * MS, 0, 90 * MS), 90 * MS)


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
        made.spend(main, ON_CPU, MS, [MAIN, native("cuLaunchKernel", CUDA)])
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
