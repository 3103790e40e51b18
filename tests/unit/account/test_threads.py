"""What threads did: where they were at the start, where they were at the end, and between."""

from __future__ import annotations

import pytest

from bpfprof.account.threads import collect_threads
from bpfprof.model.profile import Profile
from bpfprof.model.samples import TOTAL_DTYPE
from bpfprof.model.spans import ThreadState
from tests.unit.profile.views import built, spent_ms
from tests.unit.recording.hand_made import BLOCKED, IOCTL, MS, RUNNABLE, START_NS, UNKNOWN, HandMade, Story, row


def times_ms(profile: Profile, thread: int = 0) -> tuple[float, float, float]:
    """(on CPU, blocked, run queue)."""
    who = profile.threads[thread]
    return who.on_cpu_ns / MS, who.off_cpu_ns / MS, who.runqueue_ns / MS


def waits_ms(profile: Profile, thread: int = 0) -> list[tuple[str, float, float]]:
    """(state, start, duration) of what is no CPU time."""
    assert profile.spans is not None
    rows = profile.spans[(profile.spans["thread"] == thread) & (profile.spans["state"] != ThreadState.ON_CPU)]
    return [
        (ThreadState(each["state"]).name, int(each["start_ns"]) / MS, int(each["duration_ns"]) / MS) for each in rows
    ]


def test_a_thread_that_runs_sleeps_and_runs(made: HandMade) -> None:
    Story.begin(made).run(3 * MS).block(10 * MS, ready=2 * MS).run(5 * MS).total()
    profile = built(made, 20)
    assert times_ms(profile) == (8, 10, 2)
    assert waits_ms(profile) == [("OFF_CPU", 3, 10), ("RUNQUEUE", 13, 2)]


def test_asleep_at_the_start(made: HandMade) -> None:
    story = Story.begin(made, state=BLOCKED)
    story.wait = {"syscall": IOCTL, "task_state": 1}
    story.now_ns += 7 * MS
    story.run(3 * MS).total()
    profile = built(made, 10)
    assert times_ms(profile) == (3, 7, 0) and waits_ms(profile) == [("OFF_CPU", 0, 7)]


def test_asleep_from_start_to_end(made: HandMade) -> None:
    values = {"state": BLOCKED, "since_ns": START_NS, "syscall": IOCTL, "task_state": 1, "args": (9, 8, 7)}
    stack = made.stack((made.code("wait"), 0, 0))
    made.thread()
    made.totals.append(row(TOTAL_DTYPE, time_ns=START_NS + 10 * MS, stack=stack, **values))
    profile = built(made, 10)
    assert times_ms(profile) == (0, 10, 0) and waits_ms(profile) == [("OFF_CPU", 0, 10)]
    assert spent_ms(profile) == {("wait", "wait syscall ioctl"): 10}


@pytest.mark.parametrize(
    ("blocked", "ready", "expected"),
    [
        (6, 0, [("OFF_CPU", 4, 6)]),
        (5, 1, [("OFF_CPU", 4, 5), ("RUNQUEUE", 9, 1)]),
        (0, 6, [("RUNQUEUE", 4, 6)]),
    ],
)
def test_what_it_does_at_the_end(made: HandMade, blocked: int, ready: int, expected: list[object]) -> None:
    """Still asleep; woken but not running; runnable all the time."""
    story = Story.begin(made).run(4 * MS)
    (story.block(blocked * MS, ready * MS) if blocked else story.preempt(ready * MS)).total()
    profile = built(made, 10)
    assert times_ms(profile) == (4, blocked, ready) and waits_ms(profile) == expected


def test_running_from_start_to_end(made: HandMade) -> None:
    Story.begin(made).run(10 * MS).total()
    profile = built(made, 10)
    assert times_ms(profile) == (10, 0, 0) and waits_ms(profile) == []


def test_stolen_time_is_run_queue_time(made: HandMade) -> None:
    """Of a thread that still runs, and before a wait."""
    Story.begin(made).run(4 * MS).block(MS).run(3 * MS, stolen=2 * MS).total()
    Story.begin(made, tid=101).run(4 * MS, stolen=3 * MS).block(2 * MS).run(MS).total()
    profile = built(made, 10)
    assert times_ms(profile) == (7, 1, 2) and times_ms(profile, 1) == (5, 2, 3)


def test_born_and_died_in_between(made: HandMade) -> None:
    Story.begin(made).run(20 * MS).total()
    child = Story.begin(made, tid=101, first_ns=START_NS + 5 * MS, state=RUNNABLE)
    child.now_ns += MS
    child.run(2 * MS).block(4 * MS).run(MS).die()
    profile = built(made, 20)
    assert (profile.threads[1].first_ns, profile.threads[1].last_ns) == (5 * MS, 13 * MS)
    assert times_ms(profile, 1) == (3, 4, 1)
    assert waits_ms(profile, 1) == [("RUNQUEUE", 5, 1), ("OFF_CPU", 8, 4)]


def test_no_thread_dies_after_the_end(made: HandMade) -> None:
    """A damaged recording says so: of many such threads the sum would be more than can be counted."""
    Story.begin(made).run(20 * MS).total()
    Story.begin(made, tid=101).run(2 * MS).die()
    made.totals[-1]["since_ns"] = 1 << 58
    made.end = {"end_ns": START_NS + 20 * MS}
    assert collect_threads(made.recording()).last_ns.tolist() == [START_NS + 20 * MS] * 2


def test_the_last_totals_count(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).total().block(3 * MS).total().run(4 * MS).total().block(1 * MS).total()
    profile = built(made, 10)
    assert times_ms(profile) == (6, 4, 0) and waits_ms(profile) == [("OFF_CPU", 2, 3), ("OFF_CPU", 9, 1)]


def test_threads_do_not_mix(made: HandMade) -> None:
    for number in range(5):
        story = Story.begin(made, tid=200 + number)
        for turn in range(4):
            story.run((number + 1) * MS, (MS // 2, 0)).block((turn + 1) * MS)
        story.run((30 - 10 - 4 * (number + 1)) * MS).total()
    made.samples.reverse()
    made.waits.reverse()
    profile, samples = built(made, 30), collect_threads(made.recording()).samples
    for number in range(5):
        assert times_ms(profile, number) == (20, 10, 0)
        assert [blocked for _, _, blocked in waits_ms(profile, number)] == [1, 2, 3, 4]
        own = slice(*samples.begin[number : number + 2].tolist())
        times = samples.column("time_ns", own).tolist()
        assert len(times) == 4 and times == sorted(times)
        assert (samples.column("thread", own) == number).all()


def test_without_an_end_it_ends_with_the_last_thing_seen(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).total().block(3 * MS, ready=MS).run(4 * MS).block(5 * MS).run(MS)
    Story.begin(made, tid=101).run(2 * MS).block(1 * MS).total()
    profile = built(made)
    assert profile.info.duration_ns == 15 * MS, "when the first thread was back on a CPU"
    assert times_ms(profile, 0) == (6, 8, 1)
    assert times_ms(profile, 1) == (2, 13, 0), "nothing was heard of it since: it still sleeps"


def test_without_an_end_and_without_totals(made: HandMade) -> None:
    Story.begin(made).run(2 * MS).block(3 * MS).run(5 * MS).block(2 * MS).run(MS)
    assert times_ms(built(made)) == (7, 5, 0)


def test_without_an_end_the_dead_stay_dead(made: HandMade) -> None:
    Story.begin(made).run(20 * MS).total()
    Story.begin(made, tid=101).run(2 * MS).block(3 * MS).run(1 * MS).die()
    profile = built(made)
    assert times_ms(profile, 1) == (3, 3, 0) and profile.threads[1].last_ns == 6 * MS


def test_without_an_end_no_wait_is_counted_twice(made: HandMade) -> None:
    """The time of the totals is taken before the table is read: a wait may end between the two and be in both."""
    story = Story.begin(made).run(2 * MS).block(3 * MS).run(1 * MS)
    story._total(story.since_ns - 1000)
    Story.begin(made, tid=101).run(20 * MS).total()
    assert times_ms(built(made)) == (17, 3, 0)


def test_without_an_end_the_last_wait_may_be_missing(made: HandMade) -> None:
    """It is written when its times are final; the totals have it already."""
    Story.begin(made).run(2 * MS).block(3 * MS, ready=1 * MS).run(2 * MS).block(4 * MS).run(1 * MS).total()
    made.waits.pop()
    assert times_ms(built(made)) == (5, 7, 1)


def test_totals_without_any_event(made: HandMade) -> None:
    made.thread()
    made.totals.append(row(TOTAL_DTYPE, time_ns=START_NS, since_ns=START_NS, state=UNKNOWN, running_ns=9 * MS))
    assert times_ms(built(made, 10)) == (9, 0, 1), "running all the time, but for what was stolen"


def test_a_recording_of_nothing() -> None:
    profile = built(HandMade())
    assert profile.threads == () and profile.info.duration_ns == len(profile.weights) == len(profile.spans) == 0
