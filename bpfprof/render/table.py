"""Profile -> the summary for a terminal: plain text, at most 100 columns."""

from __future__ import annotations

from bpfprof.model.profile import Profile
from bpfprof.render.columns import COLUMNS, duration_text, padded, percent_text, seconds_text, shortened, wrapped
from bpfprof.render.gil_table import gil_block
from bpfprof.render.header import recording_block
from bpfprof.render.hot_spots import FunctionTime, LongestWait, WaitTime, longest_wait, top_functions, top_waits
from bpfprof.render.labels import printable, process_label, thread_label
from bpfprof.render.options import RenderOptions
from bpfprof.render.quality import quality_line
from bpfprof.render.thread_times import reasons_block, threads_block

_MAX_FUNCTIONS = 5
_MAX_WAITS = 8


def render_table(profile: Profile, options: RenderOptions) -> str:
    """Blocks separated by empty lines, the quality line last; blocks with nothing to say are left out."""
    blocks = [
        recording_block(profile),
        wrapped(f"only {printable(profile.filter_text[2:])}", "  ") if profile.filter_text else [],
        threads_block(profile.threads),
        reasons_block(profile.threads),
        gil_block(profile, options),
        _functions_block(top_functions(profile, options, _MAX_FUNCTIONS)),
        _waits_block(top_waits(profile, options, _MAX_WAITS)),
        _longest_block(profile, longest_wait(profile, options)),
        wrapped(quality_line(profile), "  "),
    ]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def _functions_block(functions: list[FunctionTime]) -> list[str]:
    if not functions:
        return []
    lines = ["top functions by their own on-CPU time (native code counts for the Python function that called it)"]
    lines.append(f"{'on-CPU s':>10} {'share':>7} {'off-CPU s':>10}  function")
    for row in functions:
        share = percent_text(row.on_cpu_ns, row.all_on_cpu_ns, 1)
        times = f"{seconds_text(row.on_cpu_ns):>10} {share:>7} {seconds_text(row.off_cpu_ns):>10}"
        lines.append(f"{times}  {shortened(row.function, COLUMNS - 31)}")
    return lines


def _waits_block(waits: list[WaitTime]) -> list[str]:
    if not waits:
        return []
    lines = ["top waits", f"{'total s':>10} {'count':>9} {'longest':>10}  {'reason':<18} function"]
    for row in waits:
        reason = padded(shortened(row.reason, 18), 18)
        longest = duration_text(row.max_ns) if row.max_ns else "-"  # of short waits it is not known
        times = f"{seconds_text(row.total_ns):>10} {row.count:>9,} {longest:>10}"
        lines.append(f"{times}  {reason} {shortened(row.function, COLUMNS - 52)}")
    return lines


def _longest_block(profile: Profile, wait: LongestWait | None) -> list[str]:
    if wait is None:
        return []
    thread = profile.threads[wait.thread]
    where = f"{thread_label(thread)}, {process_label(thread)}"
    head = f"longest wait: {duration_text(wait.max_ns)} {wait.mark}, {where}"
    stack = " < ".join(wait.functions)
    return [shortened(head, COLUMNS), *([shortened(f"  in {stack}", COLUMNS)] if stack else [])]
