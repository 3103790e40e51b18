"""The threads that count, and what is left out of their time."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.work.shares import HANDED, IDLE, LOCK, PYTHON
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, native, python, wait


def told(profile: Profile) -> Verdict:
    return verdict_of(profile, work_of(profile))


def pool(workers: int, busy_ms: int, locked_ms: int, idle_ms: int) -> ProfileBuilder:
    made = ProfileBuilder()
    main = made.thread(100)
    made.wait(main, (busy_ms + locked_ms + idle_ms) * MS, [python("serve"), wait("net")], flags=SpanFlag.IDLE)
    for number in range(workers):
        thread = made.thread(101 + number, f"worker_{number}")
        for _ in range(busy_ms // 10):
            made.spend(thread, ON_CPU, 10 * MS, [python("work", line=5)])
        made.wait(thread, locked_ms * MS, [python("audit", line=9), wait("lock")])
        made.wait(thread, idle_ms * MS, [python("take"), wait("net")], flags=SpanFlag.IDLE)
    return made


def test_idle_time_of_those_that_count_is_a_part_of_the_whole() -> None:
    """Not of the sentence's share: a lock that has a quarter of the time has no more because the rest is idle."""
    found = told(pool(4, 100, 500, 1_400).build())
    assert found.bound == "lock" and " 25% of the time" in found.sentence
    assert found.share == pytest.approx(0.25) and found.whole.ns == 8_000 * MS
    shares = found.whole.share_ns()
    assert (shares[PYTHON], shares[LOCK], shares[IDLE]) == (400 * MS, 2_000 * MS, 5_600 * MS)
    assert [role.name for role in found.whole.idle] == ["python"] or len(found.whole.idle) == 1


def test_threads_with_little_work_do_not_thin_out_the_one_that_works() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(200):
        made.spend(main, ON_CPU, 10 * MS, [python("parse", line=12)])
    for number in range(7):
        thread = made.thread(101 + number, f"beat_{number}")
        made.spend(thread, ON_CPU, 120 * MS, [python("beat")])
        made.wait(thread, 1_880 * MS, [python("take"), wait("net")], flags=SpanFlag.IDLE)
    found = told(made.build())
    assert "CPU-bound in Python: 100% of the time in parse" in found.sentence and found.whole.ns == 2_000 * MS
    assert sum(len(role.threads) for role in found.whole.small) == 7


def test_who_only_waits_for_others_is_left_out_and_said() -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100), made.thread(101, "worker")
    for _ in range(200):
        made.spend(worker, ON_CPU, 10 * MS, [python("parse", line=12)])
    join = [python("Thread.join", "/usr/lib/python3.11/threading.py", 1119), wait("lock")]
    made.wait(main, 2_000 * MS, join, waker=made.thread_waker(worker))
    found = told(made.build())
    assert found.whole.ns == 2_000 * MS and [role.threads for role in found.whole.waiting] == [[0]]
    assert found.whole.share_ns()[HANDED] == 0


def test_a_whole_of_threads_that_hardly_work_is_all_of_them() -> None:
    made = ProfileBuilder()
    for number in range(3):
        thread = made.thread(100 + number, f"beat_{number}")
        made.spend(thread, ON_CPU, 10 * MS, [python("beat")])
        made.wait(thread, 1_990 * MS, [python("take"), wait("net")], flags=SpanFlag.IDLE)
    found = told(made.build())
    assert found.bound == "idle" and found.whole.ns == 6_000 * MS


LIBC, BLAS = "/usr/lib/libc.so.6", "/v/site-packages/numpy.libs/libscipy_openblas64_-ff651d7f.so"
KEPT_BUSY = {
    "a pool of BLAS spins for work": [native("blas_thread_server", BLAS), native("sched_yield", LIBC)],
    "a team of OpenMP spins for work": [native("gomp_team_barrier_wait_end", "/usr/lib/libgomp.so.1")],
    "a driver's thread polls": [native("", "/usr/lib/libcuda.so.580.1"), native("poll", LIBC)],
}


@pytest.mark.parametrize("spun", KEPT_BUSY.values(), ids=KEPT_BUSY)
def test_who_serves_nobody_has_no_say_though_a_cpu_is_busy_with_it(spun: list[Frame]) -> None:
    """It spins for work that the main thread, which computes in Python, does not give it."""
    made = ProfileBuilder()
    main = made.thread(100)
    threads = [made.thread(101 + number, f"worker_{number}") for number in range(3)]
    for _ in range(100):
        made.spend(main, ON_CPU, 10 * MS, [python("parse", line=12)])
        for thread in threads:
            made.spend(thread, ON_CPU, 10 * MS, [native("start_thread", LIBC), *spun])
    found = told(made.build())
    assert "CPU-bound in Python: 100% of the time in parse" in found.sentence and found.whole.ns == 1_000 * MS


def test_a_team_that_the_main_thread_waits_for_in_a_barrier_has_a_say() -> None:
    made, barrier = ProfileBuilder(), native("gomp_team_barrier_wait_end", "/usr/lib/libgomp.so.1")
    main, worker = made.thread(100), made.thread(101)
    for _ in range(100):
        made.spend(main, ON_CPU, 10 * MS, [python("solve", line=12), barrier])
        made.spend(worker, ON_CPU, 10 * MS, [native("start_thread", LIBC), barrier])
    assert told(made.build()).bound == "spin"


def test_a_server_in_c_that_waits_for_a_gpu_has_a_say() -> None:
    """Nobody of Python is known to wait for it, and it hardly computes."""
    made, cuda = ProfileBuilder(), "/usr/lib/libcuda.so.580.1"
    main, server = made.thread(100), made.thread(101, "server")
    for _ in range(100):
        made.spend(main, ON_CPU, MS, [python("ticks", line=12)])
        made.wait(main, 19 * MS, [python("ticks", line=12), wait("sleep")])
        made.spend(server, ON_CPU, MS, [native("serve", "/srv/libserve.so")])
        made.spend(server, ON_CPU, 19 * MS, [native("serve", "/srv/libserve.so"), native("cuStreamSynchronize", cuda)])
    assert told(made.build()).bound == "gpu"
