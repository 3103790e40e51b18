"""Profile -> a file for KCachegrind and callgrind_annotate (https://valgrind.org/docs/manual/cl-format.html)."""

from __future__ import annotations

from collections import defaultdict

from bpfprof.model.profile import Profile
from bpfprof.render.calls import Calls, Function, calls_of
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable


def render_callgrind(profile: Profile, options: RenderOptions) -> str:
    """Microseconds of CPU, ready and wait. A call is counted as often as it was seen: in samples and intervals."""
    calls = calls_of(profile, options, 1000)
    totals = [sum(times.units[kind] for times in calls.own.values()) for kind in range(3)]
    lines = [
        "# callgrind format",
        "version: 1",
        f"creator: bpfprof {printable(profile.info.bpfprof_version)}".rstrip(),
        f"cmd: {printable(' '.join(profile.info.command_line))}".rstrip(),
        "positions: line",
        "event: CPU : time on a CPU, microseconds",
        "event: Ready : time ready to run, microseconds",
        "event: Wait : time in waits, microseconds",
        "events: CPU Ready Wait",
        f"summary: {_numbers(totals)}",
    ]
    by_function = _by_function(calls)
    for function in calls.below:
        lines += ["", *_place(function, "")]
        lines += by_function[function]
    return "\n".join([*lines, "", f"totals: {_numbers(totals)}"]) + "\n"


def _by_function(calls: Calls) -> defaultdict[Function, list[str]]:
    """For each function the lines of its own time, then of its calls."""
    found: defaultdict[Function, list[str]] = defaultdict(list)
    for (function, line), times in calls.own.items():
        found[function].append(f"{line} {_numbers(times.units)}")
    for (caller, line, callee), times in calls.calls.items():
        found[caller] += [*_place(callee, "c"), f"calls={times.count} {calls.lines[callee]}"]
        found[caller].append(f"{line} {_numbers(times.units)}")
    return found


def _place(function: Function, prefix: str) -> list[str]:
    """All three, because each one that is left out is that of the line before."""
    return [
        f"{prefix}ob={function.object or '???'}",
        f"{prefix}fi={function.file or '???'}" if prefix else f"fl={function.file or '???'}",
        f"{prefix}fn={function.name}",
    ]


def _numbers(units: list[int]) -> str:
    return " ".join(map(str, units))
