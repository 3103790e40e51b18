"""Profile -> how many of its threads ran at a time: a block of text, and JSON."""

from __future__ import annotations

from typing import Any

from bpfprof.model.profile import Profile
from bpfprof.query.threads.concurrency import ConcurrencyFacts, concurrency_of
from bpfprof.render.columns import duration_text, percent_text, seconds_text, wrapped
from bpfprof.render.labels import printable

_SAID = 0.01  # of the time that threads were runnable: so much that is spread is said
_ALONE = 0.05  # of the time: who was the only one for so long is said


def concurrency_block(profile: Profile) -> list[str]:
    """A line a number of threads; empty where it is not known."""
    facts = concurrency_of(profile, is_folded=True)
    if facts is None:
        return []
    lines = ["threads at once", f"{'threads':>11} {'on a CPU s':>12} {'share':>7} {'runnable s':>12} {'share':>7}"]
    for each in facts.at_once:
        figures = [
            f"{seconds_text(ns) if ns else '-':>12} {percent_text(ns, facts.wall_ns, 1) if ns else '-':>7}"
            for ns in (each.on_cpu_ns, each.runnable_ns)
        ]
        lines.append(f"{each.name:>11} {' '.join(figures)}")
    return [*lines, *(line for sentence in sentences(facts) for line in wrapped(sentence, "  "))]


def sentences(facts: ConcurrencyFacts) -> list[str]:
    """The averages, how long there were more than CPUs, who was the only one that could run, and what is not exact."""
    said = f"on average {facts.on_cpu:.2f} on a CPU and {facts.runnable:.2f} runnable (on a CPU or ready)"
    if facts.cpus:
        cpus = f"{facts.cpus:g} CPU" + "s" * (facts.cpus != 1)
        said += f"; more were runnable than the {cpus} that they may use for {duration_text(facts.beyond_ns)}"
        said += f" ({percent_text(facts.beyond_ns, facts.wall_ns, 1)})"
    spread = (
        f"{duration_text(facts.spread_ns)} in short waits and preemptions, whose moments are not known, are laid evenly"
    )
    return [said, *_alone(facts), *[spread] * (facts.spread_ns > _SAID * facts.runnable * facts.wall_ns)]


def _alone(facts: ConcurrencyFacts) -> list[str]:
    """Of the one that was so for longest, where there are others."""
    if len(facts.alone) < 2 or facts.alone[0][1] < _ALONE * facts.wall_ns:
        return []
    thread, ns = facts.alone[0]
    is_of_several = len({each.pid for each, _ in facts.alone}) > 1
    name = (thread.thread_name or "?") + f" of {thread.process_name} ({thread.pid})" * is_of_several
    return [f"{printable(name)} was the only one that could run {percent_text(ns, facts.wall_ns, 0)} of the time"]


def concurrency_json(profile: Profile) -> dict[str, Any]:
    """Times in seconds; nothing where it is not known."""
    facts = concurrency_of(profile)
    if facts is None:
        return {}
    threads = [
        {"threads": each.first, "on_cpu_s": _seconds(each.on_cpu_ns), "runnable_s": _seconds(each.runnable_ns)}
        for each in facts.at_once
    ]
    alone = [
        {"pid": int(it.pid), "tid": int(it.tid), "name": printable(it.thread_name), "alone_s": _seconds(ns)}
        for it, ns in facts.alone
        if ns
    ]
    return {
        "concurrency": {
            "wall_s": _seconds(facts.wall_ns),
            "cpus": facts.cpus or None,
            "mean_on_cpu": round(facts.on_cpu, 6),
            "mean_runnable": round(facts.runnable, 6),
            "beyond_cpus_s": _seconds(facts.beyond_ns) if facts.cpus else None,
            "spread_s": _seconds(facts.spread_ns),
            "at_once": threads,
            "alone": alone if facts.alone else None,
        }
    }


def concurrency_table(profile: Profile) -> dict[str, Any] | None:
    """What the page shows of it; times in nanoseconds."""
    facts = concurrency_of(profile, is_folded=True)
    if facts is None:
        return None
    rows = [{"name": each.name, "on_cpu": each.on_cpu_ns, "runnable": each.runnable_ns} for each in facts.at_once]
    return {"wall": facts.wall_ns, "rows": rows, "lines": sentences(facts)}


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 9)
