"""A Profile with its spans and samples -> the steps of its threads: turns of a loop, calls of a function, or marks.

A thread's time repeats in many loops, one in the other. The step of a training loop is the one in which an optimizer
runs once; where none is seen, data is waited for once, or a backward pass follows a forward pass once. Of any other
program it is the most regular loop. Turns that were not all seen are no steps: their number would be a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.known.patterns import PhasePattern
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.steps.anchors import agrees, anchors_of
from bpfprof.query.steps.loops import (
    LEAST_TURNS,
    Seen,
    Turns,
    all_turns,
    every_so_many,
    lines_of,
    turns_by_call,
    turns_by_line,
    what_was_seen,
)
from bpfprof.query.steps.phases import BACKWARD, FORWARD, OPTIMIZER, PHASES, StackPhases, find_phases
from bpfprof.query.steps.pieces import Pieces, cut_spans

Floats = npt.NDArray[np.float64]
LOOP, CALLS, MARKS = "loop", "calls", "marks"
STEP = "step"  # what marks of steps are called
_SURE_PART = 0.9  # of the turns; of the others some may have been missed
_MOST_PROCESSES = 64
_WHOLE = 0.8  # of a thread's time that a loop without phases has
_AS_GOOD = 0.12  # logarithm of how often an anchor is seen in a turn
_ABOUT_AS_LONG = 0.3
_DOUBLE, _HALF = 1.6, 0.4  # of the usual length: a turn that was two, each of which has so much at least


@dataclass(frozen=True)
class Steps:
    """Those of one thread, a place in Profile.threads, in the order of time; they do not overlap.

    how: LOOP, each ends where the next begins; CALLS or MARKS, time between them is of none. where: the function; name:
    of a mark. begin_ns, end_ns: since the recording began, (count). phase_ns: how long each was in each phase, (count,
    len(phases)); `other` is the last. unclear: why there are none, though time repeats; "" of steps.
    """

    thread: int
    how: str
    where: Frame | None
    begin_ns: Ints
    end_ns: Ints
    phases: tuple[str, ...]
    phase_ns: Floats
    name: str = ""
    unclear: str = ""

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def durations_ns(self) -> Ints:
        """For each."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class StepsWanted:
    """function: whose calls are the steps; None: they are found. patterns: of phases, beside those that are known."""

    function: re.Pattern[str] | None = None
    patterns: Sequence[PhasePattern] = field(default=())


_ANY = StepsWanted()


def find_steps(profile: Profile, wanted: StepsWanted = _ANY) -> list[Steps]:
    """One for each process that has any, or seems to, with most time in them first, of at most 64 processes.

    For each process they are looked for in its main thread; calls of a function in the thread that has most of it.
    Raises ValueError for a profile without spans; it is to be built with its samples, too.
    """
    if profile.spans is None:
        raise ValueError("steps are found in a profile that was built with its spans")
    stack_frames = StackFrames(profile.frames, profile.stacks)
    phases = find_phases(profile.frames, stack_frames, wanted.patterns)
    # A phase of the user's own takes none of those away that tell what a step is.
    known = find_phases(profile.frames, stack_frames, [each for each in wanted.patterns if each.phase in PHASES])
    found = _marked(profile, phases, wanted.function)
    if found:
        return found
    for thread in _threads(profile, stack_frames, wanted.function):
        seen = what_was_seen(profile, thread, stack_frames)
        steps = _found(profile, thread, seen, stack_frames, phases, known, wanted.function)
        found += [steps] if steps is not None else []
    return sorted(found, key=lambda each: (bool(each.unclear), not _computes(each), -int(each.durations_ns.sum())))


def _computes(steps: Steps) -> bool:
    """Whether there is a model in them; the loop of a loader that makes data has none."""
    computing = [steps.phases.index(name) for name in (FORWARD, BACKWARD, OPTIMIZER) if name in steps.phases]
    return bool(steps.phase_ns[:, computing].sum() > 0)


def _marked(profile: Profile, phases: StackPhases, asked: re.Pattern[str] | None) -> list[Steps]:
    """For each process the thread that marked most; called STEP if any are, or what is asked for."""
    names = [name == STEP if asked is None else bool(asked.search(name)) for name in profile.mark_names]
    marks = profile.marks[np.array([*names, False])[profile.marks["name"]]]
    best: dict[int, tuple[int, int, int]] = {}
    pairs, counts = np.unique(marks[["thread", "name"]], return_counts=True)
    for (thread, name), count in zip(pairs.tolist(), counts.tolist()):
        pid = int(profile.threads[thread].pid)
        best[pid] = max(best.get(pid, (0, 0, 0)), (count, thread, name))
    found = []
    for _, thread, name in best.values():
        own = marks[(marks["thread"] == thread) & (marks["name"] == name)]
        begin_ns, end_ns = own["start_ns"], own["start_ns"] + own["duration_ns"]
        # Of one in another the outer.
        last_ns = np.append(np.int64(-1), np.maximum.accumulate(end_ns)[:-1])
        apart = begin_ns >= last_ns
        begin_ns, end_ns = begin_ns[apart], end_ns[apart]
        found.append(steps_of(profile, thread, MARKS, None, begin_ns, end_ns, phases, profile.mark_names[name]))
    return sorted(found, key=lambda each: -int(each.durations_ns.sum()))


def _threads(profile: Profile, stack_frames: StackFrames, function: re.Pattern[str] | None) -> list[int]:
    """For each process the thread whose steps they are."""
    assert profile.spans is not None
    if function is None:
        has_python = np.append(stack_frames.innermost_python() >= 0, False)
        own = profile.spans[has_python[profile.spans["stack"]]]
        spent = np.bincount(own["thread"], own["duration_ns"], len(profile.threads))
        is_main = [int(thread.tid) == int(thread.pid) for thread in profile.threads]
        return [each for each in np.argsort(-spent, kind="stable").tolist() if is_main[each] and spent[each]][
            :_MOST_PROCESSES
        ]
    is_it = [frame.kind == FrameKind.PYTHON and bool(function.search(frame.name)) for frame in profile.frames]
    has_it = np.append(stack_frames.have(is_it), False)
    own = profile.spans[has_it[profile.spans["stack"]]]
    spent = np.bincount(own["thread"], own["duration_ns"], len(profile.threads))
    best: dict[int, int] = {}
    for place in np.argsort(-spent, kind="stable").tolist():
        if spent[place] > 0:
            best.setdefault(int(profile.threads[place].pid), place)
    return [*best.values()]


def _found(
    profile: Profile,
    thread: int,
    seen: Seen,
    stack_frames: StackFrames,
    phases: StackPhases,
    known: StackPhases,
    function: re.Pattern[str] | None,
) -> Steps | None:
    if len(seen.stack) < LEAST_TURNS:
        return None
    functions = np.append(function_of_frames(profile.frames), -1)
    if function is not None:
        return _calls(profile, thread, seen, stack_frames, phases, functions, function)
    is_python = np.array([frame.kind == FrameKind.PYTHON for frame in profile.frames] or [False])
    ways = [*all_turns(seen, stack_frames, functions, is_python)]
    alike = _of_one_loop(seen, ways, known)
    if not alike:
        return None
    sure = [each for each in alike if each.sure >= _SURE_PART]
    best = max(sure or alike, key=lambda each: (not each.is_by_wait, round(20 * each.coverage), each.sure))
    where = _loop_line(profile, seen, stack_frames, functions, best)
    if not sure:
        return _unclear(thread, where, phases, seen, best)
    places, is_once = anchors_of(seen, known)
    others = [seen.from_ns[each.begin] for each in alike if each.sure > _SURE_PART / 2]
    begin = seen.from_ns[best.begin]
    in_optimizer = known.of_stack[seen.stack] == known.names.index(OPTIMIZER)
    of_steps = every_so_many(begin, seen.from_ns[np.flatnonzero(np.diff(in_optimizer.astype(np.int64)) > 0) + 1])
    if len(of_steps) < len(begin):  # gradients of several batches are added up
        return steps_of(profile, thread, LOOP, where, of_steps[:-1], of_steps[1:], phases)
    for each in ways:
        if each.sure >= _SURE_PART and each is not best and not each.is_by_wait:
            begin = _split(begin, seen.from_ns[each.begin])
    begin = _whole(begin, others, seen.begin_ns[places[: len(places) * is_once]])
    return steps_of(profile, thread, LOOP, where, begin[:-1], begin[1:], phases)


def _calls(
    profile: Profile,
    thread: int,
    seen: Seen,
    stack_frames: StackFrames,
    phases: StackPhases,
    functions: Ints,
    function: re.Pattern[str],
) -> Steps | None:
    """A call ends where the function is left, or where its lines go back by as far as they went."""
    assert profile.spans is not None
    names = [
        place for place, it in enumerate(profile.frames) if it.kind == FrameKind.PYTHON and function.search(it.name)
    ]
    best: tuple[float, int] = (0.0, -1)
    for number in {int(functions[place]) for place in names}:
        inside = lines_of(stack_frames, functions, number)[seen.stack] > 0
        best = max(best, (float(seen.ns[inside].sum()), number))
    if best[1] < 0:
        return None
    where = profile.frames[best[1]]
    lines = lines_of(stack_frames, functions, best[1])[seen.stack]
    by_line = sorted(turns_by_line(seen, lines), key=lambda each: len(each.begin))
    by_call = [*turns_by_call(seen, lines > 0)]
    sure_calls = [each for each in by_call if each.sure >= _SURE_PART]
    sure = sure_calls or [each for each in by_line if each.sure >= _SURE_PART]
    if not sure:
        turns = [*by_call, *by_line]
        return _unclear(thread, where, phases, seen, turns[0]) if turns else None
    begin = seen.from_ns[sure[0].begin]
    if not sure_calls:
        return steps_of(profile, thread, CALLS, where, begin[:-1], begin[1:], phases)
    is_inside = (lines > 0).astype(np.int64)
    left = np.flatnonzero(np.diff(is_inside, append=0) < 0)  # the last place of each call
    left = left[left >= sure[0].begin[0]][: len(begin)]
    end = np.append(seen.from_ns, seen.end_ns[-1:])[left + 1]
    is_whole = left < len(is_inside) - 1
    return steps_of(profile, thread, CALLS, where, begin[is_whole], end[is_whole], phases)


def steps_of(
    profile: Profile,
    thread: int,
    how: str,
    where: Frame | None,
    begin_ns: Ints,
    end_ns: Ints,
    phases: StackPhases,
    name: str = "",
) -> Steps:
    """Steps from moments that are known, with the time of their phases."""
    empty = Steps(thread, how, where, begin_ns, end_ns, phases.names, np.zeros((0, 0)), name)
    pieces = pieces_of(profile, empty)
    assert profile.spans is not None
    count = len(phases.names)
    phase = phases_of_spans(profile, thread, phases)[pieces.span - np.searchsorted(profile.spans["thread"], thread)]
    cells = np.bincount(pieces.step * count + phase, pieces.ns, len(begin_ns) * count)
    found = cells.astype(np.float64).reshape(-1, count)
    found[:, -1] += (end_ns - begin_ns) - found.sum(axis=1)  # what no span tells of
    return Steps(thread, how, where, begin_ns, end_ns, phases.names, found, name)


def phases_of_spans(profile: Profile, thread: int, phases: StackPhases) -> Ints:
    """For each span of the thread; of one without a stack that of those before and after, if they are of one phase."""
    assert profile.spans is not None
    begin, end = np.searchsorted(profile.spans["thread"], [thread, thread + 1])
    stack = profile.spans["stack"][begin:end]
    found: Ints = np.append(phases.of_stack, len(phases.names) - 1)[stack]
    known = np.flatnonzero(phases.is_known[stack])
    if not len(known):
        return found
    places = np.arange(len(found))
    before = known[(np.searchsorted(known, places, side="right") - 1).clip(0)]
    after = known[np.searchsorted(known, places).clip(0, len(known) - 1)]
    return np.asarray(np.where(found[before] == found[after], found[before], found))


def pieces_of(profile: Profile, steps: Steps) -> Pieces:
    """What the thread did in its steps."""
    assert profile.spans is not None
    begin, end = np.searchsorted(profile.spans["thread"], [steps.thread, steps.thread + 1]).tolist()
    spans = profile.spans[begin:end]
    cut = cut_spans(spans["start_ns"], spans["start_ns"] + spans["duration_ns"], steps.begin_ns, steps.end_ns)
    return Pieces(cut.span + begin, cut.step, cut.ns)


def _of_one_loop(seen: Seen, ways: list[Turns], phases: StackPhases) -> list[Turns]:
    """Those ways that tell the turns of the loop that matters."""
    places, is_sure = anchors_of(seen, phases)
    anchors = len(places)
    if is_sure:
        ways = [replace(each, sure=1.0) for each in ways if agrees(each, places)] or ways
    elif anchors:  # there may have been more
        certain = [each for each in ways if each.sure >= _SURE_PART and len(each.begin) * 1.1 >= anchors]
        anchors = min([len(each.begin) for each in certain], default=anchors)
        ways = certain or ways
    if anchors:
        often = [abs(math.log(max(1, anchors) / len(each.begin))) for each in ways]
    else:
        whole = [each for each in ways if each.coverage >= _WHOLE]
        ways = [each for each in whole if each.sure >= _SURE_PART]
        if not ways:
            return whole  # they are said not to be counted
        spreads = [_spread_of(np.diff(seen.from_ns[each.begin])) for each in ways]
        # Of those that are about as regular the one with most turns.
        least = min(spreads)
        most = max(len(each.begin) for each, spread in zip(ways, spreads) if spread <= least + 0.1)
        often = [abs(math.log(most / len(each.begin))) for each in ways]
    best = min(often, default=0.0)
    return [each for each, off in zip(ways, often) if off <= best + _AS_GOOD]


def _spread_of(lengths: Ints) -> float:
    """Of the lengths of turns, but for a tenth at either end, by the one in the middle."""
    low, middle, high = np.quantile(lengths, [0.1, 0.5, 0.9])
    return float((high - low) / max(middle, 1.0))


def _split(begin_ns: Ints, inner_ns: Ints) -> Ints:
    """begin_ns, and where a turn has so many turns of a loop in it as several others have together."""
    first = np.searchsorted(inner_ns, begin_ns)
    counts = np.diff(first)
    usual = int(np.bincount(counts).argmax()) if len(counts) else 0
    if usual < 2 or np.mean(counts == usual) < _SURE_PART:
        return begin_ns
    many = np.flatnonzero((counts > usual) & (counts % usual == 0))
    added = [
        inner_ns[first[turn] + usual * part] for turn in many.tolist() for part in range(1, int(counts[turn]) // usual)
    ]
    return np.union1d(begin_ns, np.array(added, np.int64))


def _whole(begin_ns: Ints, others: list[Ints], once_ns: Ints) -> Ints:
    """begin_ns, and where a turn was two that one which another way of telling saw.

    once_ns: when what happens once a step was seen, if it was each time. Else it was two where it is as long as two, if
    turns are about as long as each other.
    """
    spare = np.unique(np.concatenate([begin_ns[:0], *others]))
    added: list[int] = []
    if len(once_ns):
        turn = np.searchsorted(begin_ns, once_ns, side="right")
        for place in np.flatnonzero(np.diff(turn) == 0).tolist():
            between = spare[np.searchsorted(spare, once_ns[place]) : np.searchsorted(spare, once_ns[place + 1])]
            added += between[:1].tolist()
        return np.union1d(begin_ns, np.array(added, np.int64))
    lengths = np.diff(begin_ns)
    if not len(lengths) or _spread_of(lengths) > _ABOUT_AS_LONG:
        return begin_ns
    usual = float(np.median(lengths))
    for place in np.flatnonzero(lengths >= _DOUBLE * usual).tolist():
        at, end = int(begin_ns[place]), int(begin_ns[place + 1])
        for moment in spare[np.searchsorted(spare, at) : np.searchsorted(spare, end)].tolist():
            if min(moment - at, end - moment) >= _HALF * usual:
                added.append(moment)
                at = moment
    return np.union1d(begin_ns, np.array(added, np.int64))


def _loop_line(profile: Profile, seen: Seen, stack_frames: StackFrames, functions: Ints, turns: Turns) -> Frame:
    """The line of the function at which turns mostly begin."""
    lines = lines_of(stack_frames, functions, turns.function)[seen.stack[turns.begin]]
    values, counts = np.unique(lines[lines > 0], return_counts=True)
    first = profile.frames[turns.function]
    line = int(values[np.argmax(counts)]) if len(values) else first.line
    return Frame(first.kind, first.name, first.file, line)


def _unclear(thread: int, where: Frame, phases: StackPhases, seen: Seen, turns: Turns) -> Steps:
    lengths = np.diff(seen.from_ns[turns.begin])
    usual_ns = float(np.median(lengths)) if len(lengths) else 0.0
    none = np.zeros(0, np.int64)
    why = f"turns of {usual_ns / 1e6:.1f} ms or less were not all seen"
    return Steps(thread, LOOP, where, none, none, phases.names, np.zeros((0, len(phases.names))), unclear=why)
