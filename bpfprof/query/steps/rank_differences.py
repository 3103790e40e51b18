"""Loops of ranks -> the steps they make together, which is slowest, what it does more of, what others wait for it.

What a rank waits for the others is no time of its own: its waits in communication, those that another rank ended, and
what it does in communication before all have come there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.clocks import Clocks, clocks_of
from bpfprof.query.steps.collectives import Collectives, collectives_of, until_all_are_there
from bpfprof.query.steps.common_steps import common_begins, slices
from bpfprof.query.steps.phases import COMMUNICATION, OTHER
from bpfprof.query.steps.pieces import Pieces, cut_spans
from bpfprof.query.steps.ranks import CPU_NATIVE, CPU_PYTHON, ON_CPU, READY, UNKNOWN, RankLoop
from bpfprof.query.steps.slow_network import SlowNetwork, slow_network
from bpfprof.query.steps.steps import Floats

_MOST = 0.5
_FOR_IT = 0.25  # of more time ready: with so much more CPU time it is for that
_SECOND = 1e9
_AS_LONG = 0.03  # of a step: a rank is not slower by less
_ERRORS = 3.0  # standard errors, nor by less
_MUCH_LONGER = 3  # times as long as the others wait for one, this waits for a slow network
_CPUS_DIFFER = 0.1  # of the own time of others: one that computes the same takes so much longer where its CPU is slower


@dataclass(frozen=True)
class More:
    """Of what the slowest does: nanoseconds of a step, and of the median of the others."""

    phase: str
    state: str
    function: Frame | None
    ns: float
    others_ns: float

    @property
    def more_ns(self) -> float:
        return self.ns - self.others_ns


@dataclass(frozen=True)
class Cause:
    """What the slowest does more of than the others: in the phase, in the state in it, and of that in a function.

    state_ns: more in this state in all phases. ended_by: who ended most of such waits, "" where nothing says more.
    """

    phase: More
    state: More
    function: More
    state_ns: float
    ended_by: str


@dataclass(frozen=True)
class Parts:
    """The steps of a loop. begin_ns: since the recording began; own_ns: for each its own time; inside_ns: of it what is
    in communication; waits_ns: what it waits for others. cut: its spans at them. Of slices of time the figures are of a
    second; unit: what part each is of it."""

    begin_ns: Ints
    own_ns: Floats
    inside_ns: Floats
    waits_ns: Floats
    cut: Pieces
    unit: float

    @property
    def outside_ns(self) -> Floats:
        """Of own_ns what is not in communication."""
        return self.own_ns - self.inside_ns

    @property
    def count(self) -> int:
        """Steps."""
        return len(self.begin_ns)

    @property
    def mean_own_ns(self) -> float:
        return float(self.own_ns.mean())

    @property
    def mean_waits_ns(self) -> float:
        return float(self.waits_ns.mean())


@dataclass(frozen=True)
class Comparison:
    """loops: by rank; parts: for each. together: whether they step together; then a step of all is from where it
    begins in the loop of which most were seen to where the next does. by_second: steps are not known.

    longest: the place in loops of the one whose own time is longest; is_slow: beyond chance. excess_ns: by how much it
    holds up a step; error_ns: its standard error; late_ns: of it by how much it comes late to collectives, without what
    these take it longer. waited_in: the phase in which the others mostly wait for it, ""
    where that is none, or communication itself.
    """

    loops: tuple[RankLoop, ...]
    together: bool
    by_second: bool
    parts: tuple[Parts, ...]
    longest: int
    is_slow: bool
    excess_ns: float
    error_ns: float
    late_ns: float
    cause: Cause | None
    waited_in: str
    phases: tuple[More, ...]
    activities: tuple[More, ...]
    network: SlowNetwork | None  # for which all of them wait

    @property
    def others(self) -> list[Parts]:
        """Of all but the one whose own time is longest."""
        return [each for place, each in enumerate(self.parts) if place != self.longest]

    @property
    def others_wait_ns(self) -> float:
        """Of a step: how much longer the others wait than the one that takes longest, as a collective takes each its
        time."""
        waits_ns = float(np.mean([each.mean_waits_ns for each in self.others]))
        return max(0.0, waits_ns - self.parts[self.longest].mean_waits_ns)


def compare(loops: Sequence[RankLoop]) -> Comparison:
    """Of two loops or more. Raises ValueError where there is nothing by which they can be compared.

    Loops that communicate, of which too few have steps, make as many of them in a time: they are compared by second.
    """
    clocks = clocks_of(loops)
    begins = common_begins(loops, clocks.zeros_ns)
    counted = [each for each in loops if len(each.steps) > 1]
    times = slices(loops, clocks.zeros_ns) if begins is None and len(counted) < len(loops) else None
    loops = loops if begins or times else counted
    begins = begins or times
    if len(loops) < 2:
        raise ValueError("fewer than two loops have steps, or communicate, at one time")
    per_ns = float(np.diff(times[0][:2])[0]) / _SECOND if times else 1.0
    waits = [_is_wait_for(each, loops) for each in loops]
    collectives = collectives_of(loops, clocks.zeros_ns) if begins and clocks.are_one else None
    if collectives:
        loops, waits = until_all_are_there(loops, waits, collectives, clocks.zeros_ns)
    parts = [
        _parts(each, is_wait, per_ns, *((begins[place][:-1], begins[place][1:]) if begins else ()))
        for place, (each, is_wait) in enumerate(zip(loops, waits))
    ]
    longest = int(np.argmax([each.mean_own_ns for each in parts]))
    rest = [each for place, each in enumerate(parts) if place != longest]
    if begins and collectives:
        late_ns = _later_ns(collectives, longest, begins, clocks) / per_ns
    else:
        late_ns = max(0.0, float(_beyond_before(parts[longest], rest, np.mean)))
    step_ns = float(np.mean([each.mean_own_ns + each.mean_waits_ns for each in parts]))
    excess_ns, error_ns, is_sure = _excess(parts[longest], rest, begins is not None)
    is_slow = excess_ns > _AS_LONG * step_ns and is_sure
    tables = [_times(each, ~is_wait, of_it) for each, is_wait, of_it in zip(loops, waits, parts)]
    differences = [_differences(tables, longest, depth) for depth in (1, 2, 3)]
    cause = _cause(differences, loops[longest], ~waits[longest]) if is_slow else None
    others_own_ns = float(np.median([each.mean_own_ns for each in rest]))
    if cause and not is_stopped(loops[longest]) and _is_of_cpus(cause, differences[1], excess_ns / others_own_ns):
        is_slow, cause = False, None
    network = slow_network(loops, [each.mean_waits_ns for each in parts], step_ns)
    if cause and network is not None and parts[longest].mean_waits_ns > _MUCH_LONGER * excess_ns:
        is_slow, cause = False, None
    return Comparison(
        tuple(loops),
        begins is not None,
        times is not None,
        tuple(parts),
        longest,
        is_slow,
        excess_ns,
        error_ns,
        late_ns,
        cause,
        _waited_in([each for place, each in enumerate(zip(loops, waits, parts)) if place != longest]),
        tuple(differences[0]),
        tuple(differences[2]),
        network if cause is None else None,
    )


def is_stopped(loop: RankLoop) -> bool:
    """Whether a CPU limit stops it often."""
    return loop.throttle is not None and loop.throttle.stops_often


def _excess(one: Parts, rest: Sequence[Parts], together: bool) -> tuple[float, float, bool]:
    """(by how much one holds up a step, its standard error, whether that is beyond chance)"""
    excess_ns = float(_beyond(one, rest, np.mean))
    if not together:
        error_ns = float(np.hypot(_error(one.own_ns), np.median([_error(each.own_ns) for each in rest])))
        return excess_ns, error_ns, excess_ns > _ERRORS * error_ns
    more_ns = np.asarray(_beyond(one, rest, np.asarray))
    error_ns = _error(more_ns)
    return excess_ns, error_ns, excess_ns > _ERRORS * error_ns or _is_mostly(more_ns > 0)


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("inf")


def _is_mostly(are: Bools) -> bool:
    """Whether so many steps are no chance: one that stands still makes any standard error large."""
    return bool(np.sum(are) > len(are) / 2 + _ERRORS * np.sqrt(len(are)) / 2)


def _beyond(one: Parts, rest: Sequence[Parts], of_steps: Callable[[Floats], Any]) -> Any:
    """What of its own time is beyond that of most others: before collectives, and in those that take it longer."""
    inside = of_steps(one.inside_ns) - np.median([of_steps(each.inside_ns) for each in rest], axis=0)
    return _beyond_before(one, rest, of_steps) + (inside if np.mean(inside) > 0 else 0.0)


def _beyond_before(one: Parts, rest: Sequence[Parts], of_steps: Callable[[Floats], Any]) -> Any:
    return of_steps(one.outside_ns) - np.median([of_steps(each.outside_ns) for each in rest], axis=0)


def _later_ns(found: Collectives, place: int, begins: Sequence[Ints], clocks: Clocks) -> float:
    return found.later_ns(place, begins[found.counted_by] + clocks.zeros_ns[found.counted_by])


def _parts(
    loop: RankLoop, is_wait: Bools, unit: float, begin_ns: Ints | None = None, until_ns: Ints | None = None
) -> Parts:
    """unit: how much of what is told of each one has. begin_ns, until_ns: of steps; None: its own."""
    if begin_ns is None or until_ns is None:
        begin_ns, until_ns = loop.steps.begin_ns, loop.steps.end_ns
    cut = cut_spans(loop.start_ns, loop.end_ns, begin_ns, until_ns)
    waits_ns = np.bincount(cut.step, cut.ns * is_wait[cut.span], len(begin_ns)).astype(np.float64)
    own_ns: Floats = (until_ns - begin_ns).astype(np.float64) - waits_ns
    is_inside = loop.communicates & ~is_wait
    inside_ns = np.bincount(cut.step, cut.ns * is_inside[cut.span], len(begin_ns)).astype(np.float64)
    return Parts(begin_ns, own_ns / unit, inside_ns / unit, waits_ns / unit, cut, unit)


def _is_wait_for(loop: RankLoop, loops: Sequence[RankLoop]) -> Bools:
    """For each span whether it is a wait for another rank."""
    pids = {int(each.thread.pid) for each in loops if each.host == loop.host} - {int(loop.thread.pid)}
    states = (*ON_CPU, READY, UNKNOWN)
    is_wait = np.array([activity.state not in states for activity in loop.activities] or [False])[loop.what]
    by_rank = np.array([*(pid in pids for pid, _ in loop.enders), False])[loop.ended_by]
    return np.asarray(is_wait & (loop.communicates | by_rank))


def _waited_in(others: Sequence[tuple[RankLoop, Bools, Parts]]) -> str:
    ns: Counter[str] = Counter()
    for loop, is_wait, of_it in others:
        cut = of_it.cut
        sums = np.bincount(loop.what[cut.span], cut.ns * is_wait[cut.span], len(loop.activities))
        for activity, spent in zip(loop.activities, sums.tolist()):
            ns[activity.within] += spent
    ((phase, most_ns),) = ns.most_common(1) or [("", 0)]
    return phase if phase not in (COMMUNICATION, OTHER) and most_ns > _MOST * sum(ns.values()) else ""


_Times = dict[tuple[str, str, "Frame | None"], float]


def _times(loop: RankLoop, is_own: Bools, parts: Parts) -> _Times:
    """Of a step, its own time by activity, nanoseconds; functions without their lines."""
    cut = parts.cut
    ns = cut.ns * is_own[cut.span]
    sums = np.bincount(loop.what[cut.span], ns, len(loop.activities)) / max(1, parts.count) / parts.unit
    found: _Times = {}
    for activity, ns in zip(loop.activities, sums.tolist()):
        key = activity.phase, activity.state, _without_line(activity.function)
        found[key] = found.get(key, 0.0) + ns
    return found


def phase_times(loop: RankLoop, parts: Parts) -> dict[str, float]:
    """Nanoseconds of a step by phase, waits for others with them."""
    cut, found = parts.cut, dict[str, float]()
    sums = np.bincount(loop.what[cut.span], cut.ns, len(loop.activities)) / max(1, parts.count) / parts.unit
    for activity, ns in zip(loop.activities, sums.tolist()):
        found[activity.phase] = found.get(activity.phase, 0.0) + ns
    return found


def _without_line(frame: Frame | None) -> Frame | None:
    return Frame(frame.kind, frame.name, frame.file) if frame else None


def _differences(tables: Sequence[_Times], longest: int, depth: int) -> list[More]:
    """By phase; by phase and state; or by all; most of more first."""
    added: list[dict[tuple[str, str, Frame | None], float]] = []
    for table in tables:
        sums: dict[tuple[str, str, Frame | None], float] = {}
        for (phase, state, function), ns in table.items():
            key = phase, state if depth > 1 else "", function if depth > 2 else None
            sums[key] = sums.get(key, 0.0) + ns
        added.append(sums)
    found = [
        More(*key, added[longest].get(key, 0.0), _median([one.get(key, 0.0) for one in added], longest))
        for key in {key: None for table in added for key in table}
    ]
    return sorted(found, key=lambda each: -each.more_ns)


def _median(values: Sequence[float], left_out: int) -> float:
    return float(np.median([value for place, value in enumerate(values) if place != left_out]))


def _cause(differences: Sequence[list[More]], loop: RankLoop, is_own: Bools) -> Cause:
    """The largest in the largest in the largest."""
    phases, states, functions = differences
    phase = phases[0]
    of_phase = [each for each in states if each.phase == phase.phase]
    state = of_phase[0]
    if state.state == READY:  # who computes more waits more for a CPU, too
        computes = [one for one in of_phase if one.state in ON_CPU]
        state = next((one for one in computes if one.more_ns > _FOR_IT * state.more_ns), state)
    function = next(each for each in functions if (each.phase, each.state) == (state.phase, state.state))
    state_ns = sum(each.more_ns for each in states if each.state == state.state)
    line = _line_of(loop, is_own, function)
    function = More(function.phase, function.state, line, function.ns, function.others_ns)
    return Cause(phase, state, function, state_ns, _ended_by(loop, is_own, function))


def _is_of_cpus(cause: Cause, states: Sequence[More], part: float) -> bool:
    """Whether its CPU is slower by a little, or it waits for CPUs for which the others wait about as long: who comes
    last to them is chance. part: of the own time of the others, by which it is slower."""
    others_ns = sum(each.others_ns for each in states if each.state == READY)
    waits_as_long = cause.state.state == READY and cause.state_ns < others_ns
    return waits_as_long or (cause.state.state in (CPU_PYTHON, CPU_NATIVE, READY) and part < _CPUS_DIFFER)


def _lengths(loop: RankLoop) -> Ints:
    return loop.end_ns - loop.start_ns


def _are(loop: RankLoop, function: More) -> Bools:
    """For each activity."""
    wanted = function.phase, function.state, _without_line(function.function)
    return np.array(
        [(activity.phase, activity.state, _without_line(activity.function)) == wanted for activity in loop.activities],
        np.bool_,
    )


def _line_of(loop: RankLoop, is_own: Bools, function: More) -> Frame | None:
    """The function at its line with most of the time."""
    sums = np.bincount(loop.what[is_own], _lengths(loop)[is_own], len(loop.activities))
    return loop.activities[int(np.argmax(np.where(_are(loop, function), sums, -1.0)))].function


def _ended_by(loop: RankLoop, is_own: Bools, function: More) -> str:
    """A thread that ended most of these waits, where it is of another process, or a thread of the rank's own."""
    shown = is_own & _are(loop, function)[loop.what] & (loop.ended_by >= 0)
    if not shown.any():
        return ""
    sums = np.bincount(loop.ended_by[shown], _lengths(loop)[shown], len(loop.enders))
    pid, name = loop.enders[int(np.argmax(sums))]
    return name if pid and sums.max() > sums.sum() / 2 else ""
