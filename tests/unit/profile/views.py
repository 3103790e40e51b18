"""What a profile holds, as tests like to look at it."""

from __future__ import annotations

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import TIMELINE_DTYPE, WEIGHT_DTYPE, Profile, ThreadState
from tests.unit.recording.hand_made import MS

Spent = dict[tuple[str, ...], float]


def spent_ms(profile: Profile, thread: int, state: ThreadState | None = None) -> Spent:
    """Stack as text, root first -> milliseconds of one thread."""
    found: Spent = {}
    for weight in profile.weights[profile.weights["thread"] == thread]:
        if state is None or weight["state"] == state:
            stack = tuple(text(profile, number) for number in profile.stacks[weight["stack"]])
            found[stack] = found.get(stack, 0) + int(weight["total_ns"]) / MS
    return found


def text(profile: Profile, number: int) -> str:
    frame = profile.frames[number]
    return f"{frame.kind.name.lower()} {frame.name}".strip() if frame.kind != FrameKind.PYTHON else frame.name


def assert_whole(profile: Profile) -> None:
    """Every thread's wall time is accounted for, by totals, by weights, and by a timeline without gap or overlap."""
    assert profile.weights.dtype == WEIGHT_DTYPE
    assert profile.timeline is not None and profile.timeline.dtype == TIMELINE_DTYPE
    for index, thread in enumerate(profile.threads):
        assert thread.accounted_ns == thread.wall_ns
        assert int(profile.weights["total_ns"][profile.weights["thread"] == index].sum()) == thread.wall_ns
        rows = profile.timeline[profile.timeline["thread"] == index]
        if not thread.wall_ns:
            assert not len(rows)
            continue
        ends = rows["start_ns"] + rows["duration_ns"]
        assert (rows["start_ns"][0], ends[-1]) == (thread.first_ns, thread.last_ns)
        assert (rows["start_ns"][1:] == ends[:-1]).all() and (rows["duration_ns"] > 0).all()
        assert sum(ns for _, ns in thread.off_by_reason) == thread.off_cpu_ns
        on_cpu, runqueue, off_cpu = (int(rows["duration_ns"][rows["state"] == state].sum()) for state in ThreadState)
        assert on_cpu == thread.on_cpu_ns and runqueue + off_cpu == thread.runqueue_ns + thread.off_cpu_ns
        if not profile.quality.short_count and not profile.quality.unsampled_count:
            assert (runqueue, off_cpu) == (thread.runqueue_ns, thread.off_cpu_ns)
    keys = [(row["thread"], row["stack"], row["state"]) for row in profile.weights]
    assert len(set(keys)) == len(keys), "one row a thread, stack and state"
