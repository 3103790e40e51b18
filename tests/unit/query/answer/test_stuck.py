"""Waits that did not end: which of them are for work, which are stuck, and what is said of those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.frames import Frame
from bpfprof.model.profile import LastWait, Profile
from bpfprof.model.samples import LOCK_HOLDER_DTYPE
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import INFO, MS, ON_CPU, ProfileBuilder, native, python, wait

S = 1000 * MS
MAIN = python("main", line=3)
EVENT = [MAIN, python("Event.wait", "/usr/lib/python3.12/threading.py", 655), wait("lock")]
LOOP = [python("BaseEventLoop._run_once", "/usr/lib/python3.12/asyncio/base_events.py", 1949), wait("poll")]


def verdict(profile: Profile) -> Verdict:
    return verdict_of(profile, work_of(profile))


def waited_for(kind: str, name: str, thread: int = 0, **values: object) -> LastWait:
    return replace(LastWait(thread, kind, name, -1, "", "", 0), **values)  # type: ignore[arg-type]


def hung(stack: list[Frame], *last: LastWait, objects: tuple[str, ...] = (), **values: int) -> Profile:
    """One thread that did nothing but wait, and what it was found to wait for."""
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, stack, **values)
    return replace(made.build(), last_waits=last, objects=objects)


@pytest.mark.parametrize(
    ("reason", "last", "said"),
    [
        (
            "lock",
            waited_for("lock", "lock #1", nobody="no process that is alive has it"),
            "a lock, in main (train.py:3)",
        ),
        (
            "lock",
            waited_for("lock", "lock #1", nobody="no process that is alive has it"),
            "; no process that is alive has",
        ),
        ("lock", waited_for("lock", "lock #1"), "; who has it is not known."),
        (
            "file-lock",
            waited_for("file-lock", "fd 3: /srv/x.lock", held_by="cron (7)"),
            "the lock of /srv/x.lock, in main",
        ),
        ("file-lock", waited_for("file-lock", "fd 3: /srv/x.lock", held_by="cron (7)"), "; cron (7) has it."),
        (
            "pipe",
            waited_for("pipe", "fd 1: pipe:[9]", held_by="sv (7)"),
            "pipe:[9], which is full, in main (train.py:3)",
        ),
        ("pipe", waited_for("pipe", "fd 1: pipe:[9]", held_by="sv (7)"), "; sv (7) could read it."),
        (
            "unknown",
            waited_for("pipe", "/srv/orders", nobody="nobody has opened its other end"),
            "the other end of /srv/orders to be opened, in main (train.py:3)",
        ),
        ("child", waited_for("child", "child 9", held_by="make (9)"), "its child make (9), in main (train.py:3)"),
        ("net", waited_for("socket", "fd 4: 10.0.0.5:5432"), "10.0.0.5:5432 (PostgreSQL), in main (train.py:3)"),
        ("poll", waited_for("socket", "fd 4: 10.0.0.5:5432"), "10.0.0.5:5432 (PostgreSQL), in main (train.py:3)"),
        ("stopped", None, "Stuck: MainThread waits for being continued, in main (train.py:3)"),
        ("disk", None, "Stuck: MainThread waits for the disk, in main (train.py:3)"),
        ("lock", waited_for("lock", "lock #1", waited_ns=900 * S), "since before the recording, for 15 min; "),
    ],
)
def test_what_a_stuck_thread_waits_for(reason: str, last: LastWait | None, said: str) -> None:
    stack = [MAIN, native("write"), wait(reason)]
    found = verdict(hung(stack, *[last] * (last is not None)))
    assert (found.bound, found.share, found.where) == ("stuck", 1.0, MAIN)
    assert found.sentence.startswith("Stuck: MainThread waits for ") and said in found.sentence and found.advice


@pytest.mark.parametrize(
    ("stack", "last"),
    [
        ([MAIN, wait("poll")], waited_for("socket", "fd 4: listening on 0.0.0.0:80")),
        ([MAIN, wait("net")], waited_for("socket", "fd 4: listening on 0.0.0.0:80")),
        ([MAIN, native("read"), wait("pipe")], waited_for("pipe", "fd 0: pipe:[9]")),
        ([MAIN, native("read"), wait("device")], waited_for("device", "fd 0: /dev/pts/3")),
        ([MAIN, wait("sleep")], None),
        (LOOP, None),
        ([native("park", "/srv/lib/libtokio.so"), wait("lock")], None),
        ([native("worker", "/v/uvloop/loop.so"), native("uv_cond_wait", "/v/uvloop/loop.so"), wait("lock")], None),
        ([MAIN, native("park", "/srv/lib/libtokio.so"), native("syscall"), wait("lock")], None),
        ([native("wsgi_req_accept", "/usr/bin/uwsgi"), native("pthread_mutex_lock"), wait("lock")], None),
    ],
)
def test_who_is_known_to_wait_for_work_is_idle(stack: list[Frame], last: LastWait | None) -> None:
    assert verdict(hung(stack, *[last] * (last is not None))).bound == "idle"


def test_a_mutex_of_c_is_no_wait_for_work() -> None:
    stack = [native("flush", "/srv/lib/libdb.so"), native("pthread_mutex_lock"), wait("lock")]
    assert verdict(hung(stack, waited_for("lock", "lock #1"))).bound == "stuck"


def test_who_waits_for_a_thread_is_stuck_where_no_thread_does_anything() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, EVENT)
    assert "no thread that could end that does anything" in verdict(made.build()).sentence
    worker = python("_worker", "/usr/lib/python3.12/concurrent/futures/thread.py", 89)
    made.wait(made.thread(101, "pool_0"), 2 * S, [worker, wait("lock")], flags=2)
    assert verdict(made.build()).bound == "stuck", "a thread of a pool ends no wait of its own accord"
    made.wait(made.thread(102, "server"), 2 * S, [*LOOP], flags=2)
    assert verdict(made.build()).bound == "idle", "what comes from outside may"


def test_who_waits_for_a_thread_that_works_is_behind_it() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, EVENT)
    worker = made.thread(101, "worker")
    for _ in range(200):
        made.spend(worker, ON_CPU, 10 * MS, [python("work", line=9)])
    assert verdict(made.build()).bound == "python"


@pytest.mark.parametrize(("worked_by", "is_stuck"), [("MainThread", True), ("pool_0", False)])
def test_what_a_thread_did_before_it_hung_does_not_excuse_it(worked_by: str, is_stuck: bool) -> None:
    """What others did does: it may be one of those that it waits for."""
    made = ProfileBuilder()
    worker = [python("_worker", "/usr/lib/python3.12/concurrent/futures/thread.py", 89), wait("lock")]
    for place, (name, stack) in enumerate((("MainThread", EVENT), ("pool_0", worker))):
        thread = made.thread(100 + place, name)
        if name == worked_by:
            made.spend(thread, ON_CPU, 200 * MS, [MAIN])
        made.wait(thread, (1800 if name == worked_by else 2000) * MS, stack, flags=2 * place)
    assert (verdict(made.build()).bound == "stuck") == is_stuck


@pytest.mark.parametrize(
    ("last", "said", "is_deadlock"),
    [
        (waited_for("future", "a future", holder=1), "what a thread of a pool runs, in main", False),
        (
            waited_for("future", "a future", nobody="no thread of its pool can begin it"),
            "; no thread of its pool can",
            False,
        ),
        (
            waited_for("socket", "fd 3: unix:/tmp/manager", held_by="python (9)"),
            "; python (9) is at its other end.",
            False,
        ),
        (waited_for("future", "a future", holder=0), "in main (train.py:3) for what only it could do itself.", True),
    ],
)
def test_futures_and_other_ends(last: LastWait, said: str, is_deadlock: bool) -> None:
    made = ProfileBuilder()
    reason = "net" if last.kind == "socket" else "lock"
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait(reason)], object=int(reason == "net"))
    made.wait(made.thread(101, "worker"), 2 * S, [python("work", line=9), wait("lock")])
    looks = np.array([(1 * S, 1 * S + MS, 0, last.holder + 1, 0)] * is_deadlock, LOCK_HOLDER_DTYPE)
    found = verdict(replace(made.build(), last_waits=(last,), lock_holders=looks, objects=("unix:/tmp/manager",)))
    sentence = found.sentence
    assert (
        found.bound == "stuck"
        and said in sentence
        and sentence.startswith("Deadlocked: " if is_deadlock else "Stuck: ")
    )


def test_a_wait_that_began_in_the_recording_says_for_how_long() -> None:
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    made.spend(main, ON_CPU, 100 * MS, [MAIN])
    made.wait(main, 1900 * MS, [MAIN, wait("lock")])
    found = replace(made.build(), last_waits=(waited_for("lock", "lock #1", waited_ns=1900 * MS),))
    assert ", for the last 1.9 s; " in verdict(found).sentence


def test_a_wait_that_somebody_ended_is_not_stuck() -> None:
    made = ProfileBuilder()
    main, other = made.thread(100, "MainThread"), made.thread(101, "other")
    made.wait(main, 2 * S, [MAIN, wait("lock")], waker=made.thread_waker(other))
    assert verdict(made.build()).bound != "stuck"


def test_of_a_part_of_a_recording_only_long_waits_are_stuck() -> None:
    """What is looked at while it goes on may end any moment."""
    for seconds, is_stuck in ((5, False), (11, True)):
        made = ProfileBuilder(info=replace(INFO, is_part=True))
        made.wait(made.thread(100, "MainThread"), seconds * S, [MAIN, wait("net")], object=1)
        found = verdict(replace(made.build(), objects=("10.0.0.5:5432",)))
        assert (found.bound == "stuck") == is_stuck


def test_what_the_holder_does_is_followed() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("lock")])
    holder = made.thread(101, "holder")
    made.wait(holder, 2 * S, [python("ask", line=7), wait("net")], object=1)
    last = waited_for("lock", "lock #1", holder=holder)
    found = verdict(replace(made.build(), objects=("10.0.0.5:5432",), last_waits=(last,)))
    assert "; thread holder (101) has it and waits for the network in ask (train.py:7)." in found.sentence


def test_a_parent_of_servers_is_idle_and_one_of_a_child_that_sleeps_is_stuck() -> None:
    for stack, bound in (([MAIN, wait("net")], "idle"), ([MAIN, wait("sleep")], "stuck")):
        made = ProfileBuilder()
        made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("child")])
        made.wait(made.thread(200, "MainThread", pid=200), 2 * S, stack, flags=2 * (bound == "idle"))
        assert verdict(made.build()).bound == bound


def test_who_waits_for_one_that_goes_on_is_bound_by_the_lock() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("lock")], lock=64)
    holder = made.thread(101, "holder")
    for _ in range(200):
        made.spend(holder, ON_CPU, 10 * MS, [python("compute", line=9)])
    last = waited_for("lock", "lock #1", holder=holder)
    assert verdict(replace(made.build(), last_waits=(last,))).bound != "stuck"


@pytest.mark.parametrize(("busy_ms", "bound"), [(1_900, "python"), (200, "net")])
def test_what_the_other_end_of_a_socket_does_is_the_answer(busy_ms: int, bound: str) -> None:
    """It works and will answer, or it does nothing."""
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("net")], object=1)
    other = made.thread(200, "MainThread", pid=200)
    made.spend(other, ON_CPU, busy_ms * MS, [python("crunch", line=9)])
    made.wait(other, 2 * S - busy_ms * MS, [python("crunch", line=9), wait("sleep")])
    last = waited_for("socket", "fd 3: unix socket", holder=other, held_by="python (200)")
    found = verdict(replace(made.build(), objects=("unix socket",), last_waits=(last,)))
    assert found.bound == bound and (bound == "net" or "in crunch (train.py:9)" in found.sentence), found


@pytest.mark.parametrize("reason", ["net", "disk"])
def test_an_answer_or_a_disk_that_may_be_slow_is_not_stuck(reason: str) -> None:
    """The last wait took 70% of the time: another one may end before."""
    made = ProfileBuilder()
    main = made.thread(100, "MainThread")
    made.spend(main, ON_CPU, 600 * MS, [MAIN])
    made.wait(main, 1400 * MS, [MAIN, wait(reason)], object=1)
    assert verdict(replace(made.build(), objects=("10.0.0.5:5432",))).bound == reason


def test_an_answer_of_nobody_knows_whom_is_no_wait_for_work() -> None:
    assert verdict(hung([MAIN, wait("net")])).bound == "net"


def test_an_event_loop_that_has_asked_is_stuck_unless_others_work() -> None:
    made, asked = ProfileBuilder(), waited_for("answer", "fd 7: 10.0.0.5:5432")
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, *LOOP], flags=2)
    found = verdict(replace(made.build(), last_waits=(asked,)))
    assert found.sentence.startswith("Stuck: MainThread waits for 10.0.0.5:5432 (PostgreSQL), in main (train.py:3), ")
    assert found.sentence.endswith("; it has asked, and nothing has come yet.")
    made.spend(made.thread(101, "worker"), ON_CPU, 2 * S, [MAIN])
    assert verdict(replace(made.build(), last_waits=(asked,))).bound != "stuck"


def test_who_waits_for_its_own_event_loop_is_told_to_await() -> None:
    loop = python("BaseEventLoop._run_once", "/usr/lib/python3.12/asyncio/base_events.py", 1949)
    result = python("Future.result", "/usr/lib/python3.12/concurrent/futures/_base.py", 451)
    asked = waited_for("future", "a future", nobody="no other thread of its process is alive")
    found = verdict(hung([loop, MAIN, result, wait("lock")], asked))
    assert found.sentence.startswith("Stuck: MainThread waits for a future, in main (train.py:3), ")
    assert found.advice.startswith("await it: ")


def test_what_holds_up_others_is_said_before_those() -> None:
    made = ProfileBuilder()
    exits = python("_shutdown", "/usr/lib/python3.12/threading.py", 1583)
    made.wait(made.thread(100, "MainThread"), 2 * S, [exits, wait("lock")])
    made.wait(made.thread(101, "worker"), 2 * S, [MAIN, wait("file-lock")])
    found = verdict(made.build())
    assert found.sentence.startswith("Stuck: worker waits for the lock of a file, in main (train.py:3)"), found
    assert found.sentence.endswith(" 1 more is stuck.")


def test_who_sleeps_all_the_time_is_not_said_to_wait_for_work() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [python("join", "/usr/lib/python3.12/threading.py"), wait("lock")])
    made.wait(made.thread(101, "worker"), 2 * S, [MAIN, wait("sleep")])
    found = verdict(made.build())
    assert (found.bound, found.sentence) == ("idle", "Idle: its threads sleep on purpose, most in main (train.py:3).")
    assert verdict(hung(LOOP)).sentence.startswith("Idle: its threads wait for work")


def test_who_polls_what_a_child_writes_is_stuck_and_who_polls_its_input_is_not() -> None:
    poll = [MAIN, wait("poll")]
    assert verdict(hung(poll, waited_for("pipe", "fd 3: pipe:[9]", held_by="sleep (7)"))).bound == "stuck"
    assert verdict(hung(poll, waited_for("pipe", "fd 0: pipe:[9]", held_by="sh (7)"))).bound == "idle"
    assert verdict(hung(poll, waited_for("pipe", "fd 3: pipe:[9]"))).bound == "idle", "of several it is not known"


def test_who_waits_for_a_child_that_serves_through_its_input_is_not_stuck() -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("child")])
    made.wait(made.thread(200, "MainThread", pid=200), 2 * S, [MAIN, wait("poll")])
    told = waited_for("pipe", "fd 0: pipe:[9]", thread=1, held_by="producer (7)")
    assert verdict(replace(made.build(), last_waits=(told,))).bound == "idle"


@pytest.mark.parametrize("reason", ["file-lock", "kernel-lock", "stopped"])
def test_what_no_work_ever_ends_is_stuck_beside_others_that_work(reason: str) -> None:
    made = ProfileBuilder()
    waits, works = made.thread(100, "MainThread"), made.thread(101, "worker")
    made.wait(waits, 2 * S, [MAIN, wait(reason)])
    made.spend(works, ON_CPU, 2 * S, [MAIN])
    assert work_of(made.build()).stuck["thread"].tolist() == [waits]


THREADING, QUEUE = "/usr/lib/python3.12/threading.py", "/usr/lib/python3.12/queue.py"


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            [python("Barrier.wait", THREADING), python("Barrier._wait", THREADING)],
            "a barrier that not all have come to",
        ),
        ([python("Queue.get", QUEUE)], "an empty queue"),
        ([python("Queue.put", QUEUE)], "a full queue"),
        ([python("Queue.join", QUEUE)], "what was put into a queue to be done"),
        ([python("get", "/srv/my_queue.py")], "a condition"),
        ([python("Event.wait", THREADING)], "a condition"),
    ],
)
def test_what_nobody_ends_is_said_before_who_joins_a_thread_that_waits_for_it(calls: list[Frame], said: str) -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, python("Thread.join", THREADING), wait("lock")])
    for tid in (101, 102):
        condition = python("Condition.wait", THREADING)
        made.wait(
            made.thread(tid, f"worker-{tid - 101}"), 2 * S, [python("work", line=9), *calls, condition, wait("lock")]
        )
    last = [waited_for("condition", "condition #1", thread) for thread in (1, 2)]
    profile = replace(made.build(), last_waits=(waited_for("thread", "a thread", 0, holder=1), *last))
    found = verdict(profile)
    assert found.sentence.startswith(f"Stuck: 2 threads (worker-0..1) wait for {said}, in ")
    assert found.sentence.endswith(" 1 more is stuck.")


@pytest.mark.parametrize("is_any", [False, True])
def test_a_child_that_is_stuck_comes_before_who_waits_for_it(is_any: bool) -> None:
    made = ProfileBuilder()
    made.wait(made.thread(100, "MainThread"), 2 * S, [MAIN, wait("child")])
    child = made.thread(200, "MainThread", pid=200)
    made.wait(child, 2 * S, [python("work", line=9), wait("lock")])
    waits = waited_for(
        "child", "any child" if is_any else "child 200", holder=-1 if is_any else child, held_by="python (200)"
    )
    held = waited_for("lock", "lock #1", child, nobody="no process that is alive has it")
    sentence = verdict(replace(made.build(), last_waits=(waits, held))).sentence
    assert sentence.startswith("Stuck: MainThread of python (200) waits for a lock, in work (train.py:9)"), sentence
    assert sentence.endswith("no process that is alive has it. 1 more is stuck.")
