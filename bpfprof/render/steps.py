"""Profile with its spans -> the steps of its threads as a table (`--by step`) or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import function_name
from bpfprof.query.steps.phases import DATA, OTHER, PHASES, TO_DEVICE
from bpfprof.query.steps.steps import CALLS, MARKS, Steps, StepsWanted, find_steps
from bpfprof.query.steps.times import Excess, Figures, Outlier, StepTimes, step_times
from bpfprof.query.work.places import place_text
from bpfprof.render.columns import COLUMNS, duration_text, seconds_text, shortened, wrapped
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import printable, process_label, thread_label

_MOST_TABLES = 8  # processes
_WORDS = {DATA: "data", TO_DEVICE: "copy"}  # of phases, where programs read them
_FEW = 2  # of the phases that a slow step has more of
_ADVICE = 'record with a higher --rate, or mark them: `with bpfprof.marks.mark("step"):`'


def steps_of_options(profile: Profile, options: RenderOptions) -> list[Steps]:
    """Those that were asked for."""
    return find_steps(profile, StepsWanted(options.step, options.phases))


def steps_block(profile: Profile, options: RenderOptions) -> list[str]:
    """A table for each process that has steps."""
    found = steps_of_options(profile, options)
    if not found:
        return wrapped(f"steps: {_why_none(found, options)}", "  ")
    lines: list[str] = []
    for steps in found[:_MOST_TABLES]:
        lines += [*[""] * bool(lines), *_table(profile, steps, options)]
    left_out = len(found) - _MOST_TABLES
    return [*lines, *[f"and those of {counted(left_out, 'more process', 'more processes')}"] * (left_out > 0)]


def _table(profile: Profile, steps: Steps, options: RenderOptions) -> list[str]:
    head = _heading(profile, steps)
    if steps.unclear:
        return wrapped(f"steps not counted: {head}: {steps.unclear}; {_ADVICE}", "  ")
    if not len(steps):
        return wrapped(f"steps: {head}: none began and ended while it was recorded", "  ")
    times, durations = step_times(profile, steps), steps.durations_ns
    lines = wrapped(f"steps: {counted(len(steps), 'step')}, {head}", "  ")
    facts = [
        f"mean {duration_text(round(times.all.mean_ns))} ±{duration_text(round(times.all.error_ns))}",
        f"p50 {duration_text(round(times.all.p50_ns))}",
        f"p99 {duration_text(round(times.all.p99_ns))}",
        f"first {duration_text(int(durations[0]))}",
        f"last {duration_text(int(durations[-1]))}",
    ]
    lines += wrapped("  " + " · ".join(facts), "  ")
    rates = [f"{times.per_second:.4g} steps a second"]
    rates += [f"{times.per_second * options.batch:.4g} samples a second"] if options.batch else []
    rates += [f"reader ratio {times.reader_ratio:.1%}"] if times.reader_ratio else []
    lines += [f"  {' · '.join(rates)}", f"{'mean':>12} {'share':>7} {'p50':>10} {'p99':>10}  phase"]
    by_share = sorted(times.phases.items(), key=lambda item: -item[1].share)
    lines += [_phase_line(name, each) for name, each in by_share]
    return lines + _outlier_lines(steps, times, options)


def _heading(profile: Profile, steps: Steps) -> str:
    thread = profile.threads[steps.thread]
    where = printable(place_text(steps.where)) if steps.where else printable(steps.name)
    what = {CALLS: f"calls of {where}", MARKS: f"marked {printable(steps.name)}"}.get(
        steps.how, f"turns of the loop at {where}"
    )
    return f"{what}, in {thread_label(thread)} of {process_label(thread)}"


def _phase_line(name: str, each: Figures) -> str:
    times = [duration_text(round(ns)) for ns in (each.mean_ns, each.p50_ns, each.p99_ns)]
    return shortened(f"{times[0]:>12} {each.share:>7.1%} {times[1]:>10} {times[2]:>10}  {printable(name)}", COLUMNS)


def _outlier_lines(steps: Steps, times: StepTimes, options: RenderOptions) -> list[str]:
    if not times.outliers:
        return []
    lines = [
        f"{counted(len(times.outliers), 'slow step')}:",
        f"{'step':>8} {'begins s':>10} {'took':>10}  what it did more of",
    ]
    for each in times.outliers[: options.most]:
        begin = seconds_text(int(steps.begin_ns[each.step]))
        more = ", ".join(map(_excess_text, each.phases[:_FEW]))
        more += f": {_excess_text(each.functions[0])}" if each.functions else ""
        lines.append(
            shortened(f"{each.step + 1:>8} {begin:>10} {duration_text(each.duration_ns):>10}  {more}", COLUMNS)
        )
    left_out = len(times.outliers) - options.most
    return [*lines, *[f"and {left_out:,} more (--limit)"] * (left_out > 0)]


def _excess_text(each: Excess) -> str:
    if each.phase:
        return f"{printable(each.phase)} +{duration_text(round(each.ns))}"
    name = printable(function_name(each.function)) if each.function else "code that is not known"
    return f"{printable(each.state)} of {name} +{duration_text(round(each.ns))}"


def steps_json(profile: Profile, options: RenderOptions) -> dict[str, Any]:
    """`steps`: figures of the first loop whose steps are counted, null where none is, and `why`; `rows`: its steps.

    `loops`: one object for each process that has steps: more figures of all, and each step.
    """
    found = steps_of_options(profile, options)
    loops = [_json(profile, each, options) for each in found]
    counted_loops = [(each, loop) for each, loop in zip(found, loops) if len(each)]
    if not counted_loops:
        return {"steps": None, "why": _why_none(found, options), "rows": [], "loops": loops}
    first, loop = counted_loops[0]
    steps = {
        "found_by": "mark" if first.how == MARKS else "option" if options.step else "period",
        **{name: loop[name] for name in ("where", "count", "mean_s", "p50_s", "p99_s")},
        "per_s": loop["per_second"],
        "phases": phases_json({name: each["mean_s"] for name, each in loop["phases"].items()}),
    }
    rows = [
        {
            "index": number,
            "start_s": each["begin_s"],
            "duration_s": each["duration_s"],
            "phases": phases_json(each["phases"]),
        }
        for number, each in enumerate(loop["steps"])
    ]
    return {"steps": steps, "rows": rows, "loops": loops}


def phases_json(seconds: Mapping[str, float]) -> dict[str, float]:
    """All phases, by one word each."""
    return {_WORDS.get(name, name): seconds.get(name, 0.0) for name in dict.fromkeys((*PHASES, OTHER, *seconds))}


def _why_none(found: Sequence[Steps], options: RenderOptions) -> str:
    """Why no steps are counted."""
    if not found:
        what = f"no calls of a function like {printable(options.step.pattern)}" if options.step else "no loop"
        return f"{what} was seen three times or more in a thread's Python code"
    unclear = next((each.unclear for each in found if each.unclear), "")
    return f"not counted: {printable(unclear)}" if unclear else "none began and ended while it was recorded"


def _json(profile: Profile, steps: Steps, options: RenderOptions) -> dict[str, Any]:
    thread = profile.threads[steps.thread]
    found: dict[str, Any] = {
        "pid": int(thread.pid),
        "tid": int(thread.tid),
        "thread": printable(thread.thread_name),
        "process": printable(thread.process_name),
        "how": steps.how,
        "name": printable(steps.name) or None,
        "where": _place(steps.where),
        "count": len(steps),
        "not_counted": steps.unclear or None,
    }
    if not len(steps):
        return {**found, "steps": []}
    times, durations = step_times(profile, steps), steps.durations_ns.tolist()
    phase_s = (steps.phase_ns / 1e9).round(9).tolist()
    return {
        **found,
        **_figures(times.all),
        "first_s": durations[0] / 1e9,
        "last_s": durations[-1] / 1e9,
        "per_second": round(times.per_second, 6),
        "samples_per_second": round(times.per_second * options.batch, 6) if options.batch else None,
        "reader_ratio": round(times.reader_ratio, 6),
        "phases": {name: {**_figures(each), "share": round(each.share, 6)} for name, each in times.phases.items()},
        "outliers": [_outlier(each) for each in times.outliers],
        "steps": [
            {"begin_s": begin / 1e9, "duration_s": ns / 1e9, "phases": _spent(steps.phases, of_phases)}
            for begin, ns, of_phases in zip(steps.begin_ns.tolist(), durations, phase_s)
        ],
    }


def _spent(names: Sequence[str], seconds: list[float]) -> dict[str, float]:
    return {name: each for name, each in zip(names, seconds) if each > 0}


def _figures(each: Figures) -> dict[str, float]:
    values = (each.mean_ns, each.error_ns, each.p50_ns, each.p99_ns)
    return {f"{name}_s": round(ns / 1e9, 9) for name, ns in zip(("mean", "error", "p50", "p99"), values)}


def _outlier(each: Outlier) -> dict[str, Any]:
    return {
        "step": each.step + 1,
        "duration_s": each.duration_ns / 1e9,
        "phases": {one.phase: round(one.ns / 1e9, 9) for one in each.phases},
        "functions": [
            {**(_place(one.function) or {}), "state": one.state, "more_s": round(one.ns / 1e9, 9)}
            for one in each.functions
        ],
    }


def _place(frame: Frame | None) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {"function": printable(frame.name), "file": printable(frame.file), "line": frame.line or None}
