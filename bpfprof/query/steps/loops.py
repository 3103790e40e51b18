"""What a thread was seen at, one thing after the other -> where in it a loop began again.

In a function the lines go forward until a loop takes them back, or the function is called again. So each step back in
the lines of a function crosses a border between two of its lines; a loop crosses the borders within it once a turn,
and loops within loops cross theirs more often. What is asked of a border is how often it is crossed, and whether each
crossing would have been seen: it is where on both sides there was more than one sample, or a wait, each time.

Turns that are too short for samples are told by waits at one line, if the thread computes as long between any two of
them, and what samples there are were at other lines then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools, StackFrames

SURE = 2  # so much evidence of what was done once: it was hardly missed another time
_LEAST_PART = 0.5  # of a thread's time that a function has, in which its loop may be
_MOST_FUNCTIONS = 64
_MOST_BORDERS = 4  # of those that are crossed about as often
_ALIKE = 1.25
_LEAST_RUNS, _MOST_TURNS, _FITS = 30, 64, 0.9
LEAST_TURNS = 3
_LONG = 5  # times the shortest wait that has a row
_APART, _DOUBLE, _FEW = 3.0, 1.6, 0.03


@dataclass(frozen=True)
class Seen:
    """What a thread did, in the order of time: one place for each stretch in which it was seen with one stack.

    from_ns: when it began, of a sample halfway from what was seen before.
    """

    stack: Ints
    begin_ns: Ints
    end_ns: Ints
    from_ns: Ints
    ns: Ints  # how much time it speaks for
    evidence: Ints  # SURE of a wait far longer than the shortest that has a row, 1 of others; of a CPU its samples
    is_wait: Bools
    cpu_ns: Ints  # of the thread, until it begins


@dataclass(frozen=True)
class Turns:
    """One way to tell the turns of a loop. begin: the place in Seen where each begins, but for the first of all.

    function: a place in Profile.frames; coverage: its part of the thread's time; sure: the part of the turns that had
    evidence enough on either side of the border.
    """

    function: int
    coverage: float
    begin: Ints
    sure: float
    is_by_wait: bool = False


def what_was_seen(profile: Profile, thread: int, stack_frames: StackFrames) -> Seen:
    """Waits, what was preempted, and samples; without Python frames they say nothing.

    The profile has its spans, in their order, and its samples.
    """
    assert profile.spans is not None
    spans = profile.spans[slice(*np.searchsorted(profile.spans["thread"], [thread, thread + 1]))]
    samples = profile.samples[slice(*np.searchsorted(profile.samples["thread"], [thread, thread + 1]))]
    waits = spans[np.isin(spans["state"], (ThreadState.OFF_CPU, ThreadState.RUNQUEUE)) & (spans["wait"] > 0)]
    is_wait = (waits["state"] == ThreadState.OFF_CPU) & (waits["one_in"] <= 1)
    is_long = waits["duration_ns"] >= _LONG * 1000 * profile.info.min_block_us
    is_preempted = (waits["state"] == ThreadState.RUNQUEUE) & (waits["task_state"] == 0)
    period_ns = round(1e9 / max(1, profile.info.rate_hz))
    columns = [
        (waits["stack"], samples["stack"]),
        (waits["start_ns"], samples["time_ns"]),
        (waits["start_ns"] + waits["duration_ns"], samples["time_ns"]),
        (waits["duration_ns"], np.full(len(samples), period_ns)),
        (np.where(is_wait, np.where(is_long, SURE, 1), is_preempted), np.ones(len(samples))),
        (np.where(is_wait, waits["wait"], 0), np.zeros(len(samples))),
    ]
    stack, begin_ns, end_ns, ns, evidence, wait = (np.concatenate(both).astype(np.int64) for both in columns)
    chosen = np.flatnonzero(np.append(stack_frames.innermost_python() >= 0, False)[stack])
    chosen = chosen[np.argsort(begin_ns[chosen], kind="stable")]
    stack, begin_ns, end_ns, ns, evidence, wait = (
        each[chosen] for each in (stack, begin_ns, end_ns, ns, evidence, wait)
    )
    first = np.flatnonzero((np.diff(stack, prepend=-1) != 0) | ((wait > 0) & (np.diff(wait, prepend=-1) != 0)))
    if not len(first):
        none = np.zeros(0, np.int64)
        return Seen(none, none, none, none, none, none, none > 0, none)
    begin_ns, end_ns = begin_ns[first], end_ns[np.append(first[1:], len(stack)) - 1]
    from_ns = begin_ns.copy()
    from_ns[1:] = np.where(wait[first] > 0, begin_ns, (np.append(0, end_ns[:-1]) + begin_ns) // 2)[1:]
    ns, evidence = (np.add.reduceat(each, first) for each in (ns, evidence))
    return Seen(stack[first], begin_ns, end_ns, from_ns, ns, evidence, wait[first] > 0, _cpu_ns(spans, begin_ns))


def _cpu_ns(spans: npt.NDArray[np.void], moments_ns: Ints) -> Ints:
    """CPU time of the thread up to each moment."""
    on_cpu = spans[spans["state"] == ThreadState.ON_CPU]
    if not len(on_cpu):
        return np.zeros(len(moments_ns), np.int64)
    edges = np.stack([on_cpu["start_ns"], on_cpu["start_ns"] + on_cpu["duration_ns"]], axis=1).reshape(-1)
    passed = np.cumsum(on_cpu["duration_ns"])
    spent = np.stack([passed - on_cpu["duration_ns"], passed], axis=1).reshape(-1)
    return np.asarray(np.interp(moments_ns, edges, spent)).astype(np.int64)


def lines_of(stack_frames: StackFrames, functions: Ints, function: int) -> Ints:
    """For each stack the line of the outermost call of the function, 0: it has none. functions: for each frame."""
    found = np.zeros(stack_frames.count + 1, np.int64)
    places = np.flatnonzero(functions[stack_frames.flat] == function)
    stacks, first = np.unique(stack_frames.stack_of[places], return_index=True)
    lines = np.array([frame.line for frame in stack_frames.frames] or [0], np.int64)
    found[stacks] = lines[stack_frames.flat[places[first]]].clip(1)
    return found


def all_turns(seen: Seen, stack_frames: StackFrames, functions: Ints, is_python: Bools) -> Iterator[Turns]:
    """Of the functions that have most of the thread's time, by their lines and by their calls."""
    for function, coverage in _covering(seen, stack_frames, functions, is_python):
        lines = lines_of(stack_frames, functions, function)[seen.stack]
        yield from turns_by_line(seen, lines, function, coverage)
        yield from turns_by_call(seen, lines > 0, function, coverage)
        yield from turns_by_wait(seen, lines, function, coverage)


def turns_by_call(seen: Seen, is_inside: Bools, function: int = -1, coverage: float = 1.0) -> Iterator[Turns]:
    """Each begins where the function is on the stack again."""
    begin = np.flatnonzero(np.diff(is_inside.astype(np.int64), prepend=1) > 0)
    if len(begin) >= LEAST_TURNS:
        yield Turns(function, coverage, begin, _sure_part(is_inside, seen.evidence))


def turns_by_line(seen: Seen, lines: Ints, function: int = -1, coverage: float = 1.0) -> Iterator[Turns]:
    """Where its lines go back. lines: for each place of `seen`, 0: not in the function, which is passed over."""
    inside = np.flatnonzero(lines)
    known, rank = np.unique(lines[inside], return_inverse=True)
    back = np.flatnonzero(np.diff(rank) < 0)
    if len(known) < 2 or len(back) < LEAST_TURNS:
        return
    crossed = np.zeros(len(known) + 1, np.int64)
    np.add.at(crossed, rank[back + 1], 1)
    np.add.at(crossed, rank[back], -1)
    counts = np.cumsum(crossed)[: len(known) - 1]  # of the border after each line
    evidence = seen.evidence[inside]
    for borders in _alike(counts):
        found = []
        for border in borders.tolist():
            is_low = rank <= border
            begin = np.flatnonzero(np.diff(is_low.astype(np.int64), prepend=1) > 0)
            found.append(Turns(function, coverage, inside[begin], _sure_part(is_low, evidence)))
        yield max(found, key=lambda turns: (round(turns.sure, 2), len(turns.begin)))


def turns_by_wait(seen: Seen, lines: Ints, function: int = -1, coverage: float = 1.0) -> Iterator[Turns]:
    """Each begins with a wait at one line, after about as much CPU time as any other."""
    values, counts = np.unique(lines[(lines > 0) & seen.is_wait], return_counts=True)
    is_sample = ~seen.is_wait & (seen.evidence > 0)
    sampled = np.append(0, np.cumsum(is_sample))
    for line in values[np.argsort(-counts, kind="stable")][:_MOST_BORDERS].tolist():
        is_here = lines == line
        elsewhere = np.append(0, np.cumsum(is_sample & ~is_here))
        waits = np.flatnonzero(is_here & seen.is_wait)
        between_ns = np.diff(seen.cpu_ns[waits])
        begin = waits[1:][between_ns >= _long_from(between_ns)]
        if len(begin) <= LEAST_TURNS:
            continue
        turns_ns = np.diff(seen.cpu_ns[begin])
        usual = np.median(turns_ns)
        samples = sampled[begin[1:]] - sampled[begin[:-1]]
        others = elsewhere[begin[1:]] - elsewhere[begin[:-1]]
        is_double = turns_ns >= _DOUBLE * usual
        if others.sum() * 2 >= samples.sum() > 0 and np.mean(is_double) <= _FEW:
            sure = float(np.mean(~is_double & (turns_ns * _DOUBLE >= usual)))
            yield Turns(function, coverage, begin, sure, is_by_wait=True)


def _long_from(between_ns: Ints) -> float:
    """From which time on it is that of a turn: where there are much shorter ones too they are of waits within one."""
    ordered = np.sort(between_ns.clip(1))
    if len(ordered) < 2:
        return 0.0
    steps = ordered[1:] / ordered[:-1]
    steps[: len(steps) // 20] = 0  # a few may be shorter for any reason
    steps[len(steps) - len(steps) // 20 - 1 :] = 0
    place = int(np.argmax(steps))
    return float(ordered[place + 1]) if steps[place] >= _APART else 0.0


def _alike(counts: Ints) -> Iterator[Ints]:
    """Borders that are crossed about as often, some of each sort; those of one count have the same turns mostly."""
    values = np.unique(counts[counts >= LEAST_TURNS])
    if not len(values):
        return
    sort_of = np.cumsum(np.append(0, values[1:] > _ALIKE * values[:-1]))
    for sort in range(int(sort_of[-1]) + 1):
        own = values[sort_of == sort]
        often = own[np.argsort([-int((counts == value).sum()) for value in own], kind="stable")][:_MOST_BORDERS]
        yield np.array([np.flatnonzero(counts == value)[0] for value in often], np.int64)


def _sure_part(is_low: Bools, evidence: Ints) -> float:
    """Of the stretches on either side those with evidence enough; but for the first and the last, which are cut."""
    first = np.flatnonzero(np.diff(is_low.astype(np.int64), prepend=-1))
    found = np.add.reduceat(evidence, first)[1:-1]
    sides = [found[::2], found[1::2]]
    return float(min(np.mean(side >= SURE) if len(side) else 0.0 for side in sides))


def _covering(seen: Seen, stack_frames: StackFrames, functions: Ints, is_python: Bools) -> list[tuple[int, float]]:
    """(function, its part of the time), the outermost first."""
    ns = np.bincount(seen.stack, seen.ns, stack_frames.count + 1)
    chosen = np.flatnonzero(is_python[stack_frames.flat] & (ns[stack_frames.stack_of] > 0))
    keys = stack_frames.stack_of[chosen] * len(functions) + functions[stack_frames.flat[chosen]]
    pairs, first = np.unique(keys, return_index=True)
    stack_of, function = np.divmod(pairs, len(functions))
    spent = np.bincount(function, ns[stack_of], len(functions))
    found = np.flatnonzero(spent >= _LEAST_PART * max(float(ns.sum()), 1.0))
    place = np.full(len(functions), len(chosen), np.int64)  # where it is first met, to order callers before callees
    depth = chosen[first] - np.searchsorted(stack_frames.stack_of, stack_of)
    np.minimum.at(place, function, depth)
    order = sorted(found.tolist(), key=lambda each: (-spent[each], place[each]))[:_MOST_FUNCTIONS]
    return [(each, float(spent[each] / ns.sum())) for each in order]


def every_so_many(begin: Ints, runs: Ints) -> Ints:
    """begin, or of turns of which only every second, third and so on has one of `runs` in it those that follow these.

    Both in the order of time. That nine in ten of 30 gaps are even by chance has a probability of 4 in a million: fewer
    than _LEAST_RUNS say nothing. Between two runs where turns were missed, or told twice, the time tells how many.
    """
    turn = np.unique(np.searchsorted(begin, runs, side="right") - 1)
    turn = turn[(turn >= 0) & (turn < len(begin) - 1)]
    gaps = np.diff(turn)
    fits = [count for count in range(2, _MOST_TURNS + 1) if np.mean(gaps % count == 0) >= _FITS] if len(gaps) else []
    if len(gaps) < _LEAST_RUNS or not fits:
        return begin
    every, took_ns = fits[-1], np.diff(begin[turn + 1])
    usual_ns = float(np.median((took_ns * every / gaps)[gaps % every == 0]))
    counts = np.where(gaps % every == 0, gaps // every, np.minimum(gaps, np.rint(took_ns / usual_ns).clip(1)))
    inside = [
        np.linspace(first, first + gap, count, endpoint=False, dtype=np.int64)
        for first, gap, count in zip((turn[:-1] + 1).tolist(), gaps.tolist(), counts.astype(np.int64).tolist())
    ]
    before = np.arange(turn[0] + 1 - every, -1, -every)[::-1]
    chosen = np.concatenate([before, *inside, np.arange(turn[-1] + 1, len(begin), every)])
    return np.asarray(begin[chosen])
