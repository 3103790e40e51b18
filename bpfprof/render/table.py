"""Profile -> the summary for a terminal: plain text, at most 100 columns."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_text
from bpfprof.query.code.functions import owner_frames
from bpfprof.query.tables.choices import CALL, STEP
from bpfprof.query.tables.groups import by_weight
from bpfprof.query.work.table import work_of
from bpfprof.render.by_table import by_block
from bpfprof.render.columns import COLUMNS, duration_text, padded, percent_text, seconds_text, shortened, wrapped
from bpfprof.render.concurrency import concurrency_block
from bpfprof.render.containers import containers_block
from bpfprof.render.event_table import events_block
from bpfprof.render.formats import RenderOptions
from bpfprof.render.gil_table import gil_block
from bpfprof.render.header import recording_block
from bpfprof.render.labels import (
    frame_labels,
    function_labels,
    no_function_label,
    printable,
    process_label,
    reason_label,
    thread_label,
)
from bpfprof.render.library_calls import NOT_COUNTED, library_calls_block
from bpfprof.render.lock_orders import deadlock_lines
from bpfprof.render.quality import quality_line
from bpfprof.render.steps import steps_block
from bpfprof.render.thread_times import reasons_block, threads_block

_MAX_FUNCTIONS = 5
_MAX_WAITS = 8
_FUNCTIONS = (FrameKind.PYTHON, FrameKind.NATIVE, FrameKind.INLINED)
_LEAF_FUNCTIONS = 4
_WAIT_COLUMNS = ["thread", "stack", "reason", "total_ns", "count", "max_ns"]


def render_table(profile: Profile, options: RenderOptions) -> str:
    """Blocks separated by empty lines, the quality line last; blocks with nothing to say are left out.

    Of a grouping (`options.by`) its table is all that was asked for, unless `options.details` are wanted, too.
    """
    head = [
        deadlock_lines(profile),
        recording_block(profile),
        wrapped(f"only {printable(profile.filter_text[2:])}", "  ") if profile.filter_text else [],
    ]
    table = _asked(profile, options)
    body = [table] if table and not options.details else _details(profile, options, table)
    blocks = [*head, *body, wrapped(quality_line(profile), "  ")]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def _asked(profile: Profile, options: RenderOptions) -> list[str]:
    """The table of a grouping, if one was asked for."""
    if options.by == STEP:
        return steps_block(profile, options)
    if options.by == CALL:
        return library_calls_block(profile, options) or [NOT_COUNTED]
    return by_block(profile, options)


def _details(profile: Profile, options: RenderOptions, table: list[str]) -> list[list[str]]:
    owners = _owners(profile, options)
    waits = profile.weights[profile.weights["state"] == ThreadState.OFF_CPU]
    waited_ns = work_of(profile).waiting_cpu_ns(len(profile.threads)) if profile.spans is not None else ()
    return [
        containers_block(profile.threads),
        threads_block(profile.threads, waited_ns),
        reasons_block(profile.threads),
        concurrency_block(profile),
        gil_block(profile, options),
        table or _functions_block(profile, owners),
        events_block(profile, owners, options),
        library_calls_block(profile, options) if options.by != CALL else [],
        _waits_block(profile, waits, owners),
        _longest_block(profile, waits, options),
    ]


def _owners(profile: Profile, options: RenderOptions) -> list[str]:
    """A stack's function without a line, "" if there is none."""
    labels = function_labels(profile, options)
    return [labels[frame] if frame >= 0 else "" for frame in owner_frames(profile.frames, profile.stacks)]


def _functions_block(profile: Profile, owners: list[str]) -> list[str]:
    """Functions with on-CPU time, most first: of stacks whose innermost Python function they are; lines are merged."""
    spent: Counter[tuple[int, str]] = Counter()
    for state, stack, total_ns in profile.weights[["state", "stack", "total_ns"]].tolist():
        spent[state, owners[stack]] += total_ns
    on_cpu = {name: ns for (state, name), ns in spent.items() if state == ThreadState.ON_CPU}
    ordered = sorted((-ns, name) for name, ns in on_cpu.items() if name and ns)[:_MAX_FUNCTIONS]
    if not ordered:
        return []
    lines = ["CPU: self time by Python function (C code included)"]
    lines.append(f"{'on-CPU s':>10} {'% of CPU':>8} {'off-CPU s':>10}  function")
    for negative_ns, name in ordered:
        share = percent_text(-negative_ns, sum(on_cpu.values()), 1)
        times = f"{seconds_text(-negative_ns):>10} {share:>8} {seconds_text(spent[ThreadState.OFF_CPU, name]):>10}"
        lines.append(f"{times}  {shortened(name, COLUMNS - 32)}")
    return lines


def _waits_block(profile: Profile, waits: npt.NDArray[np.void], owners: list[str]) -> list[str]:
    """Waits by (reason, function), most time first."""
    found: dict[tuple[str, str, bool], tuple[int, int, int]] = {}
    for thread, stack, number, total_ns, count, max_ns in waits[_WAIT_COLUMNS].tolist():
        name = owners[stack] or no_function_label(profile, stack, profile.threads[thread])
        what = reason_label(reason_text(number)), name, not owners[stack]
        old_ns, old_count, old_max_ns = found.get(what, (0, 0, 0))
        found[what] = old_ns + total_ns, old_count + count, max(old_max_ns, max_ns)
    if not found:
        return []
    lines = ["top waits", f"{'total s':>10} {'count':>9} {'longest':>10}  {'reason':<18} function"]
    ordered = sorted(found.items(), key=lambda item: (-by_weight(item[1][0], item[0][2]), item[0]))
    for (reason, function, _), (total_ns, count, max_ns) in ordered[:_MAX_WAITS]:
        longest = duration_text(max_ns) if max_ns else "-"  # of short waits it is not known
        times = f"{seconds_text(total_ns):>10} {count:>9,} {longest:>10}"
        lines.append(f"{times}  {padded(shortened(reason, 18), 18)} {shortened(function, COLUMNS - 52)}")
    return lines


def _longest_block(profile: Profile, waits: npt.NDArray[np.void], options: RenderOptions) -> list[str]:
    """The longest interval off the CPU, and its innermost functions."""
    if not len(waits):
        return []
    row = waits[np.argmax(waits["max_ns"])]
    labels, stack = frame_labels(profile, options), profile.stacks[row["stack"]]
    thread = profile.threads[row["thread"]]
    reason = reason_label(reason_text(int(row["reason"])))
    head = (
        f"longest wait: {duration_text(int(row['max_ns']))}, {reason}, {thread_label(thread)}, {process_label(thread)}"
    )
    functions = [labels[frame] for frame in reversed(stack) if profile.frames[frame].kind in _FUNCTIONS]
    inside = [shortened(f"  in {' < '.join(functions[:_LEAF_FUNCTIONS])}", COLUMNS)] if functions else []
    return [shortened(head, COLUMNS), *inside]
