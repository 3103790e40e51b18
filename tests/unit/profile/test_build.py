"""From a recording made by hand to a profile: nothing of a thread's wall time is lost on the way."""

from __future__ import annotations

import json
import re

import pytest

from bpfprof.model.samples import HOLDS_GIL
from bpfprof.model.spans import ThreadState
from bpfprof.model.statuses import Status
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import OFF_CPU, ON_CPU, ProfileOptions, SpanFilter
from bpfprof.render.formats import RenderOptions
from bpfprof.render.speedscope import render_speedscope
from tests.unit.profile.views import built, shown_ms, spent_ms
from tests.unit.recording.hand_made import FUTEX, MS, RUNNABLE, START_NS, HandMade, Story, small


@pytest.fixture
def made() -> HandMade:
    empty = HandMade()
    empty.process(100, name="train", command_line=["python", "train.py"])
    return empty


def test_a_thread_computes_and_waits(made: HandMade) -> None:
    run, take = made.code("run"), made.code("take")
    computing, waiting = made.stack((run, 0, 0)), made.stack((take, 0, 0), (run, 2, 0))
    story = Story.begin(made).run(30 * MS, (5 * MS, computing), (15 * MS, computing), (25 * MS, computing))
    story.block(50 * MS, ready=4 * MS, stack=waiting, syscall=FUTEX).run(16 * MS, (6 * MS, waiting)).total()
    profile = built(made, 100)
    (thread,) = profile.threads
    assert (thread.pid, thread.tid, thread.process_name, thread.thread_name) == (100, 100, "train", "main")
    assert (thread.on_cpu_ns, thread.runqueue_ns, thread.off_cpu_ns) == (46 * MS, 4 * MS, 50 * MS)
    assert (thread.sample_count, thread.wait_count) == (4, 1)
    assert spent_ms(profile, 0) == {
        ("run",): 30,
        ("run", "take", "wait lock"): 50,
        ("run", "take", "runqueue"): 4,
        ("run", "take"): 16,
    }
    weights = {int(row["state"]): row for row in profile.weights}
    assert weights[ThreadState.OFF_CPU]["count"] == 1 and weights[ThreadState.OFF_CPU]["max_ns"] == 50 * MS
    assert all(row["max_ns"] == 0 for row in profile.weights if row["state"] == ThreadState.ON_CPU)
    assert sum(row["count"] for row in profile.weights if row["state"] == ThreadState.ON_CPU) == 4


def test_stolen_time_is_run_queue_time_under_the_same_stack(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    Story.begin(made).run(20 * MS, (5 * MS, run), (15 * MS, run), stolen=10 * MS).block(5 * MS).total()
    Story.begin(made, tid=101).run(20 * MS, stolen=15 * MS).total()
    profile = built(made, 35)
    assert spent_ms(profile, 0, ThreadState.RUNQUEUE) == {("run", "runqueue"): 10}
    assert spent_ms(profile, 1) == {("not_sampled",): 20, ("not_sampled", "runqueue"): 15}


def test_a_thread_that_was_born_and_died(made: HandMade) -> None:
    run = made.stack((made.code("run"), 0, 0))
    Story.begin(made).run(60 * MS).total()
    child = Story.begin(made, tid=101, first_ns=START_NS + 10 * MS, state=RUNNABLE)
    child.now_ns += 2 * MS
    child.run(20 * MS, (MS, run), (11 * MS, run), stolen=3 * MS).block(5 * MS, stack=run).run(MS, stolen=2 * MS).die()
    profile = built(made, 60)
    thread = profile.threads[1]
    assert (thread.first_ns, thread.last_ns) == (10 * MS, 43 * MS)
    assert spent_ms(profile, 1, ThreadState.RUNQUEUE)[("runqueue",)] == 2, "not started yet is no fault of a stack"
    assert not profile.quality.truncated_counts.get("not started yet")


def test_gil_waits_are_told_from_locks(made: HandMade) -> None:
    made.processes[0]["gil"] = [0x7000, 96]
    made.process(101)
    for tid, process, address in ((100, 0, 0x7010), (101, 0, 0x9000), (102, 1, 0x7010)):
        Story.begin(made, tid, process).run(MS).block(9 * MS, syscall=FUTEX, args=(address, 0, 0)).total()
    profile = built(made, 10)
    leaves = [next(iter(spent_ms(profile, thread, ThreadState.OFF_CPU)))[-1] for thread in range(3)]
    assert leaves == ["wait gil", "wait lock", "wait lock"]


def test_stacks_that_are_not_whole_carry_their_reason(made: HandMade) -> None:
    lost, fault = int(Status.STACK_LOST), int(Status.PYTHON_FRAME_FAULT)
    part = made.stack((made.code("leaf"), 0, 0), status=fault)
    story = Story.begin(made).run(10 * MS, (MS, part))
    made.samples[0]["status"] = fault
    story.block(20 * MS, status=lost).run(MS).block(9 * MS, status=200).total()
    # A stack that finds no room is sent again: 100 times it found none, and one wait has none.
    made.end = {"own_cpu_ns": 3 * MS, "lost": {"event lost, buffer full": 2, "stack lost, buffer full": 100}}
    profile = built(made, 40)
    spent = spent_ms(profile, 0)
    assert spent[("truncated Python frame unreadable", "leaf")] == 10
    assert spent[("truncated stack lost, buffer full", "wait sleep")] == 20
    assert spent[("truncated status 200", "wait sleep")] == 9, "a status of a later version"
    quality = profile.quality
    assert quality.truncated_counts == {"Python frame unreadable": 1, "stack lost, buffer full": 1, "status 200": 1}
    assert quality.complete_count == 0
    assert quality.lost_counts == {"event lost, buffer full": 2, "stack lost, buffer full": 1}
    assert (quality.own_cpu_ns, quality.recording_ns, quality.unfinished) == (3 * MS, 40 * MS, "")


@pytest.mark.parametrize(
    ("calls", "are_single"),
    [((), False), (("ncclSend", "cudaMemcpyAsync"), False), (("cudaMemcpyAsync", "cudaLaunchKernel"), True)],
)
def test_spans_stay_single_for_steps_where_launches_were_counted(
    made: HandMade, calls: tuple[str, ...], are_single: bool
) -> None:
    waiting, story = made.stack((made.code("take"), 0, 0)), Story.begin(made)
    for _ in range(10):
        story.run(MS).block(MS, stack=waiting, syscall=FUTEX)
    story.run(MS).total()
    for function in calls:
        made.call(0, function, 2, MS)
    profile = build_profile(made.recording(), ProfileOptions(with_spans=True, adds_up=True))
    assert profile.spans is not None
    assert (len(profile.spans) > 20) == are_single


@pytest.mark.parametrize(("window_ns", "is_part"), [(None, False), ((0, 50 * MS), True)])
def test_whether_it_is_of_a_window_is_known(made: HandMade, window_ns: tuple[int, int] | None, is_part: bool) -> None:
    Story.begin(made).run(90 * MS).total()
    profile = build_profile(made.recording(), ProfileOptions(filter=SpanFilter(window_ns=window_ns)))
    assert profile.is_of_window == is_part


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("both", [("run", 3, 20), ("wait sleep", 23, 24), ("runqueue", 47, 6)]),
        ("cpu", [("run", 3, 20), ("", 23, 30)]),
        ("offcpu", [("", 3, 20), ("wait sleep", 23, 24), ("runqueue", 47, 6)]),
    ],
)
def test_one_mode_shows_one_half(made: HandMade, mode: str, shown: list[tuple[str, float, float]]) -> None:
    made.start["mode"] = mode
    run = made.stack((made.code("run"), 0, 0))
    status = Status.STACK_NOT_TAKEN if mode == "cpu" else Status.OK
    story = Story.begin(made, first_ns=START_NS + 3 * MS).run(20 * MS, *[(5 * MS, run)][mode == "offcpu" :])
    story.block(24 * MS, 6 * MS, 0 if mode == "cpu" else run, status=status).total()
    profile = built(made, 53)
    assert shown_ms(profile) == shown
    assert sum(spent_ms(profile).values()) == sum(ms for leaf, _, ms in shown if leaf)
    assert profile.threads[0].accounted_ns == 50 * MS, "the totals are known in every mode"
    assert not profile.quality.truncated_counts, "stacks that nobody asked for are not missing"
    _, thread = json.loads(render_speedscope(profile, RenderOptions()))["profiles"]
    assert (thread["startValue"], thread["endValue"], sum(thread["weights"])) == (3 * MS, 53 * MS, 50 * MS)


def test_lines_and_same_stacks_are_joined(made: HandMade) -> None:
    run = made.code("run", first_line=10)
    first, second, third = made.stack((run, -2, 0)), made.stack((run, -2, 0)), made.stack((run, -2, 1))
    Story.begin(made).run(30 * MS, (5 * MS, first), (15 * MS, second), (25 * MS, third)).total()
    profile = built(made, 30)
    assert len(list(filter(None, profile.stacks))) == 1 and len(profile.weights) == 1
    assert [frame.line for frame in profile.frames] == [10]


def test_what_was_recorded(made: HandMade) -> None:
    made.start |= {"host_name": "node", "kernel_release": "6.1", "bpfprof_version": "0.1", "started_unix_ns": 5}
    Story.begin(made).run(5 * MS).total()
    info = built(made, 5).info
    assert (info.command_line, info.duration_ns, info.rate_hz) == (("python", "train.py"), 5 * MS, 100)
    assert (info.host_name, info.kernel_release, info.bpfprof_version, info.event) == (
        "node",
        "6.1",
        "0.1",
        "cpu-clock",
    )
    assert info.started_unix_ns == 5 and info.mode == "both"


def test_without_being_asked_a_profile_has_no_spans(made: HandMade) -> None:
    Story.begin(made).run(10 * MS).block(20 * MS, ready=MS).run(5 * MS).total()
    profile, bare = built(made, 36), build_profile(made.recording())
    assert bare.spans is None and bare.threads == profile.threads
    assert spent_ms(bare) == spent_ms(profile)


def test_events_are_no_part_of_the_time() -> None:
    without, made = small().recording(), small()
    made.event("page-faults", 0, START_NS + 5 * MS, 2, 1)
    made.event("cs", 1, START_NS + 6 * MS, 1, 0, status=Status.STACK_LOST)
    profile = build_profile(made.recording())
    assert profile.events == ("page-faults", "cs")
    assert profile.event_weights[["event", "thread", "count", "total"]].tolist() == [(0, 0, 2, 42), (1, 1, 1, 1)]
    before = build_profile(without)
    assert profile.threads == before.threads and profile.weights["total_ns"].sum() == before.weights["total_ns"].sum()
    counts = [sum(each.quality.truncated_counts.values()) for each in (profile, before)]
    assert counts[0] == counts[1] + 1, "what its stacks lack is told"


@pytest.mark.parametrize(
    ("wanted", "total"),
    [
        (SpanFilter(window_ns=(0, 4 * MS)), 40),
        (SpanFilter(window_ns=(4 * MS, 9 * MS)), 2),
        (SpanFilter(thread=re.compile("100")), 42),
        (SpanFilter(thread=re.compile("101")), 0),
        (SpanFilter(function=re.compile("Worker")), 42),
        (SpanFilter(holds_gil=True), 2),
        (SpanFilter(states=ON_CPU), 42),
        (SpanFilter(states=OFF_CPU), 0),
        (SpanFilter(reasons=("lock",)), 0),
    ],
)
def test_events_are_filtered_as_time_on_a_cpu(wanted: SpanFilter, total: int) -> None:
    made = small()
    made.event("page-faults", 0, START_NS + 5 * MS, 2, 1, flags=HOLDS_GIL)
    profile = build_profile(made.recording(), ProfileOptions(filter=wanted))
    assert profile.event_weights["total"].sum() == total
