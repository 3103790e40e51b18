"""The verdict: each rule on facts made for it, and what profiles made by hand come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import CpuThrottle, Profile
from bpfprof.model.spans import SHARED_LOCK, SpanFlag
from bpfprof.query.answer.causes import CAUSES
from bpfprof.query.answer.facts import Facts
from bpfprof.query.answer.verdict import RULES, Verdict, decide, verdict_of
from bpfprof.query.work.places import places_of
from bpfprof.query.work.shares import HANDED, IDLE, SHARES
from bpfprof.query.work.table import work_of
from bpfprof.render.summary import summary_lines
from tests.unit.render.profiles import (
    INFO,
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    empty_profile,
    kernel,
    native,
    python,
    training_profile,
    wait,
)

MAIN = python("main", line=3)
JOIN = [MAIN, python("Thread.join", "/usr/lib/python3.11/threading.py", 1119)]


def facts(first: str, of_time: dict[str, float], **values: Any) -> Facts:
    """of_time: the parts by their names."""
    parts = tuple(of_time.get(name, 0.0) for name in CAUSES)
    made = Facts(first=first, part=max(parts), parts=parts, where="audit (djapp.py:21)", where_part=1.0)
    return replace(made, **values)


LOADS = {"data_part": 0.72, "loaders": 2, "loaders_needed": 7, "loaders_busy": 0.97, "loading_first": "python"}
LOADS |= {"loading_where": "decode (loops.py:43)"}
OPENMP = {"pool": "OpenMP", "pool_threads": 16, "pool_cpus": 2.0, "pool_part": 0.9, "pool_setting": "OMP_NUM_THREADS"}
STORE = {"holder": "store (app.py:9)"}


@pytest.mark.parametrize(
    ("given", "bound", "sentence"),
    [
        (
            facts("lock", {"lock": 1}, samples=3, deadlock="a -> b -> a", deadlock_where="take (x.py:4)", deadlocks=1),
            "stuck",
            "Deadlocked: a -> b -> a, each waits for what the next one has, in take (x.py:4).",
        ),
        (
            facts("python", {"python": 1}, deadlock="MainThread", deadlock_where="handle (x.py:4)", deadlocks=3),
            "stuck",
            "Deadlocked: MainThread waits in handle (x.py:4) for a lock that it holds itself; 2 more.",
        ),
        (
            facts("", {}, deadlock="a -> b -> a", deadlocks=2),
            "stuck",
            "Deadlocked: a -> b -> a, each waits for what the next one has; 1 more.",
        ),
        (facts("python", {"python": 1}, samples=33), "unknown", "Too little to say (33 samples): record -d 10"),
        (facts("", {}, samples=0, is_of_all=False), "unknown", "Nothing of what was asked for was seen"),
        (facts("", {}, samples=0), "unknown", "Too little to say (0 samples): record -d 10"),
        (facts("python", {"python": 1}, duration_ns=700 * MS), "unknown", "Too little to say (0.7 s)"),
        (facts("lock", {"lock": 1.0}, stuck_part=0.9, stuck="Stuck: x waits."), "stuck", "Stuck: x waits."),
        (facts("lock", {"lock": 1.0}, stuck_part=0.2, stuck="Stuck: x waits."), "lock", "Bound by locks"),
        (facts("", {}, busy_part=0.0, working_ns=0), "idle", "Idle: its threads wait for work."),
        (facts("python", {"python": 1}, busy_part=0.04), "idle", "Mostly idle: its busiest thread worked 4%"),
        (
            facts("ready", {"ready": 0.55}, limit_of="docker 3f2a", limit_cpus=1.0, limit_part=0.9),
            "ready",
            "Stopped by a CPU limit: ready 55% of the time; docker 3f2a may use 1 CPU, and had used that up in 90% of",
        ),
        (
            facts("ready", {"ready": 0.55}, cpu_count=0.53),
            "ready",
            "ready 55% of the time without one; it got 0.53 CPUs",
        ),
        (
            facts("gil", {"gil": 0.41}, holder_part=0.38, **STORE),
            "gil",
            "wait 41% of the time for it; store (app.py:9)",
        ),
        (facts("gil", {"gil": 0.41}, holder_part=0.2, **STORE), "gil", "no single function holds it"),
        (facts("lock", {"lock": 0.58}, lock_part=0.9), "lock", "one lock: threads wait 58% of the time, most for that"),
        (
            facts("lock", {"lock": 0.58}, inside="sleeps"),
            "lock",
            "taken in audit (djapp.py:21), held through sleeps there",
        ),
        (facts("lock", {"lock": 0.58}, lock_part=0.3), "lock", "Bound by locks"),
        (
            facts("python", {"python": 0.61, "native": 0.38}),
            "python",
            "61% of the time in audit (djapp.py:21); 38% in C",
        ),
        (
            facts("native", {"native": 1.0}, kernel_part=0.6, faults_per_s=207_203.4),
            "native",
            "audit (djapp.py:21); 60% of the CPU time in the kernel, 207,203 page faults a second.",
        ),
        (
            facts("python", {"python": 0.9}, collection_part=0.7),
            "python",
            "90% of the time in audit (djapp.py:21); 70% of the CPU time in garbage collections.",
        ),
        (facts("python", {"python": 0.9}, collection_part=0.1), "python", "90% of the time in audit (djapp.py:21)."),
        (facts("sleep", {"sleep": 0.6}, in_loop=True), "sleep", "audit (djapp.py:21); the event loop waits meanwhile."),
        (facts("sleep", {"sleep": 0.6}, in_loop=True, loop_tasks=20), "sleep", "meanwhile, and 20 tasks with it."),
        (
            facts("net", {"net": 0.6}, executor_tasks=9, executor_threads=1),
            "net",
            "audit (djapp.py:21); 9 tasks have or want the only thread of an executor.",
        ),
        (
            facts("python", {"python": 0.9}, in_loop=True, loop_tasks=20, ready_tasks=7, kernel_part=0.6),
            "python",
            "60% of the CPU time in the kernel; 7 other tasks of the event loop are ready and wait.",
        ),
        (
            facts("native", {"native": 0.9}, in_loop=True, ready_tasks=1),
            "native",
            "audit (djapp.py:21); another task of the event loop is ready and waits.",
        ),
        (facts("python", {"python": 0.9}, ready_tasks=7), "python", "90% of the time in audit (djapp.py:21)."),
        (facts("native", {"native": 0.9, "python": 0.1}), "native", "90% of the time, called from audit (djapp.py:21)"),
        (
            facts("native", {"native": 0.9}, operator="aten::sort", operator_part=0.8),
            "native",
            "90% of the time, called from audit (djapp.py:21); 80% of it in aten::sort.",
        ),
        (facts("disk", {"disk": 0.72}), "disk", "Waits for the disk 72% of the time: audit (djapp.py:21)."),
        (facts("disk", {"disk": 0.72}, where_part=0.6), "disk", "audit (djapp.py:21), 60% of it."),
        (facts("disk", {"disk": 0.72}, where_part=0.05), "disk", "72% of the time, in many places."),
        (facts("net", {"net": 0.72}), "net", "Waits for the network 72% of the time"),
        (facts("device", {"device": 0.4}), "device", "Waits for a device 40% of the time"),
        (
            facts("device", {"device": 0.4}, device_cpu_part=0.9, object="/dev/kfd AMDKFD_IOC_WAIT_EVENTS"),
            "device",
            "CPU-bound in the kernel, in calls of a device: 40% of the time, for /dev/kfd AMDKFD_IOC_WAIT_EVENTS",
        ),
        (
            facts("memory", {"memory": 0.7}, room_part=0.2, reads_per_s=120.0),
            "disk",
            "Short of memory: it waits 70% of the time for pages from the disk: audit (djapp.py:21); 120 page faults",
        ),
        (
            facts("memory", {"memory": 0.7}, limit_hits_per_s=40.0),
            "disk",
            "audit (djapp.py:21), 40 times a second at the memory limit of its control group.",
        ),
        (
            facts("native", {"native": 0.46, "memory": 0.45}, kernel_part=0.94, limit_hits_per_s=5_000.0),
            "disk",
            "Short of memory: it waits 45% of the time for pages from the disk: audit (djapp.py:21), 5,000 times a",
        ),
        (facts("native", {"native": 0.8, "memory": 0.1}, kernel_part=0.94, limit_hits_per_s=5_000.0), "native", "80%"),
        (
            facts("memory", {"memory": 0.7}),
            "disk",
            "Waits 70% of the time for pages from the disk: audit (djapp.py:21).",
        ),
        (facts("sleep", {"sleep": 0.6}), "sleep", "Sleeps on purpose 60% of the time: audit (djapp.py:21)."),
        (facts("child", {"child": 0.8}, child="sh (7), asleep 98%"), "child", "another process 80% of the time"),
        (facts("other", {"other": 0.8}, waits_for="syscall msgrcv"), "unknown", "Waits for syscall msgrcv 80%"),
        (
            facts("lock", {"lock": 0.9}, late="Rank 1 is late.", late_part=0.6, late_bound="sleep"),
            "sleep",
            "1 is late.",
        ),
        (
            facts("net", {"net": 0.7}, ranks_part=0.7, ranks_where="step (t.py:9)", ranks_phase="backward"),
            "net",
            "Waits for other ranks 70% of the time: step (t.py:9), in backward.",
        ),
        (
            facts("gpu", {"gpu": 0.7}, ranks_part=0.7, ranks_bound="gpu", busy_part=0.1),
            "gpu",
            "Waits for the GPU and other ranks 70% of the time.",
        ),
        (
            facts("python", {"python": 0.8}, **LOADS),
            "data",
            "waits 72% of the time for data from 2 loaders, busy 97% of theirs; that is CPU time in Python in decode (",
        ),
        (
            facts("disk", {"disk": 0.8}, data_part=0.01, loading_part=0.8, loading_first="disk"),
            "data",
            "Data-bound: the loop loads data itself for 80% of the time; that is waiting for the disk.",
        ),
        (
            facts("ready", {"ready": 0.6, "native": 0.4}, **OPENMP),
            "ready",
            "Oversubscribed: 16 threads of OpenMP for 2 CPUs: 60% of the time ready without one",
        ),
        (
            facts("spin", {"native": 0.47, "spin": 0.5}, **{**OPENMP, "spin_part": 0.5, "pool_processes": 8}),
            "ready",
            "16 threads of OpenMP of 8 processes for 2 CPUs: 50% of the CPU time spent spinning for each other",
        ),
        (
            facts("spin", {"native": 0.47, "spin": 0.5}, **{**OPENMP, "spin_part": 0.5, "pool_threads": 2}),
            "spin",
            "Spins 50% of the time: waits on a CPU, 2 threads of OpenMP for each other; most in audit (djapp.py:21).",
        ),
        (facts("spin", {"spin": 0.9}), "spin", "Spins 90% of the time: waits on a CPU; most in audit (djapp.py:21)."),
        (
            facts("gpu", {"gpu": 0.96, "native": 0.03}, gpu_call="cuStreamSynchronize()", gpu_does="compute"),
            "gpu",
            "Waits for the GPU 96% of the time: audit (djapp.py:21), in cuStreamSynchronize().",
        ),
        (
            facts("gpu", {"gpu": 0.99}, gpu_does="upload"),
            "gpu",
            "Copies pageable memory to the GPU 99% of the time: audit (djapp.py:21).",
        ),
        (
            facts("gpu", {"gpu": 0.8}, gpu_does="download"),
            "gpu",
            "Copies from the GPU to pageable memory 80% of the time: audit (djapp.py:21).",
        ),
        (
            facts("gpu", {"gpu": 0.8}, gpu_does="memory"),
            "gpu",
            "Takes and gives back memory of the GPU 80% of the time: ",
        ),
        (
            facts("gpu", {"gpu": 0.8}, gpu_does="queue"),
            "gpu",
            "Waits for the GPU 80% of the time, whose queue is full: ",
        ),
        (
            facts("gpu", {"gpu": 0.3}, saving_part=0.9, saving_mix="30% GPU", saving_where="save (t.py:3)"),
            "gpu",
            "Saves checkpoints 90% of the time: save (t.py:3); that is 30% GPU.",
        ),
        (facts("memory", {"memory": 0.9}, saving_part=0.9), "disk", "Saves checkpoints 90% of the time; that is "),
        (
            facts("gpu", {"gpu": 0.8}, gpu_does="pageable"),
            "gpu",
            "Copies pageable memory to or from the GPU 80% of the time: audit (djapp.py:21).",
        ),
        (facts("gpu", {"gpu": 0.8}, gpu_does="copy"), "gpu", "Copies to or from the GPU 80% of the time: audit ("),
        (
            facts("native", {"native": 0.6, "python": 0.35, "gpu": 0.02}, feeding_part=0.9, launch_part=0.21),
            "launch",
            "The host is late: it spends 90% of the time telling the GPU what to do, 21% in launches, most in audit (",
        ),
        (
            facts("python", {"native": 0.2, "python": 0.75}, feeding_part=0.2, launch_part=0.04),
            "python",
            "CPU-bound in Python: 75% of the time in audit (djapp.py:21)",
        ),
        (
            facts("sleep", {"sleep": 0.6}, **{**LOADS, "loading_mix": "59% sleep, 40% CPU"}),
            "data",
            "data from 2 loaders, busy 97% of theirs; that is 59% sleep, 40% CPU in decode (loops.py:43).",
        ),
        (facts("ready", {"ready": 0.6}, **{**OPENMP, "pool_part": 0.2}), "ready", "Short of CPU"),
        (facts("ready", {"ready": 0.6}, **{**OPENMP, "pool_cpus": 0.0}), "ready", "Short of CPU"),
        (facts("disk", {"disk": 0.34, "net": 0.33, "sleep": 0.33}), "mixed", "Mixed: disk 34%, network 33%, sleep 33%"),
    ],
)
def test_each_rule(given: Facts, bound: str, sentence: str) -> None:
    rule = decide(given)
    assert (rule.bound if isinstance(rule.bound, str) else rule.bound(given)) == bound
    assert sentence in rule.sentence(given)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({}, "OMP_NUM_THREADS=2"),
        ({"pool_processes": 4}, "OMP_NUM_THREADS=1 for each process"),
        ({"pool_setting": "torch.set_num_threads()"}, "torch.set_num_threads(2)"),
        ({"pool_cpus": 0.5}, "OMP_NUM_THREADS=1"),
        (LOADS, "7 loaders (num_workers=7) would hide it"),
        (
            {**LOADS, "cpus": 2.0, "loaders_most": 2},
            "7 would hide it, and there are 2 CPUs: load it cheaper",
        ),
        (
            {**LOADS, "cpus": 2.0, "loaders_most": 5},
            "5 loaders (num_workers=5) would shorten it; 7 would hide it, and there are 2 CPUs: load it cheaper",
        ),
        ({**LOADS, "loaders_needed": 2}, "load it ahead, or cheaper"),
        ({**LOADS, "loading_first": "ready"}, "give it more CPUs; record -a shows who else uses them"),
    ],
)
def test_advice_with_a_number(values: dict[str, Any], advice: str) -> None:
    given = facts("ready", {"ready": 0.6}, **{**OPENMP, **values})
    rule = decide(given)
    assert not isinstance(rule.advice, str) and rule.advice(given) == advice


@pytest.mark.parametrize(("first", "other"), [("python", "by function"), ("native", "by library")])
def test_collections_that_a_function_of_c_begins_are_those_of_python(first: str, other: str) -> None:
    """As where json makes many objects."""
    for part, advice in ((0.6, "gc.freeze()"), (0.4, other)):
        given = facts(first, {first: 0.9}, collection_part=part)
        rule = decide(given)
        assert not isinstance(rule.advice, str) and advice in rule.advice(given)


@pytest.mark.parametrize(
    ("first", "values", "advice"),
    [
        ("gpu", {}, "wait less often; else make what the GPU computes faster"),
        ("gpu", {"gpu_does": "upload"}, "pinned memory (pin_memory=True), copied with non_blocking=True"),
        ("gpu", {"gpu_does": "download"}, "copy back less often, into pinned memory with non_blocking=True"),
        ("gpu", {"gpu_does": "copy"}, "pinned memory, and copies beside what the GPU computes (non_blocking=True)"),
        ("gpu", {"gpu_does": "memory"}, "keep it for the next step (no empty_cache() in a loop)"),
        ("gpu", {"gpu_does": "queue"}, "the host is early enough: make what the GPU computes faster"),
        ("spin", {}, "wait in the kernel (a lock, a condition, an event) instead of looking again and again"),
        (
            "spin",
            {**OPENMP, "pool_part": 0.1, "spin_part": 0.5},
            "even out what its threads do, or use fewer; OMP_WAIT_POLICY=passive lets them sleep",
        ),
        (
            "spin",
            {**OPENMP, "pool": "OpenBLAS", "pool_setting": "OPENBLAS_NUM_THREADS", "pool_part": 0.1, "spin_part": 0.5},
            "even out what its threads do, or use fewer (OPENBLAS_NUM_THREADS)",
        ),
    ],
)
def test_what_to_try_where_it_waits_for_a_gpu_or_spins(first: str, values: dict[str, Any], advice: str) -> None:
    given = facts(first, {first: 0.8}, **values)
    rule = decide(given)
    assert not isinstance(rule.advice, str) and (rule.bound, rule.advice(given)) == (first, advice)


def test_every_rule_is_reached_by_a_row_of_the_test_above() -> None:
    (mark,) = (mark for mark in test_each_rule.pytestmark if mark.name == "parametrize")
    assert {id(decide(given)) for given, *_ in mark.args[1]} == {id(rule) for rule in RULES}


def test_bounds_are_those_of_the_contract() -> None:
    words = "python native gil lock disk net data device gpu launch spin ready sleep child stuck mixed idle unknown"
    bounds = {rule.bound if isinstance(rule.bound, str) else rule.bound(facts("other", {})) for rule in RULES}
    assert bounds == set(words.split())


def verdict(made: ProfileBuilder) -> Verdict:
    profile = made.build()
    return verdict_of(profile, work_of(profile))


def left_out_ns(profile: Profile) -> tuple[int, int]:
    shares = work_of(profile).share_ns()
    return int(shares[IDLE]), int(shares[HANDED])


def busy(made: ProfileBuilder, thread: int, *stack: Frame, count: int = 200, ns: int = 10 * MS) -> None:
    for _ in range(count):
        made.spend(thread, ON_CPU, ns, stack)


def test_the_place_is_the_users_own_code_below_what_it_calls() -> None:
    made = ProfileBuilder()
    loads = python("JSONDecoder.decode", "/usr/lib/python3.11/json/decoder.py", 353)
    launcher = python("<module>", "/srv/venv/bin/gunicorn", 8)
    library = python("dispatch", "/srv/venv/lib/python3.11/site-packages/django/views.py", 90)
    busy(made, made.thread(100), launcher, library, python("parse", line=12), loads, native("memcpy"))
    found = verdict(made)
    assert found.bound == "python" and found.where == python("parse", line=12)
    assert found.sentence == "CPU-bound in Python: 100% of the time in parse (train.py:12)."


def test_native_code_is_told_from_the_interpreter() -> None:
    made = ProfileBuilder()
    busy(made, made.thread(100), MAIN, native("deflate", "/usr/lib/libz.so.1"), native("memcpy"))
    assert verdict(made).bound == "native" and verdict(made).where == MAIN


def test_who_waits_for_another_thread_does_what_that_one_does() -> None:
    """Its wait is no lock's, and of a thread without Python the place is the line that waits for it."""
    made = ProfileBuilder()
    main, worker = made.thread(100), made.thread(101, "worker")
    busy(made, worker, native("compute", "/srv/app/libworker.so"))
    made.wait(main, 2_000 * MS, [*JOIN, wait("lock")], waker=made.thread_waker(worker))
    found = verdict(made)
    assert (found.bound, found.where) == ("native", JOIN[0])
    assert left_out_ns(made.build()) == (0, 2_000 * MS)


@pytest.mark.parametrize(
    ("function", "is_handed"),
    [
        ("Notification::WaitForNotificationWithTimeout(absl::lts_20260107::Duration) const", True),
        ("CondVar::WaitCommon(absl::lts_20260107::Mutex*, int)", True),
        ("Mutex::LockSlow(absl::lts_20260107::MuHowS const*, int)", False),
    ],
)
def test_waits_of_abseil_for_another_thread_are_told_from_its_locks(function: str, is_handed: bool) -> None:
    """JAX and TensorFlow wait so."""
    made, library = ProfileBuilder(), "/v/site-packages/jaxlib/libjax_common.so"
    main, worker = made.thread(100), made.thread(101, "tf_XLAEigen")
    busy(made, worker, native("xla::cpu::SortThunk::Execute(int)", library))
    stack = [python("block_until_ready"), native(f"absl::lts_20260107::{function}", library), native("syscall")]
    made.wait(main, 2_000 * MS, [*stack, wait("lock")], waker=made.thread_waker(worker))
    assert left_out_ns(made.build()) == (0, 2_000 * MS * is_handed)


def test_the_pool_of_jax_has_its_own_setting() -> None:
    made, library = (
        ProfileBuilder(info=replace(INFO, cpu_limits={100: 2.0})),
        "/v/site-packages/jaxlib/libjax_common.so",
    )
    loop = native("Eigen::ThreadPoolTempl<tsl::thread::EigenEnvironment>::WorkerLoop(int)", library)
    for number in range(3):
        thread = made.thread(100 + number, "tf_XLAEigen")
        busy(made, thread, native("start_thread"), loop, native("xla::cpu::SortThunk::Execute(int)", library), count=50)
        made.spend(thread, RUNQUEUE, 1_500 * MS, [loop, READY])
    found = verdict(made)
    assert "3 threads of XLA for 2 CPUs" in found.sentence and found.advice == "PJRT_NPROC=2"


def test_a_lock_that_several_want_is_no_wait_for_another_thread() -> None:
    made = ProfileBuilder()
    threads = [made.thread(100 + number) for number in range(3)]
    wakers = [made.thread_waker(thread) for thread in threads]
    for thread in threads:
        made.spend(thread, ON_CPU, 40 * MS * thread + 1, [MAIN])
    for _ in range(20):
        for thread in threads:
            made.spend(thread, OFF_CPU, 30 * MS, [python("audit", line=21), wait("disk")])
            by = {"waker": wakers[thread - 1], "lock": 0x7F00}
            made.wait(thread, 70 * MS, [python("audit", line=20), wait("lock")], **by)
    found = verdict(made)
    assert (found.bound, found.where, round(found.share, 1)) == ("lock", python("audit", line=20), 0.7)
    assert "Bound by one lock" in found.sentence and "held through disk reads or writes" in found.sentence


def test_the_main_holder_of_the_gil_is_the_place() -> None:
    made = ProfileBuilder()
    hog, other = made.thread(100), made.thread(101)
    busy(made, hog, python("store", line=9))
    made.wait(other, 2_000 * MS, [python("want", line=4), wait("gil")], behind=[(1, hog, [python("store", line=9)])])
    busy(made, other, python("want", line=4), count=1, ns=MS)
    made.wait(made.thread(102), 2_000 * MS, [python("want", line=4), wait("gil")])
    found = verdict(made)
    assert (
        found.bound == "gil"
        and found.where == python("store", line=9)
        and "store (train.py:9) holds it" in found.sentence
    )


@pytest.mark.parametrize(
    ("stack", "values"),
    [
        ([python("serve", line=1), wait("net")], {"flags": SpanFlag.IDLE}),
        ([python("watch", line=1), wait("lock")], {"waker": 1}),
        ([python("pause", line=1), wait("syscall rt_sigsuspend")], {}),
    ],
)
def test_a_healthy_idle_program_is_accused_of_nothing(stack: list[Frame], values: dict[str, int]) -> None:
    """It waits for work, looks now and then whether there is some, or waits for ever."""
    made = ProfileBuilder()
    made.waker("timer")
    main = made.thread(100)
    busy(made, main, MAIN, count=1, ns=MS)
    made.wait(main, 2_000 * MS, stack, **values)
    found = verdict(made)
    assert (found.bound, found.where) == ("idle", None) and "Nothing stands out" in found.sentence


def test_a_thread_that_only_sleeps_does_not_hide_those_that_work() -> None:
    made = ProfileBuilder()
    busy(made, made.thread(100), python("work", line=5))
    made.wait(made.thread(101), 2_000 * MS, [MAIN, wait("sleep")])
    made.wait(made.thread(102), 2_000 * MS, [MAIN, wait("sleep")])
    assert verdict(made).bound == "python"


@pytest.mark.parametrize(("with_worker", "bound"), [(True, "idle"), (False, "sleep")])
def test_a_script_that_sleeps_beside_workers_that_wait_for_work_is_idle(with_worker: bool, bound: str) -> None:
    made = ProfileBuilder()
    main, timer = made.thread(100), made.waker("timer")
    for _ in range(4):
        stack = [python("<module>", line=9), python("main", line=5), wait("sleep")]
        made.wait(main, 600 * MS, stack, waker=timer)
    if with_worker:
        made.wait(made.thread(101), 2_400 * MS, [python("work", line=2), wait("lock")], flags=SpanFlag.IDLE)
    assert verdict(made).bound == bound


def test_threads_of_a_pool_that_sleep_for_requests_are_not_hidden_by_a_little_work() -> None:
    made = ProfileBuilder()
    loop, timer = made.thread(100), made.waker("timer")
    busy(made, loop, MAIN, count=30)
    made.wait(loop, 1_700 * MS, [MAIN, wait("poll")], flags=SpanFlag.IDLE)
    for tid in (101, 102):
        worker = made.thread(tid, "worker")
        for _ in range(20):
            made.wait(worker, 100 * MS, [python("report", line=9), wait("sleep")], waker=timer)
    assert (verdict(made).bound, verdict(made).where) == ("sleep", python("report", line=9))


def test_a_program_that_only_sleeps_does_so_on_purpose() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    timer = made.waker("timer")
    for _ in range(100):
        made.wait(main, 20 * MS, [python("fetch", line=3), wait("sleep")], waker=timer)
    assert verdict(made).sentence == "Sleeps on purpose 100% of the time: fetch (train.py:3)."


def test_sqlite_sleeps_while_others_have_the_database() -> None:
    made = ProfileBuilder()
    timer = made.waker("timer")
    for pid in (100, 200):
        main = made.thread(pid, pid=pid)
        for _ in range(100):
            stack = [python("save", line=3), native("sqlite3_step", "/usr/lib/libsqlite3.so.0.8.6"), wait("sleep")]
            made.wait(main, 20 * MS, stack, waker=timer)
    assert (verdict(made).bound, verdict(made).where) == ("lock", python("save", line=3))


def test_a_thread_that_looks_now_and_then_is_idle() -> None:
    """It sleeps long, in the function that it began with; one that is called to sleep does so on purpose.

    On a busy machine it gets a CPU late.
    """
    for callers, is_idle in (([], True), ([python("job", line=1)], False)):
        made = ProfileBuilder()
        thread = made.thread(100)
        made.wait(thread, 100 * MS, [*callers, python("poll", line=3), wait("sleep")], waker=made.waker("timer"))
        for _ in range(3):
            made.wait(thread, 650 * MS, [*callers, python("poll", line=3), wait("sleep")], waker=made.waker("timer"))
            made.spend(thread, RUNQUEUE, 85 * MS, [*callers, python("poll", line=3), READY])
            made.spend(thread, ON_CPU, 15 * MS, [*callers, python("poll", line=3)])
        assert verdict(made).bound == ("idle" if is_idle else "sleep")


def test_a_prefork_server_that_waits_for_its_children_is_idle() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100), 2_000 * MS, [python("main"), wait("child")])
    assert verdict(made).bound == "stuck", "alone it is all there is to say"
    for pid in (200, 300):
        worker = made.thread(pid, pid=pid)
        made.wait(
            worker, 2_000 * MS, [python("accept", "/usr/lib/python3.11/socket.py"), wait("net")], flags=SpanFlag.IDLE
        )
    assert verdict(made).bound == "idle"


def test_a_lock_that_processes_share_is_one_lock() -> None:
    made = ProfileBuilder()
    for pid in (100, 200, 300):
        thread = made.thread(pid, pid=pid)
        for private in (False, True):
            for _ in range(10):
                acquire = python("SemLock.__enter__", "/usr/lib/python3.11/multiprocessing/synchronize.py", 95)
                stack = [python("turn", line=4), acquire, wait("lock")]
                made.wait(thread, 100 * MS, stack, lock=0x7000 if private else 0x5000 | SHARED_LOCK)
    work = work_of(made.build())
    assert [pid for pid, _ in work.locks] == [0, 100, 200, 300]
    assert verdict(made).bound == "lock"


def test_threads_of_openmp_wait_for_each_other() -> None:
    """Its library may have no names; the line is that of the thread that called it."""
    made = ProfileBuilder()
    main, barrier = made.thread(100), native("", "/usr/lib/libgomp.so.1.0.0", 0x100)
    for number in range(8):
        worker = made.thread(101 + number, "python")
        made.spend(worker, RUNQUEUE, 700 * MS, [barrier, READY])
        made.spend(worker, ON_CPU, 200 * MS, [native("step", "/srv/app/step.so")])
        made.wait(worker, 1_000 * MS, [barrier, native("syscall"), wait("lock")], waker=made.thread_waker(main))
    made.wait(main, 1_900 * MS, [python("train", line=9), barrier, wait("lock")], waker=made.thread_waker(main + 1))
    found = verdict(made)
    assert (found.bound, found.where) == ("ready", python("train", line=9))


def test_a_child_is_named_with_what_it_did() -> None:
    made = ProfileBuilder()
    main, child = made.thread(100), made.thread(200, pid=200, process="sh")
    waker = made.thread_waker(child)
    for _ in range(100):
        made.wait(main, 20 * MS, [python("ask", line=7), wait("pipe")], waker=waker)
        made.wait(child, 20 * MS, [native("nanosleep"), wait("sleep")])
    found = verdict(made)
    assert (found.bound, found.where) == ("child", python("ask", line=7))
    assert found.sentence.endswith("ask (train.py:7); it was sh (200), asleep 100%.")


def test_of_a_pipeline_the_process_is_named_that_the_others_wait_for() -> None:
    made = ProfileBuilder()
    threads = [made.thread(pid, pid=pid, process=name) for pid, name in ((100, "python"), (200, "cat"), (300, "slow"))]
    wakers = [made.thread_waker(thread) for thread in threads]
    for _ in range(100):
        for thread, stack in ((0, [python("ask", line=7)]), (1, [native("read")])):
            made.wait(thread, 20 * MS, [*stack, wait("pipe")], waker=wakers[thread + 1])
        made.wait(2, 20 * MS, [native("nanosleep"), wait("sleep")])
    assert verdict(made).sentence.endswith("ask (train.py:7); it was slow (300), asleep 100%.")


@pytest.mark.parametrize("count", [2, 3])
def test_processes_that_wait_for_each_other_are_bound_by_what_they_do_meanwhile(count: int) -> None:
    """A token goes round: for each all waits are for others, which wait for it too."""
    made = ProfileBuilder()
    threads = [made.thread(pid, pid=pid) for pid in range(100, 100 + count)]
    wakers = [made.thread_waker(thread) for thread in threads]
    for _ in range(60):
        for thread in threads:
            made.spend(thread, ON_CPU, 20 * MS, [python("work", line=5)])
            for other in range(1, count):
                stack = [python("turn", line=7), wait("pipe")]
                made.wait(thread, 25 * MS, stack, waker=wakers[thread - other])
    found = verdict(made)
    assert (found.bound, found.where) == ("python", python("work", line=5))


def test_a_shell_that_waits_for_the_program_is_not_asked_about() -> None:
    made = ProfileBuilder()
    shell, main = made.thread(50, "bash", pid=50, process="bash"), made.thread(100)
    busy(made, main, python("work", line=5))
    made.wait(shell, 2_000 * MS, [native("wait4"), wait("child")], waker=made.thread_waker(main))
    assert (verdict(made).bound, verdict(made).where) == ("python", python("work", line=5))


def test_a_program_without_python_waits_like_any_other() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(20):
        made.spend(main, ON_CPU, 10 * MS, [native("serve", "/srv/app/server")])
        made.wait(main, 90 * MS, [native("ask", "/srv/app/server"), wait("net")], waker=made.waker("interrupt"))
    assert verdict(made).sentence == "Waits for the network 90% of the time: ask (server)."


def test_ready_without_a_cpu() -> None:
    made = ProfileBuilder()
    for number in range(2):
        thread = made.thread(100 + number)
        for _ in range(100):
            made.spend(thread, ON_CPU, 8 * MS, [MAIN])
            made.spend(thread, RUNQUEUE, 12 * MS, [MAIN, READY])
    assert verdict(made).bound == "ready" and verdict(made).share == pytest.approx(0.6)


ID = "0123456789ab" + 52 * "0"


@pytest.mark.parametrize(
    ("throttle", "sentence", "setting"),
    [
        (CpuThrottle("/web", 0.4, 0.86, 2), "control group /web may use 0.4 CPUs", "cpu.max of /web, to 2 CPUs"),
        (CpuThrottle("/a/b", 1.0, 0.3, 1), "/a/b may use 1 CPU, and had", "cpu.cfs_quota_us of /a/b, to 2 CPUs"),
        (CpuThrottle(f"/docker/{ID}", 1.5, 1.0, 2), "; docker 0123456789ab may", "docker update --cpus 2 0123456789ab"),
        (CpuThrottle(f"/kubepods/podx/{ID}", 1.5, 1.0, 2), "kubernetes 01234", "resources.limits.cpu: 2"),
        (
            CpuThrottle("/system.slice/x.service", 1, 1, 2),
            "x.service",
            "systemctl set-property x.service CPUQuota=200%",
        ),
        (CpuThrottle("/a;b.service", 0.5, 1.0, 2), "group /a;b.service", "cpu.max of /a;b.service, to 2 CPUs"),
    ],
)
def test_ready_at_a_cpu_limit(throttle: CpuThrottle, sentence: str, setting: str) -> None:
    """Also where only one of its processes waits for it; a limit that seldom stops anything is beside the point."""
    made = ready_profile({100: throttle})
    found = verdict(made)
    assert found.bound == "ready" and found.sentence.startswith("Stopped by a CPU limit: ready 60% of the time; ")
    assert sentence in found.sentence and found.advice == f"raise it ({setting}), or do less at a time"
    assert f"in {throttle.part * 100:.0f}% of its periods; most of it in main" in found.sentence
    assert any("stopped by a CPU limit" in line for line in summary_lines(made.build(), 100, 40))


def test_a_limit_that_is_not_what_is_short() -> None:
    for throttles, words in (
        ({100: CpuThrottle("/web", 0.5, 0.1, 2)}, "working threads; control group /web may use 0.5 CPUs, and had used"),
        ({100: CpuThrottle("/web", 0.5, 0.01, 2)}, "working threads; most of it in main"),
        ({99: CpuThrottle("/other", 0.5, 1.0, 2)}, "working threads; most of it in main"),
    ):
        made = ready_profile(throttles)
        assert verdict(made).sentence.startswith("Short of CPU: ready 60%") and words in verdict(made).sentence
        assert any("no CPU was free" in line for line in summary_lines(made.build(), 100, 40))


def ready_profile(throttles: dict[int, CpuThrottle]) -> ProfileBuilder:
    """Two threads of process 100 that each worked or were ready for all of two seconds."""
    made = ProfileBuilder(info=replace(INFO, cpu_throttles=throttles))
    for number in range(2):
        thread = made.thread(100 + number)
        for _ in range(100):
            made.spend(thread, ON_CPU, 8 * MS, [MAIN])
            made.spend(thread, RUNQUEUE, 12 * MS, [MAIN, READY])
    return made


FAULT = native("memcpy"), kernel("asm_exc_page_fault")


def test_pages_that_are_not_there_are_a_cause_of_their_own() -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    for _ in range(50):
        made.spend(main, ON_CPU, 20 * MS, [MAIN])
        made.wait(main, 80 * MS, [python("load", line=4), *FAULT, kernel("folio_wait_bit"), wait("pagefault")])
    found = verdict(made)
    assert (found.bound, found.where) == (
        "disk",
        python("load", line=4),
    ) and "for pages from the disk" in found.sentence
    assert "Short of memory" not in found.sentence


@pytest.mark.parametrize(
    "stack",
    [(*FAULT, kernel("do_swap_page"), wait("pagefault")), (kernel("mem_cgroup_handle_over_high"), wait("disk"))],
)
def test_memory_is_short_where_the_kernel_has_to_make_room(stack: tuple[Frame, ...]) -> None:
    made = ProfileBuilder()
    main = made.thread(100)
    busy(made, main, MAIN, count=50)
    for _ in range(50):
        made.wait(main, 80 * MS, [python("fill", line=4), *stack])
    assert verdict(made).sentence.startswith("Short of memory: it waits 89% of the time")
    assert verdict(made).where == python("fill", line=4)


def test_cpu_time_in_an_ioctl_is_its_device_s() -> None:
    """Which one is known where the thread left the CPU in the call."""
    made = ProfileBuilder()
    main = made.thread(100)
    stack = [python("flush", line=7), native("__ioctl")]
    for _ in range(50):
        made.spend(main, ON_CPU, 20 * MS, [MAIN])
        made.spend(main, ON_CPU, 75 * MS, stack)
        made.spend(main, RUNQUEUE, 5 * MS, [*stack, READY], object=1)
    profile = replace(made.build(), objects=("/dev/loop0 BLKFLSBUF",))
    found = verdict_of(profile, work_of(profile))
    assert (found.bound, found.where) == ("device", stack[0]) and "for /dev/loop0 BLKFLSBUF" in found.sentence


@pytest.mark.parametrize(
    ("objects", "accepted", "call", "bound"),
    [
        ("10.0.0.9:51234", {1}, "recv", "idle"),
        ("10.0.0.9:51234", {1}, "__send", "net"),
        ("10.0.0.5:5432", set(), "recv", "net"),
        ("listening on 0.0.0.0:80", set(), "accept4", "idle"),
    ],
    ids=["of a client", "a slow client", "of a server", "for clients"],
)
def test_who_waits_for_a_client_waits_for_work(objects: str, accepted: set[int], call: str, bound: str) -> None:
    made = ProfileBuilder()
    main, softirq = made.thread(100), made.waker("interrupt")
    busy(made, main, MAIN, count=5, ns=10 * MS)
    for _ in range(20):
        made.wait(main, 95 * MS, [python("serve", line=8), native(call), wait("net")], waker=softirq, object=1)
    profile = made.build()
    profile = replace(profile, objects=(objects,), info=replace(profile.info, accepted=frozenset(accepted)))
    assert verdict_of(profile, work_of(profile)).bound == bound


@pytest.mark.parametrize(("listens", "bound"), [(True, "idle"), (False, "net")])
def test_a_server_s_own_loop_waits_for_work(listens: bool, bound: str) -> None:
    made = ProfileBuilder()
    main, softirq = made.thread(100), made.waker("interrupt")
    for _ in range(20):
        made.spend(main, ON_CPU, 5 * MS, [python("serve", line=8)])
        made.wait(main, 95 * MS, [python("serve", line=8), native("epoll_wait"), wait("poll")], waker=softirq)
    profile = made.build()
    profile = replace(profile, info=replace(profile.info, listens={100: listens}))
    assert verdict_of(profile, work_of(profile)).bound == bound


@pytest.mark.parametrize(("pids", "bound"), [((100,), "net"), ((100, 200), "python")])
def test_other_ranks_are_the_network_or_what_they_do(pids: tuple[int, ...], bound: str) -> None:
    """By its library's own threads. One rank is late here."""
    made = ProfileBuilder()
    c10d = python("all_reduce", "/v/site-packages/torch/distributed/distributed_c10d.py", 3252)
    reduce = c10d, native("pthread_cond_wait")
    for pid in pids:
        main, runs = made.thread(pid, pid=pid), made.thread(pid + 1, "pt_gloo_runloop", pid=pid)
        waker = made.thread_waker(runs)
        for _ in range(20):
            late_ms = 80 if pid > 100 else 5
            made.spend(main, ON_CPU, late_ms * MS, [python("augment", line=3)])
            made.wait(main, (100 - late_ms) * MS, [python("step", line=9), *reduce, wait("lock")], waker=waker)
            made.wait(runs, 100 * MS, [native("c10d::ProcessGroupGloo::runLoop"), wait("lock")], flags=SpanFlag.IDLE)
    assert verdict(made).bound == bound


def test_nothing_was_seen() -> None:
    profile = empty_profile()
    assert (
        verdict_of(profile, replace(work_of(replace(profile, spans=ProfileBuilder().build().spans)))).bound == "unknown"
    )


def test_own_and_total_time_of_places() -> None:
    profile = training_profile()
    work = work_of(profile)
    places = {profile.frames[place.frame].name: place for place in places_of(profile, work)}
    step = places["Trainer.step"]
    assert step.cpu_ns == 10 * (30 * MS + 333) and step.ready_ns == 10 * MS and step.wait_ns == 10 * (9 * MS - 333)
    assert step.own_ns == step.total_ns and "Trainer.run" not in places, "it waits for another thread"
    assert sum(place.own_ns for place in places.values()) <= work.share_ns()[:IDLE].sum()
    assert step.mostly[0][0] == (SHARES.index("native"), 0)


def test_the_last_stack_has_no_frames() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(100), ON_CPU, 20 * MS, [python("work")])
    made.spend(0, ON_CPU, 10 * MS, [])
    profile = made.build()
    assert profile.stacks[-1] == ()
    assert [(place.total_ns, place.own_ns) for place in places_of(profile, work_of(profile))] == [(20 * MS, 20 * MS)]


def test_verdict_and_table_name_the_same_line() -> None:
    """That with most of what the function mostly does, not of all its time."""
    made = ProfileBuilder()
    worker = made.thread(100)
    for _ in range(20):
        made.spend(worker, ON_CPU, 60 * MS, [python("work", line=5)])
        made.wait(worker, 55 * MS, [python("work", line=6), wait("disk")])
        made.spend(worker, ON_CPU, 10 * MS, [python("work", line=6)])
    profile = made.build()
    work = work_of(profile)
    assert verdict(made).where == profile.frames[places_of(profile, work)[0].frame] == python("work", line=5)


@pytest.mark.parametrize(("function", "bound"), [("Connection.wait", "net"), ("Connection.notifies", "idle")])
def test_a_client_that_looks_whether_the_answer_is_there_waits_for_the_network(function: str, bound: str) -> None:
    """As psycopg 3 does ten times a second, whatever it waits for; not where it waits for what a server may say."""
    made = ProfileBuilder()
    main, timer = made.thread(100), made.waker("timer")
    for _ in range(20):
        stack = [python("update", line=7), python(function, "/v/site-packages/psycopg/connection.py", 495)]
        made.wait(main, 100 * MS, [*stack, wait("poll")], waker=timer)
    assert verdict(made).bound == bound
