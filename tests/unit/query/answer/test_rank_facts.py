"""A rank that is recorded alone waits for the others; what only looks like it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag, ThreadState
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, READY, RUNQUEUE, ProfileBuilder, native, python, wait

PACKAGES = "/v/lib/python3.11/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
TORCH_CPU = f"{PACKAGES}/torch/lib/libtorch_cpu.so"
RUNS = native("c10d::ProcessGroupGloo::runLoop", TORCH_CPU)
ALL_REDUCE = [python("all_reduce", C10D), native("pthread_cond_wait")]
REDUCER = native("c10d::Reducer::finalize_backward()", TORCH_CPU)
SPINS = native("sched_yield", "/usr/lib/libc.so.6")
SYNCS = native("cuStreamSynchronize", "/usr/lib/libcuda.so.1")
THREADING, QUEUE = "/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/queue.py"
COMPUTES, STEP = python("step", line=8), python("step", line=9)


def verdict(made: ProfileBuilder | Profile) -> Verdict:
    profile = made.build() if isinstance(made, ProfileBuilder) else made
    return verdict_of(profile, work_of(profile))


def says_ranks(made: ProfileBuilder | Profile) -> bool:
    return "other ranks" in verdict(made).sentence


def loop_of(
    made: ProfileBuilder, pid: int = 100, waits_ms: int = 70, stack: list[Frame] | None = None, beside: str = "gloo"
) -> int:
    """A rank that computes, and waits in a collective until its library's thread has the answer."""
    main, runs = made.thread(pid, "MainThread", pid), made.thread(pid + 1, f"pt_{beside}", pid)
    waker = made.thread_waker(runs)
    for _ in range(20):
        made.spend(main, ON_CPU, (100 - waits_ms) * MS, [COMPUTES])
        made.wait(main, waits_ms * MS, [STEP, *(stack or ALL_REDUCE), wait("lock")], waker=waker)
        made.wait(runs, 100 * MS, [RUNS, wait("lock")])
    return main


@pytest.mark.parametrize(
    ("state", "stack", "bound", "whom"),
    [
        (OFF_CPU, [*ALL_REDUCE, wait("lock")], "net", "other ranks"),
        (OFF_CPU, [python("recv", C10D), native("poll"), wait("net")], "net", "other ranks"),
        (ON_CPU, [native("MPI_Allreduce", "/usr/lib/libmpi.so.40"), SPINS], "spin", "other ranks"),
        (ON_CPU, [native("", f"{PACKAGES}/mpi4py/MPI.cpython-311.so", 64), SPINS], "spin", "other ranks"),
        (OFF_CPU, [python("synchronize", f"{PACKAGES}/horovod/torch/mpi_ops.py"), wait("sleep")], "net", "other ranks"),
        (ON_CPU, [python("barrier", C10D), SYNCS], "gpu", "the GPU and other ranks"),
    ],
    ids=["gloo", "receives", "mpi", "mpi4py", "horovod", "nccl"],
)
@pytest.mark.parametrize("waits_ms", [70, 30])
def test_a_rank_that_is_recorded_alone_waits_for_the_others(
    state: ThreadState, stack: list[Frame], bound: str, whom: str, waits_ms: int
) -> None:
    made = ProfileBuilder()
    main, other = made.thread(100), made.thread(101, "pt_gloo_runloop")
    for _ in range(20):
        made.spend(main, ON_CPU, (100 - waits_ms) * MS, [COMPUTES])
        by = {"waker": made.thread_waker(other)} if state == OFF_CPU and stack[-1] == wait("lock") else {}
        made.spend(main, state, waits_ms * MS, [STEP, *stack], **by)
        made.spend(other, OFF_CPU, 100 * MS, [RUNS, wait("lock")])
    found = verdict(made)
    if waits_ms < 50:
        assert found.bound == "python"
    else:
        assert found.sentence == f"Waits for {whom} 70% of the time: step (train.py:9)."
        assert (found.bound, found.where) == (bound, STEP)
        assert found.share == pytest.approx(0.7) and found.whole.threads == [main] and "compare" in found.advice


@pytest.mark.parametrize("communicates", [True, False])
def test_who_waits_for_a_thread_that_waits_for_other_ranks_does_so_too(communicates: bool) -> None:
    """As the main thread of a training does for the one that runs the backward pass."""
    made = ProfileBuilder()
    main, backward = made.thread(100), made.thread(101, "pt_autograd_0")
    waker = made.thread_waker(backward)
    reducer = REDUCER if communicates else native("at::native::mul()", TORCH_CPU)
    calls = STEP, python("Tensor.backward", f"{PACKAGES}/torch/_tensor.py")
    for _ in range(20):
        made.spend(main, ON_CPU, 10 * MS, [COMPUTES])
        made.wait(main, 90 * MS, [*calls, native("pthread_cond_wait"), wait("lock")], waker=waker)
        made.wait(backward, 10 * MS, [native("pthread_cond_wait"), wait("lock")], flags=SpanFlag.IDLE)
        made.wait(backward, 90 * MS, [reducer, native("pthread_cond_wait"), wait("lock")])
    found = verdict(made)
    said = "Waits for other ranks 90% of the time: step (train.py:9), in backward."
    assert (found.sentence == said) == communicates


@pytest.mark.parametrize(
    ("process", "frames", "says"),
    [
        ("evaluates", [python("evaluate", line=30), native("at::native::mul()", TORCH_CPU)], False),
        ("averages", [python("average_gradients", line=31)], False),
        ("loads", [python("_worker_loop", f"{PACKAGES}/torch/utils/data/_utils/worker.py")], True),
        ("launched it", [python("_invoke_run", f"{PACKAGES}/torch/distributed/elastic/agent/server/api.py")], True),
        ("in C", [native("at::native::mul()", TORCH_CPU)], True),
        ("another program", [python("serve", line=32)], True),
    ],
)
def test_processes_beside_it_may_be_other_ranks(process: str, frames: list[Frame], says: bool) -> None:
    made = ProfileBuilder()
    loop_of(made)
    other = made.thread(200, "MainThread", 200, process)
    for _ in range(20):
        made.spend(other, ON_CPU, 3 * MS, [*frames, *([native("at::empty()", TORCH_CPU)] * (process == "loads"))])
        made.wait(other, 97 * MS, [*frames, native("nanosleep"), wait("sleep")])
    assert says_ranks(made) is says


def test_a_process_with_another_number_is_another_rank() -> None:
    made = ProfileBuilder()
    loop_of(made)
    other = made.thread(200, "MainThread", 200)
    made.spend(other, ON_CPU, 2_000 * MS, [python("evaluate", line=30)])
    assert says_ranks(made)
    for rank, place in enumerate((0, other)):
        made.threads[place] = replace(made.threads[place], rank=f"RANK={rank}")
    assert not says_ranks(made)


def test_what_is_left_out_by_a_filter_may_be_other_ranks() -> None:
    made = ProfileBuilder()
    loop_of(made)
    assert says_ranks(made) and not says_ranks(replace(made.build(), filter_text=", process 100"))


@pytest.mark.parametrize("collective_ms", [37, 52])
@pytest.mark.parametrize(
    ("state", "stack"),
    [
        (OFF_CPU, [native("read"), wait("disk")]),
        (OFF_CPU, [wait("gil")]),
        (ON_CPU, [SYNCS]),
        (RUNQUEUE, [READY]),
        (OFF_CPU, [native("pthread_mutex_lock"), wait("lock")]),
        (OFF_CPU, [python("Queue.get", QUEUE), wait("lock")]),
        (OFF_CPU, [python("Thread.join", THREADING), wait("lock")]),
        (OFF_CPU, [python("DataLoader.__next__", f"{PACKAGES}/torch/utils/data/dataloader.py"), wait("lock")]),
        (OFF_CPU, [native("nanosleep"), wait("sleep")]),
    ],
    ids=["disk", "GIL", "GPU", "ready", "lock", "queue", "join", "data", "sleep"],
)
def test_what_the_main_thread_does_for_longer_is_the_answer(
    state: ThreadState, stack: list[Frame], collective_ms: int
) -> None:
    made = ProfileBuilder()
    main, runs = made.thread(100), made.thread(101, "pt_gloo_runloop")
    waker = made.thread_waker(runs)
    for _ in range(20):
        made.spend(main, ON_CPU, 3 * MS, [COMPUTES])
        made.spend(main, state, (97 - collective_ms) * MS, [python("step", line=7), *stack])
        made.wait(main, collective_ms * MS, [STEP, *ALL_REDUCE, wait("lock")], waker=waker)
        made.wait(runs, 100 * MS, [RUNS, wait("lock")])
    assert says_ranks(made) == (collective_ms > 50)


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize(
    "stack",
    [
        [python("fetch", "/home/me/mpi4py-tutorial/crawl.py"), native("recv"), wait("net")],
        [python("main", "/srv/horovod/cron.py"), native("nanosleep"), wait("sleep")],
        [python("fetch", "/srv/paddle/distributed/communication/x.py"), native("recv"), wait("net")],
        [python("fetch", "/srv/mindspore/communication/x.py"), native("recv"), wait("net")],
        [python("fetch", "/srv/megengine/distributed/x.py"), native("recv"), wait("net")],
        [python("main", f"{PACKAGES}/mpi4py/run.py"), python("fetch"), native("recv"), wait("net")],
        [python("main", f"{PACKAGES}/horovod/runner/task_fn.py"), python("fetch"), native("recv"), wait("net")],
        [
            python("worker", f"{PACKAGES}/megengine/distributed/launcher.py"),
            *(python("fetch"), native("recv"), wait("net")),
        ],
        [
            python("DataParallel.forward", f"{PACKAGES}/paddle/distributed/parallel.py"),
            *(python("fetch"), native("recv"), wait("net")),
        ],
    ],
)
def test_a_path_with_the_name_of_a_library_is_not_it(stack: list[Frame], has_library: bool) -> None:
    """Nor is what it only calls; whether or not a library of ranks is loaded as well."""
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(20):
        made.spend(main, ON_CPU, 30 * MS, [COMPUTES, *([native("at::native::mul()", TORCH_CPU)] * has_library)])
        made.wait(main, 70 * MS, stack)
    assert not says_ranks(made)


def test_without_a_library_by_which_ranks_talk_there_are_none() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(20):
        made.spend(main, ON_CPU, 30 * MS, [COMPUTES])
        made.wait(main, 70 * MS, [python("all_reduce", line=5), native("recv"), wait("net")])
    assert not says_ranks(made)


def _from_its_threads(made: ProfileBuilder, main: int, other: int) -> None:
    stack = python("average_gradients", line=5), python("Queue.get", QUEUE), wait("lock")
    made.wait(main, 70 * MS, stack, waker=made.thread_waker(other))
    made.spend(other, ON_CPU, 100 * MS, [python("decode", line=40)])


def _for_its_lock(made: ProfileBuilder, main: int, other: int) -> None:
    stack = python("sync_gradients", line=5), native("pthread_mutex_lock"), wait("lock")
    made.wait(main, 70 * MS, stack, waker=made.thread_waker(other), lock=0x7000)
    made.spend(other, ON_CPU, 100 * MS, [python("decode", line=40)])


def _sleeps(made: ProfileBuilder, main: int, other: int) -> None:
    made.wait(main, 70 * MS, [python("all_reduce", line=5), native("nanosleep"), wait("sleep")])
    made.wait(other, 100 * MS, [python("idle", line=40), wait("lock")])


@pytest.mark.parametrize("waits", [_from_its_threads, _for_its_lock, _sleeps])
def test_a_function_of_ones_own_that_is_called_like_a_collective_is_none(
    waits: Callable[[ProfileBuilder, int, int], None],
) -> None:
    made = ProfileBuilder()
    main, other = made.thread(100), made.thread(101, "decoder")
    for _ in range(20):
        made.spend(main, ON_CPU, 30 * MS, [COMPUTES, native("at::native::mul()", TORCH_CPU)])
        waits(made, main, other)
    assert not says_ranks(made)


def test_a_function_of_ones_own_that_calls_a_collective_is_one() -> None:
    made = ProfileBuilder()
    loop_of(made, stack=[python("average_gradients", line=5), REDUCER, native("pthread_cond_wait")])
    assert says_ranks(made)


def test_idle_time_is_no_wait_for_ranks() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(20):
        made.spend(main, ON_CPU, 20 * MS, [COMPUTES, native("at::native::mul()", TORCH_CPU)])
        stack = STEP, python("recv", C10D), native("poll"), wait("poll")
        made.wait(main, 80 * MS, stack, waker=made.waker("timer"), flags=SpanFlag.IDLE)
    assert not says_ranks(made)


@pytest.mark.parametrize(("of_ranks", "says"), [(1, False), (20, False), (30, True), (50, True)])
def test_who_ends_most_of_the_waits_in_a_stack_is_waited_for(of_ranks: int, says: bool) -> None:
    made = ProfileBuilder()
    main, decoder, backward = made.thread(100), made.thread(101, "decoder"), made.thread(102, "pt_autograd_0")
    wakers = [made.thread_waker(backward), made.thread_waker(decoder)]
    for number in range(50):
        made.spend(main, ON_CPU, 4 * MS, [COMPUTES])
        stack = STEP, python("Event.wait", THREADING), native("sem_wait"), wait("lock")
        made.wait(main, 36 * MS, stack, waker=wakers[number >= of_ranks])
        made.spend(decoder, ON_CPU, 40 * MS, [python("decode", line=40)])
        made.wait(backward, 40 * MS, [REDUCER, native("pthread_cond_wait"), wait("lock")])
    assert says_ranks(made) is says
