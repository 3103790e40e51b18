"""How the loops of ranks compare -> a sentence and tables for a terminal, or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bpfprof.query.answer.late_rank import limit_text, network_sentence, says
from bpfprof.query.code.functions import function_name
from bpfprof.query.steps.phases import COMMUNICATION
from bpfprof.query.steps.rank_differences import Cause, Comparison, More, phase_times
from bpfprof.query.steps.ranks import RankLoop
from bpfprof.query.steps.slow_network import SlowNetwork
from bpfprof.query.work.places import file_text
from bpfprof.render.columns import COLUMNS, duration_text, shortened, wrapped
from bpfprof.render.header import counted
from bpfprof.render.labels import printable
from bpfprof.render.steps import phases_json

_MOST_ROWS = 6
_MORE_KEYS = ("phase_more_s", "state_more_s", "state_more_in_all_phases_s", "function_more_s")
_LEAST, _PART = 0.05, 0.1  # of the excess: what is less is not shown, nor said


def rank_name(loop: RankLoop) -> str:
    """What it is called, on a terminal."""
    return printable(loop.name)


def file_name(loop: RankLoop) -> str:
    """Of what it was read from."""
    return printable(loop.recording.rsplit("/", 1)[-1])


def compare_sentence(found: Comparison) -> str:
    """The slowest, why, and what the others wait for it."""
    own = [each.mean_own_ns for each in found.parts]
    if found.network is not None:
        return printable(network_sentence(found, found.network, _text))
    if found.cause is None:
        low, high = _text(min(own)), _text(max(own))
        told = f"of each second {low} to {high} are" if found.by_second else f"a step takes each {low} to {high} of"
        return f"No rank is slower than the others beyond chance: {told} its own."
    name, why = printable(found.loops[found.longest].subject), _why(found.cause, found.loops[found.longest])
    share = shares_of_steps(found)[found.longest]
    if share is not None and not found.by_second:
        step_ns = float(np.mean([each.mean_own_ns + each.mean_waits_ns for each in found.others]))
        without = f"Without it a step takes {_text(step_ns - found.others_wait_ns)}, not {_text(step_ns)}"
        return f"{name} is slowest: it comes last in {share:.0%} of steps, {_late(found)}: {why}. {without}."
    others, many = _text(float(np.median([each.mean_own_ns for each in found.others]))), len(found.loops) > 2
    a_step = "of each second" if found.by_second else "a step"
    takes = (
        f"{a_step} {_text(own[found.longest])} are"
        if found.by_second
        else f"a step takes it {_text(own[found.longest])} of"
    )
    told = f"{takes} its own, the {'others' if many else 'other'} {others}"
    waited = f"{'The others wait' if many else 'The other waits'} {_text(found.others_wait_ns)} {a_step} for it"
    return f"{name} is slowest: {told}; {why}. {waited}."


def _late(found: Comparison) -> str:
    within_ns, parts = found.excess_ns - found.late_ns, []
    if found.late_ns > _PART * found.excess_ns:
        parts.append(f"{_text(found.late_ns)} late")
    if within_ns > _PART * found.excess_ns:
        parts.append(f"{_text(within_ns)} longer within collectives")
    return " and ".join(parts)


def _why(cause: Cause, loop: RankLoop) -> str:
    phase = "outside of the known phases" if cause.phase.phase == "other" else f"in {printable(cause.phase.phase)}"
    more = _text(cause.state.more_ns)
    parts = [f"it {printable(says(cause.state.state, more))} {phase}"]
    if cause.state_ns > 1.25 * cause.state.more_ns:
        parts.append(f"{_text(cause.state_ns)} in all phases")
    if cause.function.function is not None:
        parts.append(f"most in {place_text(cause.function)}")
    if cause.ended_by:
        parts.append(f"for {printable(cause.ended_by)}")
    return ", ".join(parts) + printable(limit_text(loop, cause.state.state))


def place_text(each: More) -> str:
    """The function and where it is."""
    frame = each.function
    if frame is None:
        return "code that is not known"
    file = f" ({printable(file_text(frame))})" if frame.file else ""
    return f"{printable(function_name(frame))}{file}"


def render_compare_table(found: Comparison, notes: Sequence[str], quality: Sequence[str]) -> str:
    """The answer, a line for each rank, and what the slowest has more of."""
    blocks = [wrapped(compare_sentence(found), "  "), _ranks(found), *_more(found)]
    blocks += [[line for text in texts for line in wrapped(printable(text), "  ")] for texts in (notes, quality)]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def basis(found: Comparison) -> str:
    """What the figures are means of."""
    if found.by_second:
        return "steps were not counted: means of each second that all ranks were recorded"
    if found.together:
        return f"{counted(found.parts[0].count, 'step')} that all ranks have, numbered together by time; means"
    return "the ranks do not step together: means of all steps of each"


def longest_shares(found: Comparison) -> list[str]:
    """shares_of_steps() as they are shown; "-": they do not step together."""
    return ["-" if each is None else f"{each:.0%}" for each in shares_of_steps(found)]


def shares_of_steps(found: Comparison) -> list[float | None]:
    """For each rank, in what part of the steps its own time is the longest; None: they do not step together."""
    if not found.together:
        return [None] * len(found.loops)
    longest = np.argmax(np.stack([each.own_ns for each in found.parts]), axis=0)
    return [round(each, 4) for each in (np.bincount(longest, minlength=len(found.parts)) / len(longest)).tolist()]


def _ranks(found: Comparison) -> list[str]:
    what = ("parts", "second") if found.by_second else ("steps", "step")
    lines = [
        *wrapped(basis(found), "  "),
        f"{what[0]:>7} {what[1]:>10} {'own':>10} {'for others':>11} {'longest':>8}  rank",
    ]
    for loop, of_it, part in zip(found.loops, found.parts, longest_shares(found)):
        times = [_text(ns) for ns in (of_it.mean_own_ns + of_it.mean_waits_ns, of_it.mean_own_ns, of_it.mean_waits_ns)]
        who = f"{rank_name(loop)}, {printable(loop.thread.process_name)} {loop.thread.pid}, {file_name(loop)}"
        figures = f"{of_it.count:>7,} {times[0]:>10} {times[1]:>10} {times[2]:>11} {part:>8}"
        lines.append(shortened(f"{figures}  {who}", COLUMNS))
    return lines


def _more(found: Comparison) -> list[list[str]]:
    """What the one that takes longest has more of, of its own time."""
    who, blocks = rank_name(found.loops[found.longest]), []
    least = _LEAST * max(found.excess_ns, 0.0)
    for rows, head in ((found.phases, "of its own time, by phase"), (found.activities, "by phase, state and function")):
        shown = [each for each in rows if each.more_ns > least][:_MOST_ROWS]
        if shown:
            columns = f"{'more':>10} {shortened(who, 16):>16} {'others':>10}"
            blocks.append([f"{columns}  {head}", *map(_more_line, shown)])
    return blocks


def _more_line(each: More) -> str:
    figures = f"{'+' + _text(each.more_ns):>10} {_text(each.ns):>16} {_text(each.others_ns):>10}"
    what = (
        f"{printable(each.phase)}, {printable(each.state)}, {place_text(each)}" if each.state else printable(each.phase)
    )
    return shortened(f"{figures}  {what}", COLUMNS)


def render_compare_json(found: Comparison, notes: Sequence[str], quality: Sequence[str]) -> str:
    """Times in seconds, of a step. `verdict` is null where none is slower than the others."""
    document = {
        "verdict": _verdict(found),
        "sentence": compare_sentence(found),
        "steps_together": found.together,
        "per": "second" if found.by_second else "step",
        "ranks": [_rank(found, place) for place in range(len(found.loops))],
        "longest": rank_name(found.loops[found.longest]),
        "phases": [_json(each) for each in found.phases],
        "rows": [_json(each) for each in found.activities],
        "notes": [printable(text) for text in notes],
        "quality": [printable(text) for text in quality],
    }
    return json.dumps(document, indent=1) + "\n"


def _verdict(found: Comparison) -> dict[str, Any] | None:
    network, place, late_ns = found.network, found.longest if found.is_slow else -1, found.late_ns
    if found.cause is not None:
        why, details = _cause_text(found.cause, found.loops[found.longest]), _cause(found.cause)
    elif network is not None:
        why, details, place = f"network in {COMMUNICATION}", _network_cause(network), network.place
        late_ns = network.wait_ns  # it is what comes late, and each waits so long for it
    else:
        return None
    return {
        "rank": _rank_value(found.loops[place]) if place >= 0 else None,
        "late_s": _seconds(late_ns),
        "share_of_steps": shares_of_steps(found)[place] if place >= 0 else None,
        "cause": why,
        "sentence": compare_sentence(found),
        "where": {name: details[name] for name in ("function", "file", "line")} if details["function"] else None,
        "name": rank_name(found.loops[place]) if place >= 0 else None,
        "more_s": _seconds(found.excess_ns),
        "error_s": _seconds(found.error_ns) if np.isfinite(found.error_ns) else None,
        "others_wait_s": _seconds(found.others_wait_ns),
        "details": details,
    }


def _cause_text(cause: Cause, loop: RankLoop) -> str:
    """`sleep in backward, hook (rank_loops.py:34)`."""
    function = [place_text(cause.function)] if cause.function.function is not None else []
    parts = [f"{cause.state.state} in {cause.phase.phase}", *function]
    return printable(", ".join(parts)) + printable(limit_text(loop, cause.state.state))


def _rank_value(loop: RankLoop) -> int | str:
    """Its number, or what it is called where it has none."""
    return loop.rank if loop.rank is not None else rank_name(loop)


def _cause(cause: Cause) -> dict[str, Any]:
    row = _json(cause.function)
    return {
        **{name: row[name] for name in ("phase", "state", "function", "file", "line")},
        "phase_more_s": _seconds(cause.phase.more_ns),
        "state_more_s": _seconds(cause.state.more_ns),
        "state_more_in_all_phases_s": _seconds(cause.state_ns),
        "function_more_s": row["more_s"],
        "ended_by": printable(cause.ended_by) or None,
    }


def _network_cause(network: SlowNetwork) -> dict[str, Any]:
    row = _json(More(COMMUNICATION, "network", network.function, network.wait_ns, 0.0))
    return {
        **{name: row[name] for name in ("phase", "state", "function", "file", "line")},
        **dict.fromkeys(_MORE_KEYS, row["more_s"]),
        "ended_by": None,
        "round_trip_s": _seconds(network.ns),
        "others_round_trip_s": _seconds(network.others_ns) if network.others_ns else None,
    }


def _rank(found: Comparison, place: int) -> dict[str, Any]:
    loop, parts = found.loops[place], found.parts[place]
    return {
        "rank": _rank_value(loop),
        "file": printable(loop.recording),
        "steps": parts.count,
        "mean_step_s": _seconds(parts.mean_own_ns + parts.mean_waits_ns),
        "waits_for_others_s": _seconds(parts.mean_waits_ns),
        "phases": phases_json({name: _seconds(ns) for name, ns in phase_times(loop, parts).items()}),
        "name": rank_name(loop),
        "pid": int(loop.thread.pid),
        "process": printable(loop.thread.process_name),
        "host": printable(loop.host),
        "own_s": _seconds(parts.mean_own_ns),
        "each": [
            {"begin_s": begin / 1e9, "own_s": _seconds(own), "waits_for_others_s": _seconds(waits)}
            for begin, own, waits in zip(parts.begin_ns.tolist(), parts.own_ns.tolist(), parts.waits_ns.tolist())
        ],
    }


def _json(each: More) -> dict[str, Any]:
    frame = each.function
    return {
        "phase": printable(each.phase),
        "state": printable(each.state) or None,
        "function": printable(function_name(frame)) if frame else None,
        "file": printable(frame.file) if frame else None,
        "line": (frame.line or None) if frame else None,
        "s": _seconds(each.ns),
        "others_s": _seconds(each.others_ns),
        "more_s": _seconds(each.more_ns),
    }


def _seconds(ns: float) -> float:
    return round(ns / 1e9, 9)


def _text(ns: float) -> str:
    return duration_text(round(ns))
