"""What the time of a span was spent on: each rule by a span that it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.work.rules import RULES, SpanFacts
from bpfprof.query.work.shares import HANDED, IDLE, SHARES
from bpfprof.query.work.waiting import StackWaits
from tests.unit.render.profiles import INFO, MS, ON_CPU, ProfileBuilder, native, python, wait

MAIN = python("main", line=3)
QUEUE = [MAIN, python("Queue.get", "/usr/lib/python3.12/queue.py", 171)]
LOOP = [python("BaseEventLoop._run_once", "/usr/lib/python3.12/asyncio/base_events.py", 1949), native("epoll_wait")]
COLLECTIVE = [MAIN, python("all_reduce", "/v/site-packages/torch/distributed/distributed_c10d.py", 2806)]
CUDA, LIBC = "/usr/lib/libcuda.so.1", "/usr/lib/libc.so.6"
WORDS = {IDLE: "idle", HANDED: "handed"}


def waits(stack: Sequence[Frame], ended_by: str = "", **values: Any) -> Profile:
    """One wait of a thread that another thread of its process, or another process, or a timer may have ended."""
    made = ProfileBuilder()
    thread = made.thread(100, "MainThread")
    other = made.thread(101 if ended_by == "thread" else 200, "other", pid=100 if ended_by == "thread" else 200)
    made.spend(other, ON_CPU, 100 * MS, [python("work", "/srv/app/other.py", 7)])
    waker = made.waker("timer") if ended_by == "timer" else made.thread_waker(other) if ended_by else 0
    made.wait(thread, 100 * MS, stack, waker=waker, **values)
    return made.build()


def runs(stack: Sequence[Frame], *others: Sequence[Frame]) -> Profile:
    """A thread on a CPU in this stack for a moment, and before in others for long."""
    made = ProfileBuilder()
    thread = made.thread(100, "MainThread")
    for other in others:
        made.spend(thread, ON_CPU, 100 * MS, other)
    made.spend(thread, ON_CPU, 10 * MS, stack)
    return made.build()


def of_server(profile: Profile) -> Profile:
    return replace(profile, info=replace(INFO, listens={100: True}))


def of_bpfprof(profile: Profile) -> Profile:
    return replace(profile, info=replace(INFO, own_pids=frozenset((200,))))


CASES: dict[str, tuple[Callable[[], Profile], str]] = {
    "a poll of the module subprocess is for a child": (
        lambda: waits([MAIN, python("Popen._communicate", "/usr/lib/python3.12/subprocess.py", 2115), wait("poll")]),
        "child",
    ),
    "it reads what bpfprof prints": (lambda: of_bpfprof(waits([MAIN, wait("unknown")], "process")), "idle"),
    "another thread gave what was asked for": (lambda: waits([MAIN, wait("net")], "process"), "handed"),
    "a thread of its process wrote to the pipe": (lambda: waits([MAIN, wait("pipe")], "thread"), "handed"),
    "another thread gave what it waited for, in a function that waits for one": (
        lambda: waits([*QUEUE, wait("lock")], "thread"),
        "handed",
    ),
    "it waited for another thread, and who ended that is not known": (lambda: waits([*QUEUE, wait("lock")]), "handed"),
    "the other ranks of a collective are not recorded": (lambda: waits([*COLLECTIVE, wait("net")], "process"), "net"),
    "the time for a lock ran out": (lambda: waits([MAIN, wait("lock")], "timer"), "idle"),
    "one of several that accept waits for its turn": (
        lambda: waits([MAIN, native("wsgi_req_accept", "/usr/bin/uwsgi"), wait("lock")], "process"),
        "idle",
    ),
    "the time of a poll ran out": (lambda: waits([MAIN, wait("poll")], "timer"), "idle"),
    "a client did not ask": (
        lambda: replace(waits([MAIN, wait("net")], object=1), objects=("listening on 0.0.0.0:80",)),
        "idle",
    ),
    "no client of a server asked": (lambda: of_server(waits([*LOOP, wait("poll")])), "idle"),
    "it sleeps between looks at a lock": (
        lambda: waits([MAIN, python("acquire", "/v/site-packages/filelock/_api.py", 9), wait("sleep")]),
        "lock",
    ),
    "a thread of a pool of processes sleeps between looks (CPython up to 3.7)": (
        lambda: waits([python("_handle_workers", "/usr/lib/python3.7/multiprocessing/pool.py", 413), wait("sleep")]),
        "idle",
    ),
    "a device computes or copies": (
        lambda: waits([MAIN, native("cuStreamSynchronize", CUDA), wait("lock")]),
        "gpu",
    ),
    "it spins": (lambda: runs([MAIN, native("sched_yield", LIBC)]), "spin"),
    "a line of Python spins": (lambda: runs([MAIN], [MAIN, native("sched_yield", LIBC)]), "spin"),
    "a line asks a device again and again": (lambda: runs([MAIN], [MAIN, native("cuEventQuery", CUDA)]), "gpu"),
    "a known function of an idle thread": (lambda: waits([MAIN, wait("lock")], flags=SpanFlag.IDLE), "idle"),
    "a process without Python beside one with it, or a kernel thread": (
        lambda: waits([native("read_line", "/bin/bash"), wait("net")]),
        "idle",
    ),
    "a process without Python beside one with it looks at a device": (
        lambda: waits([native("read", LIBC), wait("device")]),
        "idle",
    ),
}


def test_each_rule_has_a_case() -> None:
    assert {*CASES} == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", CASES)
def test_a_rule_decides_on_the_span_that_it_is_for(name: str) -> None:
    """No later rule takes it back, and without this one it would be another share."""
    make, share = CASES[name]
    assert last_span(make()) == share != last_span(make(), without=name)


def last_span(profile: Profile, without: str = "") -> str:
    """The share of the last span of the first thread, as the rules have it."""
    assert profile.spans is not None
    frames = StackFrames(profile.frames, profile.stacks)
    nothing = np.zeros(len(profile.spans), np.bool_)
    facts = SpanFacts(profile, profile.spans, frames, StackWaits(frames, np.ones(frames.count, np.int64)), nothing)
    for rule in RULES:
        if rule.name != without:
            facts.shares[np.isin(facts.shares, rule.of) & rule.holds(facts)] = rule.to
    share = int(facts.shares[np.flatnonzero(profile.spans["thread"] == 0)[-1]])
    return WORDS.get(share) or SHARES[share]


PLUGIN = native("xla::PjRtStreamExecutorClient::Run", "/v/jax_plugins/xla_cuda12/xla_cuda_plugin.so")
ON_CPUS = native("xla::cpu::DotThunk::Execute", "/v/site-packages/jaxlib/libjax_common.so")
LOOKS_FOR_A_GPU = native("cuInit", CUDA)


@pytest.mark.parametrize(
    ("does", "elsewhere", "share"),
    [
        ([ON_CPUS], [], "lock"),
        ([ON_CPUS], [PLUGIN], "lock"),
        ([ON_CPUS, LOOKS_FOR_A_GPU], [], "lock"),
        ([ON_CPUS, PLUGIN], [], "gpu"),
        ([ON_CPUS, native("cuLaunchKernel", CUDA)], [], "gpu"),
        ([], [ON_CPUS], "gpu"),  # not known: of a part of the threads, or of waits alone
    ],
)
def test_xla_waits_for_its_own_threads_where_these_compute_on_cpus(
    does: list[Frame], elsewhere: list[Frame], share: str
) -> None:
    """What tells is of another stack, and another thread of the process."""
    made = ProfileBuilder()
    main, worker, other = made.thread(100), made.thread(101, "tf_XLAEigen"), made.thread(300, pid=300)
    front = native("jax::PyArray::BlockUntilReady() const", "/v/site-packages/jaxlib/libjax_common.so")
    made.wait(main, 100 * MS, [MAIN, front, wait("lock")])
    for thread, frames in ((worker, does), (other, elsewhere)):
        for frame in frames:
            made.spend(thread, ON_CPU, 100 * MS, [frame])
    assert last_span(made.build()) == share


def test_what_stands_in_a_folder_of_that_name_is_not_xla() -> None:
    made = ProfileBuilder()
    main, worker = made.thread(100), made.thread(101)
    made.spend(worker, ON_CPU, 100 * MS, [ON_CPUS])
    made.wait(main, 100 * MS, [MAIN, native("musaStreamSynchronize", "/home/u/jax-env/libmusart.so"), wait("device")])
    assert last_span(made.build()) == "gpu"


@pytest.mark.parametrize(("with_python", "share"), [(True, "lock"), (False, "idle")])
def test_the_same_function_is_for_any_lock_in_a_handler(with_python: bool, share: str) -> None:
    stack = [*[MAIN] * with_python, native("apr_proc_mutex_lock", "/usr/lib/libapr-1.so.0"), wait("lock")]
    assert last_span(waits(stack)) == share


def test_a_daemon_that_python_waits_for_is_not_idle_while_it_asks_a_device() -> None:
    made = ProfileBuilder()
    daemon, program = made.thread(650, "camd", pid=650, process="camd"), made.thread(100)
    made.wait(daemon, 100 * MS, [native("grab", "/usr/bin/camd"), native("ioctl", LIBC), wait("device")])
    made.wait(program, 100 * MS, [MAIN, wait("net")], waker=made.thread_waker(daemon))
    assert last_span(made.build()) == "device"


@pytest.mark.parametrize("reason", ["device", "sleep", "net", "lock"])
def test_a_daemon_beside_python_waits_for_work(reason: str) -> None:
    made = ProfileBuilder()
    daemon, program = made.thread(650, "acpid", pid=650, process="acpid"), made.thread(100)
    made.wait(daemon, 100 * MS, [native("main", "/usr/sbin/acpid"), native("read", LIBC), wait(reason)])
    made.spend(program, ON_CPU, 100 * MS, [MAIN])
    assert last_span(made.build()) == "idle"


def test_who_reads_what_bpfprof_prints_is_idle_while_nothing_is_printed() -> None:
    for pid, reason, right in (
        (100, "pipe", "idle"),
        (100, "unknown", "idle"),
        (100, "net", "net"),
        (1, "pipe", "child"),
    ):
        profile = waits([MAIN, wait(reason)])
        assert last_span(replace(profile, info=replace(INFO, reader_pids=frozenset((pid,))))) == right
