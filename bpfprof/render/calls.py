"""Profile -> functions with times of their own, and calls with the time below them, for formats of calls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field

from bpfprof.dataclass import dataclass
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import file_names, frame_label, printable, process_label, thread_label

KINDS = (ThreadState.ON_CPU, ThreadState.RUNQUEUE, ThreadState.OFF_CPU)  # in the order of all times here


@dataclass(frozen=True)
class Function:
    """file, object: "" where there is none. A thread is the outermost function of its stacks, its process its file."""

    name: str
    file: str = ""
    object: str = ""


@dataclass
class Times:
    """CPU, ready and wait, and how many samples and intervals."""

    units: list[int] = field(default_factory=lambda: [0, 0, 0])
    count: int = 0

    def add(self, kind: int, units: int, count: int) -> None:
        self.units[kind] += units
        self.count += count

    def take(self, other: Times) -> None:
        self.units = [one + more for one, more in zip(self.units, other.units)]
        self.count += other.count


@dataclass
class Calls:
    """own: of a function at a line, what it spent itself. below: of a function, with all that it called; of a
    (caller, its line, callee) the same; pairs: of (caller, callee), whatever the line, and pair_own what the callee
    spent itself then. What a stack has more than once counts once. lines: the lowest seen of each.
    """

    own: defaultdict[tuple[Function, int], Times] = field(default_factory=lambda: defaultdict(Times))
    below: defaultdict[Function, Times] = field(default_factory=lambda: defaultdict(Times))
    calls: defaultdict[tuple[Function, int, Function], Times] = field(default_factory=lambda: defaultdict(Times))
    pairs: defaultdict[tuple[Function, Function], Times] = field(default_factory=lambda: defaultdict(Times))
    pair_own: defaultdict[tuple[Function, Function], Times] = field(default_factory=lambda: defaultdict(Times))
    lines: dict[Function, int] = field(default_factory=dict)


def functions_of(profile: Profile, options: RenderOptions) -> list[tuple[Function, int]]:
    """For each frame its function, and its line (0: not known, or not wanted)."""
    files = file_names(profile, options)
    found = []
    for frame in profile.frames:
        if frame.kind == FrameKind.PYTHON:
            function = Function(printable(frame.name) or "[unknown]", files[frame.file])
        elif frame.kind in (FrameKind.NATIVE, FrameKind.INLINED):
            function = Function(frame_label(frame, files, True), "", printable(frame.file))
        else:
            function = Function(frame_label(frame, files, True))
        is_python = frame.kind == FrameKind.PYTHON and not options.function_only
        found.append((function, frame.line if is_python else 0))
    return found


def calls_of(profile: Profile, options: RenderOptions, unit_ns: int = 1) -> Calls:
    """Times in units of unit_ns. For each kind they add up to its nanoseconds, rounded once."""
    functions, found = functions_of(profile, options), Calls()
    roots = [Function(thread_label(each), process_label(each)) for each in profile.threads]
    seen_ns, given = [0] * len(KINDS), [0] * len(KINDS)
    of_stacks: defaultdict[int, Times] = defaultdict(Times)
    for thread, stack, state, count, ns in profile.weights[["thread", "stack", "state", "count", "total_ns"]].tolist():
        if state not in KINDS:
            continue
        kind = KINDS.index(state)
        seen_ns[kind] += ns
        units = (seen_ns[kind] + unit_ns // 2) // unit_ns - given[kind]
        given[kind] += units
        of_stacks[stack].add(kind, units, count)
        _add_root(found, roots[thread], [functions[frame] for frame in profile.stacks[stack][:2]], kind, units, count)
    for stack, times in of_stacks.items():
        _add(found, [functions[frame] for frame in profile.stacks[stack]], times)
    return found


def _add_root(
    found: Calls, root: Function, path: list[tuple[Function, int]], kind: int, units: int, count: int
) -> None:
    """path: the outermost two functions that it calls, or what there is of them."""
    found.lines[root] = 0
    found.below[root].add(kind, units, count)
    if not path:
        found.own[root, 0].add(kind, units, count)
        return
    pair = root, path[0][0]
    found.calls[root, 0, path[0][0]].add(kind, units, count)
    found.pairs[pair].add(kind, units, count)
    if len(path) == 1:
        found.pair_own[pair].add(kind, units, count)


def _add(found: Calls, path: list[tuple[Function, int]], times: Times) -> None:
    """What one stack has of all threads; each function and call once, in an order that is always the same."""
    if not path:
        return
    found.own[path[-1]].take(times)
    for function, line in path:
        found.lines[function] = min(found.lines.get(function) or line, line or found.lines.get(function, 0))
    for function in dict.fromkeys([function for function, _ in path]):
        found.below[function].take(times)
    for call in dict.fromkeys([(caller, line, callee) for (caller, line), (callee, _) in zip(path, path[1:])]):
        found.calls[call].take(times)
    pairs = [(caller, callee) for (caller, _), (callee, _) in zip(path, path[1:])]
    for pair in dict.fromkeys(pairs):
        found.pairs[pair].take(times)
    if pairs:
        found.pair_own[pairs[-1]].take(times)
