"""Ranks made by hand: which steps are theirs together, who is slowest, why, and what the others wait for it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bpfprof.model.frames import COLLECTION, Frame
from bpfprof.model.profile import CpuThrottle, Profile
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.steps.rank_differences import Comparison, compare
from bpfprof.query.steps.ranks import CPU_COLLECTION, CPU_PYTHON, READY, rank_loops
from bpfprof.query.steps.steps import StepsWanted
from bpfprof.query.work.table import work_of
from bpfprof.render.ranks import compare_sentence, render_compare_json, render_compare_table
from tests.unit.render.profiles import INFO, MS, OFF_CPU, ON_CPU, RUNQUEUE, ProfileBuilder, native, python, wait
from tests.unit.render.profiles import READY as NO_CPU

TORCH = "/v/lib/python3.11/site-packages/torch"
LOADER = python("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py", 700)
MODULE = python("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1500)
TENSOR = python("Tensor.backward", f"{TORCH}/_tensor.py", 600)
REDUCE = python("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2800)
SGD = python("SGD.step", f"{TORCH}/optim/sgd.py", 100)
DECODE, HOOK = python("decode", line=40), python("hook", line=50)
SLOW_MS = 20
TICK = 5 * MS


def train(line: int) -> Frame:
    return python("train", line=line)


class Ranks:
    """Processes of one recording; `step` has all of them make one, which the collective ends for all at once."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.made = ProfileBuilder(info=INFO)
        self.threads = []
        for rank in range(first, first + count):
            thread = self.made.thread(100 + rank, "MainThread", pid=100 + rank)
            self.made.threads[thread] = replace(self.made.threads[thread], rank=f"RANK={rank}")
            self.threads.append(thread)

    def run(self, thread: int, ms: int, *stack: Frame) -> None:
        for _ in range(ms * MS // TICK):
            self.made.spend(thread, ON_CPU, TICK, stack)

    def step(self, more: dict[int, str], takes_ms: int = 0) -> None:
        """more: what a thread does for SLOW_MS beside; takes_ms: of all until the collective, 0: of the slowest."""
        whole = takes_ms or 40 + SLOW_MS * bool(more)
        for thread in self.threads:
            what = more.get(thread, "")
            self.run(thread, 5, train(11), LOADER)
            if what == "data":
                self.run(thread, SLOW_MS, train(11), LOADER, DECODE)
            if what == "collection":
                self.run(thread, SLOW_MS, train(11), LOADER, DECODE, native(COLLECTION, "/lib/libpython3.11.so"))
            self.run(thread, 15, train(12), MODULE)
            if what == "busy":
                self.run(thread, 5, train(12), MODULE)
                self.made.spend(thread, RUNQUEUE, (SLOW_MS - 5) * MS, [train(12), MODULE, NO_CPU])
            if what == "hog":
                self.made.spend(thread, RUNQUEUE, SLOW_MS * MS, [train(12), MODULE, NO_CPU])
            self.run(thread, 15, train(13), TENSOR)
            if what in ("sleep", "disk"):
                line = {"sleep": (train(13), TENSOR, HOOK), "disk": (train(16), python("save", line=60))}[what]
                self.made.spend(thread, OFF_CPU, SLOW_MS * MS, [*line, wait(what)])
            rest = whole - 35 - SLOW_MS * bool(what)
            self.made.spend(thread, OFF_CPU, rest * MS, [train(14), REDUCE, wait("poll")])
            self.run(thread, 5, train(15), SGD)


def compared(*profiles: Profile) -> Comparison:
    loops = []
    for number, profile in enumerate(profiles):
        found, unclear = rank_loops(profile, f"{number}.bpfprof", StepsWanted())
        assert not unclear
        loops += found
    return compare(loops)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("what", "phase", "state", "function", "words"),
    [
        ("hog", "forward", READY, "train", "it waits 20.00 ms more for a CPU (ready) in forward"),
        ("data", "data wait", CPU_PYTHON, "decode", "it computes 20.00 ms more in Python in data wait"),
        (
            *("collection", "data wait", CPU_COLLECTION, "decode"),
            "it collects garbage for 20.00 ms more in data wait, most in decode",
        ),
        ("busy", "forward", CPU_PYTHON, "train", "it computes 5.00 ms more in Python in forward"),
        ("sleep", "backward", "sleep", "hook", "it sleeps 20.00 ms more in backward"),
        ("disk", "other", "disk", "save", "more for a disk (disk) outside of the known phases"),
    ],
)
def test_the_slow_one_and_what_it_does_more_of(
    what: str, phase: str, state: str, function: str, words: str, count: int
) -> None:
    ranks = Ranks(count)
    for _ in range(10):
        ranks.step({1: what})
    found = compared(ranks.made.build())
    assert found.together and found.is_slow and found.loops[found.longest].rank == 1 and found.cause is not None
    assert (found.cause.state.phase, found.cause.state.state) == (phase, state)
    assert found.cause.function.function is not None and found.cause.function.function.name == function
    assert found.cause.phase.more_ns == found.excess_ns == found.others_wait_ns == SLOW_MS * MS
    sentence = compare_sentence(found)
    assert sentence.startswith("Rank 1 is slowest: it comes last in 100% of steps, 20.00 ms late: it ")
    assert words in sentence and found.late_ns == SLOW_MS * MS
    assert re.search(r"Without it a step takes ([0-9.]+) ms, not [0-9.]+ ms\.$", sentence)
    assert "\nlongest" not in render_compare_table(found, [], []) and "100%  rank 1" in render_compare_table(
        found, [], []
    )


@pytest.mark.parametrize("state", [ON_CPU, RUNQUEUE])
def test_what_is_done_in_communication_until_all_are_there_is_a_wait(state: int) -> None:
    """It asks again and again, or wants a CPU that the others have."""
    ranks = Ranks(3)
    for _ in range(10):
        for thread in ranks.threads:
            is_slow = thread == ranks.threads[1]
            ranks.run(thread, 15, train(12), MODULE)
            if is_slow:
                ranks.made.spend(thread, OFF_CPU, SLOW_MS * MS, [train(13), TENSOR, HOOK, wait("sleep")])
            else:
                ranks.made.spend(
                    thread, state, SLOW_MS * MS, [train(14), REDUCE, *([NO_CPU] if state == RUNQUEUE else [])]
                )
            ranks.made.spend(thread, OFF_CPU, 10 * MS, [train(14), REDUCE, wait("poll")])
            ranks.run(thread, 5, train(15), SGD)
    found = compared(ranks.made.build())
    assert found.is_slow and found.loops[found.longest].rank == 1 and found.excess_ns == SLOW_MS * MS
    assert found.others_wait_ns == SLOW_MS * MS


def test_who_leaves_communication_later_was_there() -> None:
    """The others have gone on meanwhile, and come to the next collective before it."""
    ranks = Ranks(3)
    slow = ranks.threads[1]
    ranks.run(slow, SLOW_MS, train(10))
    for _ in range(10):
        for thread in ranks.threads:
            ranks.run(thread, 35, train(12), MODULE)
            ranks.made.spend(thread, OFF_CPU, (5 + SLOW_MS * (thread != slow)) * MS, [train(14), REDUCE, wait("poll")])
            if thread == slow:
                ranks.made.spend(thread, RUNQUEUE, SLOW_MS * MS, [train(14), REDUCE, NO_CPU])
            ranks.run(thread, 5, train(15), SGD)
    found = compared(ranks.made.build())
    assert found.is_slow and found.loops[found.longest].rank == 1 and found.cause is not None
    assert found.excess_ns == pytest.approx(SLOW_MS * MS, rel=0.05)
    assert (found.cause.state.phase, found.cause.state.state) == ("communication", READY)


def test_ranks_that_are_alike() -> None:
    ranks = Ranks(3)
    for _ in range(10):
        ranks.step({})
    found = compared(ranks.made.build())
    assert not found.is_slow and found.cause is None and compare_sentence(found).startswith("No rank is slower")
    told = json.loads(render_compare_json(found, [], []))
    assert told["verdict"] is None and told["sentence"].startswith("No rank is slower")


@pytest.mark.parametrize(("ready_ms", "is_slow"), [(10, True), (20, True), (30, False)])
def test_ranks_that_share_cpus(ready_ms: int, is_slow: bool) -> None:
    """All wait for them, and who comes last waits 20 ms more: that is chance where the others wait longer than that."""
    ranks = Ranks(3)
    for _ in range(10):
        for thread in ranks.threads:
            ranks.made.spend(thread, RUNQUEUE, ready_ms * MS, [train(12), MODULE, NO_CPU])
        ranks.step({1: "hog"})
    found = compared(ranks.made.build())
    assert (found.is_slow, found.cause is not None) == (is_slow, is_slow)


def test_a_rank_that_a_cpu_limit_stops() -> None:
    """Also where all wait for CPUs; a limit that seldom stops it is not said."""
    for part, words in (
        (0.9, ", stopped by a CPU limit (0.0667 CPUs of control group /slow, used up in 90% of its"),
        (0.1, ""),
    ):
        ranks = Ranks(2)
        ranks.made.info = replace(INFO, cpu_throttles={101: CpuThrottle("/slow", 0.06666, part, 2)})
        for _ in range(20):
            for thread in ranks.threads if words else ():
                ranks.made.spend(thread, RUNQUEUE, 30 * MS, [train(12), MODULE, NO_CPU])
            ranks.step({1: "hog"})
        profile = ranks.made.build()
        sentence = compare_sentence(compared(profile))
        assert words in sentence and ("stopped" in sentence) == bool(words)
        assert words in verdict_of(profile, work_of(profile)).sentence


def test_recordings_that_began_at_other_times() -> None:
    """Of the steps that both have the first is step 0 of each; that the slow one was seen longer is no difference."""
    both = []
    for rank, late_steps in ((0, 0), (1, 3)):
        ranks = Ranks(1, first=rank)
        ranks.made.info = replace(INFO, start_ns=1_000 * MS + late_steps * 60 * MS)
        for _ in range(12 - late_steps):
            ranks.step({0: "sleep"} if rank else {}, takes_ms=55)
        both.append(ranks.made.build())
    found = compared(*both)
    assert found.together and found.loops[found.longest].rank == 1 and found.excess_ns == SLOW_MS * MS
    zeros = [loop.zero_ns for loop in found.loops]
    assert (found.parts[0].begin_ns + zeros[0] == found.parts[1].begin_ns + zeros[1]).all()
    assert found.parts[0].count == found.parts[1].count >= 6


def on_two_hosts(lengths_ms: Sequence[int], apart_ns: int, spins: bool = True) -> Comparison:
    """Steps of so many milliseconds; rank 1 sleeps in each, and its host's time of day is so much ahead."""
    profiles = []
    for rank in range(2):
        ranks = Ranks(1, first=rank)
        unix_ns = INFO.started_unix_ns + apart_ns * rank
        ranks.made.info = replace(INFO, host_name=f"host-{rank}", started_unix_ns=unix_ns)
        for more_ms in lengths_ms:
            ranks.run(ranks.threads[0], 15 + more_ms, train(12), MODULE)
            if rank:
                ranks.made.spend(ranks.threads[0], OFF_CPU, SLOW_MS * MS, [train(13), TENSOR, HOOK, wait("sleep")])
            elif spins:
                ranks.run(ranks.threads[0], SLOW_MS, train(14), REDUCE)
            ranks.made.spend(ranks.threads[0], OFF_CPU, 10 * MS, [train(14), REDUCE, wait("poll")])
            ranks.run(ranks.threads[0], 5, train(15), SGD)
        profiles.append(ranks.made.build())
    return compared(*profiles)


@pytest.mark.parametrize("apart_ms", [0, 7, -90, 7_000])
def test_collectives_tell_the_time_between_hosts(apart_ms: int) -> None:
    """Steps of several lengths; what a rank does in collectives until the other is there is no time of its own."""
    found = on_two_hosts([5 * (number * number % 7) for number in range(40)], apart_ms * MS)
    assert found.together and found.is_slow and found.longest == 1 and found.excess_ns == SLOW_MS * MS
    assert found.parts[0].count == found.parts[1].count >= 38
    assert (found.parts[0].begin_ns == found.parts[1].begin_ns).all()


@pytest.mark.parametrize("apart_ms", [7, -20])
def test_of_steps_that_are_all_alike_the_time_of_day_tells_which_are_of_one_time(apart_ms: int) -> None:
    found = on_two_hosts([10] * 40, apart_ms * MS)
    assert (found.parts[0].begin_ns == found.parts[1].begin_ns).all() and found.excess_ns == SLOW_MS * MS
    assert found.parts[0].count >= 38


def test_clocks_that_no_collectives_tell() -> None:
    """Nothing is known of who came first: what a rank does in communication is its own."""
    found = on_two_hosts([5] * 4, 7 * MS)
    assert not found.is_slow


@pytest.mark.parametrize("seen", [range(0), range(0, 9, 3)])
def test_a_rank_of_which_few_steps_were_seen_makes_those_of_the_other(seen: range) -> None:
    ranks = Ranks(2)
    for _ in range(12):
        ranks.step({1: "sleep"})
    loops, _ = rank_loops(ranks.made.build(), "x", StepsWanted())
    steps, places = loops[0].steps, [*seen]
    few = replace(steps, begin_ns=steps.begin_ns[places], end_ns=steps.end_ns[places], phase_ns=steps.phase_ns[places])
    found = compare([replace(loops[0], steps=few), loops[1]])
    assert found.together and found.longest == 1 and found.is_slow and found.excess_ns == SLOW_MS * MS
    assert found.parts[0].count == found.parts[1].count == len(steps)


def test_loops_that_do_not_step_together() -> None:
    """No collective: each has its own pace. Their means are compared all the same."""
    profiles = []
    for rank in range(2):
        ranks = Ranks(1, first=rank)
        for _ in range(12):
            ranks.step({0: "hog"} if rank else {}, takes_ms=0)
        profiles.append(ranks.made.build())
    found = compared(*profiles)
    assert not found.together and found.is_slow and found.loops[found.longest].rank == 1
    assert "do not step together" in render_compare_table(found, [], [])


def test_waits_that_another_rank_ended_are_for_others() -> None:
    """Without a collective that is known, as in a pipe between them."""
    made = ProfileBuilder(info=INFO)
    threads = [made.thread(100 + rank, "MainThread", pid=100 + rank) for rank in range(2)]
    wakers = [made.thread_waker(each) for each in threads]
    for _ in range(10):
        for thread in threads:
            for line, frame in ((11, MODULE), (12, TENSOR), (13, SGD)):
                for _ in range(2 + 4 * thread):
                    made.spend(thread, ON_CPU, TICK, [train(line), frame])
            if not thread:
                made.wait(thread, 60 * MS, [train(14), wait("pipe")], waker=wakers[1])
    found = compared(made.build())
    assert found.together and found.longest == 1 and found.parts[0].mean_waits_ns == 60 * MS
    assert compare_sentence(found).startswith("Process python (101) is slowest: ") and found.others_wait_ns == 60 * MS
    named = replace(found.loops[1], thread=replace(found.loops[1].thread, given_process_name="SpawnProcess-2"))
    assert (named.name, named.subject) == ("SpawnProcess-2 (101)", "Process SpawnProcess-2 (101)")


def test_a_collective_that_waits_for_a_cpu_for_its_thread() -> None:
    """A library's thread communicates for the loop: while it is ready, the rank waits for no other."""
    ranks = Ranks(2)
    helper = ranks.made.thread(900, "gloo", pid=101)
    for _ in range(10):
        ranks.step({1: "sleep"}, takes_ms=80)
        # Its rank is in the collective from 55 to 80 ms of a step of 85 ms.
        for state, ms in ((OFF_CPU, 60), (RUNQUEUE, 15), (OFF_CPU, 10)):
            ranks.made.spend(
                helper, state, ms * MS, [native("epoll_wait"), wait("poll") if state == OFF_CPU else NO_CPU]
            )
    found = compared(ranks.made.build())
    rows = {(each.phase, each.state): each for each in found.activities}
    assert rows["communication", READY].more_ns == 15 * MS and rows["backward", "sleep"].more_ns == SLOW_MS * MS
    assert found.excess_ns == (SLOW_MS + 15) * MS and found.parts[1].mean_waits_ns == 10 * MS
    assert found.late_ns == SLOW_MS * MS
    assert "20.00 ms late and 15.00 ms longer within collectives: it sleeps " in compare_sentence(found)


@pytest.mark.parametrize("part", [0.9, 0.0])
def test_what_a_cpu_limit_stops_in_a_collective_is_no_lateness(part: float) -> None:
    """The main thread is woken, and is ready while the one that communicates for it is ready, too."""
    ranks = Ranks(2)
    helper = ranks.made.thread(900, "gloo", pid=101)
    if part:
        ranks.made.info = replace(INFO, cpu_throttles={101: CpuThrottle("/slow", 0.2, part, 2)})
    for _ in range(10):
        ranks.step({1: "sleep"}, takes_ms=60)
        for thread in ranks.threads:
            it = (OFF_CPU, wait("poll")) if thread == ranks.threads[0] else (RUNQUEUE, NO_CPU)
            ranks.made.spend(thread, it[0], 10 * MS, [train(14), REDUCE, it[1]])
        for state, ms in ((OFF_CPU, 65), (RUNQUEUE, 10)):
            ranks.made.spend(
                helper, state, ms * MS, [native("epoll_wait"), wait("poll") if state == OFF_CPU else NO_CPU]
            )
    found = compared(ranks.made.build())
    assert found.late_ns == SLOW_MS * MS and found.excess_ns == (SLOW_MS + 10) * MS


def test_what_a_cpu_limit_stops_after_the_others_have_left_is_lateness() -> None:
    """They come to the next collective meanwhile, and wait there."""
    ranks = Ranks(2)
    helper = ranks.made.thread(900, "gloo", pid=101)
    ranks.made.info = replace(INFO, cpu_throttles={101: CpuThrottle("/slow", 0.2, 0.9, 2)})
    first, slow = ranks.threads
    for number in range(10):
        ranks.run(first, 35 if number else 25, train(12), MODULE)
        ranks.made.spend(first, OFF_CPU, (15 + SLOW_MS) * MS, [train(14), REDUCE, wait("poll")])
        ranks.run(first, 5, train(15), SGD)
        ranks.run(slow, 35, train(12), MODULE)
        ranks.made.spend(slow, OFF_CPU, SLOW_MS * MS, [train(13), TENSOR, HOOK, wait("sleep")])
        ranks.made.spend(slow, OFF_CPU, 5 * MS, [train(14), REDUCE, wait("poll")])
        ranks.made.spend(slow, RUNQUEUE, 10 * MS, [train(14), REDUCE, NO_CPU])
        ranks.run(slow, 5, train(15), SGD)
        ranks.made.spend(helper, OFF_CPU, 60 * MS, [native("epoll_wait"), wait("poll")])
        ranks.made.spend(helper, RUNQUEUE, 15 * MS, [native("epoll_wait"), NO_CPU])
    found = compared(ranks.made.build())
    assert found.is_slow and found.loops[found.longest].rank == 1
    assert found.late_ns == pytest.approx((SLOW_MS + 10) * MS, rel=0.05)


def test_others_that_leave_a_collective_later_come_later_to_the_next() -> None:
    """They share a CPU, on which the other ones finish a collective first."""
    ranks = Ranks(3)
    for number in range(10):
        for thread in ranks.threads:
            is_slow = thread == ranks.threads[1]
            ranks.run(thread, 40 + SLOW_MS if is_slow else 30 if number else 40, train(12), MODULE)
            ranks.made.spend(thread, OFF_CPU, (10 + (not is_slow) * SLOW_MS) * MS, [train(14), REDUCE, wait("poll")])
            if not is_slow:
                ranks.made.spend(thread, RUNQUEUE, 10 * MS, [train(14), REDUCE, NO_CPU])
            ranks.run(thread, 10, train(15), SGD)
    found = compared(ranks.made.build())
    assert found.is_slow and found.loops[found.longest].rank == 1
    assert found.excess_ns == pytest.approx((SLOW_MS + 10) * MS, rel=0.05)
    assert found.late_ns == pytest.approx(SLOW_MS * MS, rel=0.05)


def test_a_wait_for_a_thread_that_waits_for_other_ranks_is_for_them() -> None:
    """As that of the main thread for the one that runs the backward pass, in which the ranks meet."""
    made = ProfileBuilder(info=INFO)
    mains = [made.thread(100 + rank, "MainThread", pid=100 + rank) for rank in range(2)]
    backward = [made.thread(900 + rank, "pt_autograd_0", pid=100 + rank) for rank in range(2)]
    wakers = [made.thread_waker(each) for each in backward]
    reducer = native("c10d::Reducer::finalize_backward()", "/usr/lib/libtorch_cpu.so")
    for _ in range(20):
        for rank, (main, helper) in enumerate(zip(mains, backward)):
            for _ in range(2):
                made.spend(main, ON_CPU, TICK, [train(11), MODULE])
            if rank:
                made.spend(main, OFF_CPU, 30 * MS, [train(10), LOADER, wait("sleep")])
            rest = (20 if rank else 50) * MS
            made.wait(main, rest, [train(12), TENSOR, native("pthread_cond_wait"), wait("lock")], waker=wakers[rank])
            made.spend(main, ON_CPU, TICK, [train(13), SGD])
            made.spend(helper, OFF_CPU, (40 if rank else 10) * MS, [native("epoll_wait"), wait("poll")])
            made.spend(helper, OFF_CPU, rest, [reducer, native("pthread_cond_wait"), wait("lock")])
            made.spend(helper, OFF_CPU, TICK, [native("epoll_wait"), wait("poll")])
    profile = made.build()
    found = compared(profile)
    assert found.is_slow and found.longest == 1 and found.excess_ns == 30 * MS
    assert found.parts[0].mean_waits_ns == 50 * MS and found.parts[1].mean_waits_ns == 20 * MS
    assert verdict_of(profile, work_of(profile)).sentence.endswith("waits 30.0 ms a step for it, in backward.")


def test_a_recording_of_late_ranks_says_so() -> None:
    ranks = Ranks(2)
    for _ in range(60):
        ranks.step({1: "sleep"})
    profile = ranks.made.build()
    found = verdict_of(profile, work_of(profile))
    assert found.bound == "sleep" and found.where is not None and found.where.name == "hook"
    assert found.sentence.startswith(
        "Rank 1 is late by 20.0 ms a step: it sleeps 20.0 ms more in backward, most in hook"
    )
    assert found.sentence.endswith("The other one waits 20.0 ms a step for it.")
    assert found.share == pytest.approx(20 / 65, abs=0.01)


@pytest.mark.parametrize("late_every", [0, 10], ids=["none", "by_little"])
def test_ranks_of_which_none_is_late_by_much_have_another_verdict(late_every: int) -> None:
    ranks = Ranks(2)
    for number in range(60):
        ranks.step({1: "sleep"} if late_every and number % late_every == 0 else {})
    profile = ranks.made.build()
    found = verdict_of(profile, work_of(profile))
    assert "late" not in found.sentence and (found.where is None or found.where.name != "hook")


def test_loops_whose_steps_were_not_counted_are_compared_by_the_second() -> None:
    """As both communicate."""
    ranks = Ranks(2)
    for _ in range(60):
        ranks.step({1: "sleep"})
    loops, _ = rank_loops(ranks.made.build(), "x", StepsWanted())
    none = [
        replace(it, steps=replace(it.steps, begin_ns=it.steps.begin_ns[:0], end_ns=it.steps.end_ns[:0])) for it in loops
    ]
    found = compare(none)
    assert found.by_second and found.is_slow and found.longest == 1 and found.cause is not None
    assert found.excess_ns == pytest.approx(1e9 * SLOW_MS / 65, rel=0.02) and found.cause.state.state == "sleep"
    assert compare_sentence(found).startswith("Rank 1 is slowest: of each second ")
    with pytest.raises(ValueError, match="fewer than two"):
        compare([replace(it, end_ns=it.end_ns[:2], start_ns=it.start_ns[:2]) for it in none])
