import json
from dataclasses import replace

import numpy as np
import pytest

from bpfprof.model.spans import How, ThreadState
from bpfprof.query.work.table import work_of
from bpfprof.render import intervals
from bpfprof.render.chrome import render_chrome
from bpfprof.render.formats import RenderOptions
from bpfprof.render.gecko import render_gecko
from bpfprof.render.intervals import MIXED, intervals_of
from tests.unit.render.profiles import (
    MS,
    OFF_CPU,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    empty_profile,
    python,
    training_profile,
    wait,
    waiting_profile,
)


def events_of(profile, kind="X"):
    content = json.loads(render_chrome(profile, RenderOptions()))
    return [event for event in content["traceEvents"] if event["ph"] == kind]


@pytest.mark.parametrize("make", [training_profile, waiting_profile, empty_profile])
@pytest.mark.parametrize("budget", [1_000_000, 20])
def test_no_time_is_lost_however_few_intervals_there_may_be(make, budget: int) -> None:
    profile = make()
    found = intervals_of(profile, work_of(profile), budget)
    assert bool(found.short_ns) == (budget == 20 and make is not empty_profile)
    for index, thread in enumerate(profile.threads):
        rows = found.rows[found.begin[index] : found.begin[index + 1]]
        times = (thread.on_cpu_ns, thread.runqueue_ns, thread.off_cpu_ns, 0)
        assert tuple(rows["state_ns"].sum(axis=0).tolist()) == times
        assert (rows["state_ns"].sum(axis=1) == rows["duration_ns"]).all()
        assert (rows["start_ns"][1:] == (rows["start_ns"] + rows["duration_ns"])[:-1]).all()
        assert (rows["duration_ns"][rows["state"] == MIXED] <= 2 * found.short_ns).all()


def test_what_nothing_tells_apart_is_one_and_each_wait_stays_one() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    for _ in range(3):
        made.spend(thread, ON_CPU, MS, [python("f")])
    for _ in range(2):
        made.wait(thread, MS, [python("f"), wait("lock")])
    profile = made.build()
    rows = intervals_of(profile, work_of(profile)).rows
    assert rows["duration_ns"].tolist() == [3 * MS, MS, MS]
    assert rows["is_last"].tolist() == [False, True, True]


def test_many_short_intervals_are_said_to_be_some(monkeypatch) -> None:
    monkeypatch.setattr(intervals, "_BUCKETS", (4,))
    made = ProfileBuilder()
    thread = made.thread(1)
    for _ in range(20):
        made.spend(thread, ON_CPU, 3 * MS, [python("f")])
        made.spend(thread, RUNQUEUE, 2 * MS, [python("f"), READY])
    made.spend(thread, OFF_CPU, 1900 * MS, [python("f"), wait("disk")])
    monkeypatch.setattr(intervals.intervals_of, "__defaults__", (10,))
    profile = made.build()
    first, second = events_of(profile)
    assert (first["name"], first["args"]) == ("40 short intervals", {"cpu_us": 60_000, "ready_us": 40_000})
    assert second["name"] == "waiting: disk" and second["dur"] == 1_900_000
    (of_thread,) = json.loads(render_gecko(profile, RenderOptions()))["threads"]
    assert of_thread["samples"]["weight"] == [60, 40, 1900, 0]
    assert of_thread["samples"]["threadCPUDelta"] == [0, 60 * MS, 0, 0]


def test_when_a_thread_was_there_is_in_milliseconds() -> None:
    made = ProfileBuilder()
    made.spend(made.thread(1, first_ns=5 * MS), ON_CPU, 3 * MS, [python("f")])
    (of_thread,) = json.loads(render_gecko(made.build(), RenderOptions()))["threads"]
    assert (of_thread["registerTime"], of_thread["unregisterTime"]) == (5, 8)


def test_what_speaks_for_others_says_so_in_a_trace() -> None:
    made = ProfileBuilder()
    thread = made.thread(1)
    made.wait(thread, MS, [python("f"), wait("disk")], stands_for_ns=5 * MS, how=How.ESTIMATED)
    made.wait(thread, 4 * MS, [python("f"), wait("disk")], stands_for_ns=0)
    shown = [(event["dur"], event["args"]["stands_for_us"]) for event in events_of(made.build())]
    assert shown == [(1_000, 5_000), (4_000, 0)]


def test_an_arrow_leads_from_who_woke_to_what_was_woken() -> None:
    profile = waiting_profile()
    begins, ends = events_of(profile, "s"), events_of(profile, "f")
    assert [event["id"] for event in begins] == [event["id"] for event in ends]
    tids = {(begin["tid"], end["tid"]) for begin, end in zip(begins, ends)}
    assert tids <= {(101, 100), (102, 100)} and (101, 100) in tids
    of_main = [event for event in events_of(profile) if event["tid"] == 100]
    waits_end = {round(event["ts"] + event["dur"], 3) for event in of_main if event["cat"] == "wait"}
    assert {event["ts"] for event in ends} <= waits_end


def test_cpus_have_what_samples_saw_there() -> None:
    made = ProfileBuilder()
    one, other = made.thread(1, "one"), made.thread(2, "other")
    made.spend(one, ON_CPU, 10 * MS, [python("f", line=3)], cpu=1)
    made.spend(other, OFF_CPU, 6 * MS, [python("g"), wait("sleep")])
    made.spend(other, ON_CPU, 10 * MS, [python("g")], cpu=1)
    made.spend(other, ON_CPU, 10 * MS, [python("g")])
    samples = [event for event in events_of(made.build()) if event["cat"] == "sample"]
    assert [(event["name"], event["ts"], event["dur"]) for event in samples] == [
        ("one (1)", 0, 6_000),
        ("other (2)", 6_000, 10_000),
    ]
    assert samples[0]["args"] == {"function": "f (train.py:3)"}


def test_hidden_spans_are_gaps() -> None:
    profile = training_profile()
    assert profile.spans is not None
    spans = profile.spans.copy()
    spans["flags"][spans["state"] != ThreadState.ON_CPU] |= 4
    shown = replace(profile, spans=spans)
    assert {event["cat"] for event in events_of(shown)} == {"cpu"}
    assert np.sum(intervals_of(shown, work_of(shown)).rows["state_ns"][:, 1:]) == 0
