"""Deadlocks, and locks that are taken in another order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.samples import LOCK_HOLDER_DTYPE
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.waits import lock_orders
from bpfprof.query.waits.lock_orders import deadlocks, order_cycles
from bpfprof.query.work.table import work_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.off_cpu import render_off_cpu
from bpfprof.render.report_json import render_json
from bpfprof.render.summary import render_summary
from tests.unit.render.profiles import MS, OFF_CPU, ON_CPU, ProfileBuilder, python, wait

FIRST, SECOND = 0x100, 0x200
ONE, OTHER, USER = python("one", line=10), python("other", line=20), python("user", line=30)


def in_turn(other_order: tuple[int, int], is_seen: bool = True) -> ProfileBuilder:
    """A thread has the first lock and waits for the second, then another one has other_order[0] and waits for [1].

    Users of both locks wait for them meanwhile (is_seen), or begin to when the wait is over.
    """
    made = ProfileBuilder()
    names = ("one", "other", "first user", "second user")
    one, other, first, second = (made.thread(100 + number, name) for number, name in enumerate(names))
    waker = {thread: made.thread_waker(thread) for thread in (one, other, first, second)}
    for thread, (has, wanted), frame in ((one, (FIRST, SECOND), ONE), (other, other_order, OTHER)):
        rest = other if thread == one else one
        made.spend(thread, ON_CPU, 20 * MS, [frame])
        made.wait(thread, 20 * MS, [frame, wait("lock")], lock=wanted, waker=waker[second], waker_stack=[USER])
        made.spend(thread, ON_CPU, 10 * MS, [frame])
        before = 10 if is_seen else 40
        made.spend(first, ON_CPU, before * MS, [USER])
        ns = (50 - before) * MS
        made.wait(first, ns, [USER, wait("lock")], lock=has, waker=waker[thread], waker_stack=[frame])
        made.spend(second, ON_CPU, 50 * MS, [USER])
        made.spend(rest, OFF_CPU, 50 * MS, [frame, wait("sleep")])
    return made


def test_two_orders_of_two_locks() -> None:
    profile = in_turn((SECOND, FIRST)).build()
    work = work_of(profile)
    (cycle,) = order_cycles(profile, work).cycles
    first, second = cycle
    assert {(it.thread, profile.frames[it.frame]) for it in cycle} == {(0, ONE), (1, OTHER)}
    assert (first.has, first.wanted) == (second.wanted, second.has)
    text = render_off_cpu(profile, RenderOptions())
    assert "\nlocks taken in another order, which can end in a deadlock:\n    thread one (100) had lock #" in text
    assert "DEADLOCK" not in text
    found = json.loads(render_json(profile, RenderOptions()))
    assert found["deadlocks"] == []
    (told,) = found["lock_order_cycles"]
    assert {(it["tid"], it["where"]["line"]) for it in told} == {(100, 10), (101, 20)}
    assert {it["has"] for it in told} == {it["waits_for"] for it in told} == {"#1", "#2"}


@pytest.mark.parametrize(("other_order", "is_seen"), [((FIRST, SECOND), True), ((SECOND, FIRST), False)])
def test_one_order_and_one_that_was_not_seen(other_order: tuple[int, int], is_seen: bool) -> None:
    """While nobody waits for a lock it is not known who has it."""
    profile = in_turn(other_order, is_seen).build()
    assert not order_cycles(profile, work_of(profile)).cycles


def test_a_thread_alone_has_no_deadlock_to_come() -> None:
    made = in_turn((SECOND, FIRST))
    for span in made.spans:
        if span["thread"] in (0, 1):
            span["thread"] = 0
    made.wakers[1] = made.wakers[0]
    profile = made.build()
    assert not order_cycles(profile, work_of(profile)).cycles


@pytest.mark.parametrize(
    ("limit", "cut", "said"),
    [
        ("_MOST_ORDERS", {"locks": 2, "pairs": 0, "cycles": 0}, "locks not looked at 2"),
        ("_MOST_SEARCHED", {"locks": 0, "pairs": 2, "cycles": 0}, "pairs of locks not followed 2"),
        ("_MOST_CYCLES", {"locks": 0, "pairs": 0, "cycles": 1}, "further cycles 1"),
    ],
)
def test_what_is_left_out_is_said(limit: str, cut: dict[str, int], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_orders, limit, 0)
    profile = in_turn((SECOND, FIRST)).build()
    found = json.loads(render_json(profile, RenderOptions()))
    assert (found["lock_order_cycles"], found["lock_orders_cut"]) == ([], cut)
    assert f"\norders of locks are not all here: {said}\n" in render_off_cpu(profile, RenderOptions())


def test_a_deadlock_comes_first() -> None:
    made = ProfileBuilder()
    threads = [made.thread(100 + number, name) for number, name in enumerate(("one", "other", "third"))]
    for thread in threads:
        made.thread_waker(thread)
        made.spend(thread, ON_CPU, 100 * MS, [ONE])
        made.wait(thread, 900 * MS, [ONE, wait("lock")], lock=(FIRST, SECOND, SECOND)[thread])
    looks = np.array(
        [(500 * MS, 501 * MS, one, other + 1, 0) for one, other in ((0, 1), (1, 0), (2, 0))], LOCK_HOLDER_DTYPE
    )
    profile = replace(made.build(), lock_holders=looks)
    verdict = verdict_of(profile, work_of(profile))
    assert (
        verdict.sentence
        == "Deadlocked: one -> other -> one, each waits for what the next one has, in one (train.py:10)."
    )
    assert (verdict.bound, verdict.where) == ("stuck", ONE)
    looks["has_end"][0] = 1
    assert deadlocks(profile) == [] and "Deadlocked" not in verdict_of(profile, work_of(profile)).sentence
    looks["has_end"][0] = 0
    assert deadlocks(profile) == [[0, 1]]
    said = "DEADLOCK: thread one (100) -> thread other (101) -> thread one (100)"
    assert render_off_cpu(profile, RenderOptions()).startswith(said)
    assert said in render_summary(profile, RenderOptions()).splitlines()[:3]
    assert json.loads(render_json(profile, RenderOptions()))["deadlocks"] == [[100, 101]]
    # The time is that of locks, not of threads that wait for work.
    assert not work_of(profile).share_ns()[-2]


def test_a_deadlock_is_where_it_is_shown() -> None:
    """Not in what is said of other processes, nor of a time before."""
    made = ProfileBuilder()
    for number in range(3):
        made.wait(made.thread(100 + number), 900 * MS, [ONE, wait("lock")])
    looks = np.array([(800 * MS, 801 * MS, one, 2 - one, 0) for one in (0, 1)], LOCK_HOLDER_DTYPE)
    profile = replace(made.build(), lock_holders=looks)
    threads = profile.threads

    def found(*shown: int, last_ns: int = 900 * MS) -> list[list[int]]:
        times = [replace(it, last_ns=last_ns if place in shown else 0) for place, it in enumerate(threads)]
        return deadlocks(replace(profile, threads=tuple(times)))

    assert found(0, 1, 2) == found(0) == found(1, 2) == [[0, 1]]
    assert found(2) == [] and found(0, 1, 2, last_ns=700 * MS) == []
