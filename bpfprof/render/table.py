"""Profile -> the summary for a terminal: plain text, at most 100 columns."""

from __future__ import annotations

import textwrap
import unicodedata

from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.render.header import command_text, counted, recording_facts
from bpfprof.render.hot_spots import FunctionTime, LongestWait, WaitTime, longest_wait, top_functions, top_waits
from bpfprof.render.labels import clean, process_label, thread_label
from bpfprof.render.options import RenderOptions
from bpfprof.render.quality import quality_line
from bpfprof.render.quantities import duration_text, percent_text, seconds_text

_COLUMNS = 100
_MAX_THREADS = 30
_MAX_FUNCTIONS = 5
_MAX_WAITS = 8


def render_table(profile: Profile, options: RenderOptions) -> str:
    """Blocks separated by empty lines, the quality line last; blocks with nothing to say are left out."""
    blocks = [
        _recording_block(profile),
        _threads_block(profile.threads),
        _functions_block(top_functions(profile, options, _MAX_FUNCTIONS)),
        _waits_block(top_waits(profile, options, _MAX_WAITS)),
        _longest_block(profile, longest_wait(profile, options)),
        textwrap.wrap(quality_line(profile), _COLUMNS, subsequent_indent="  "),
    ]
    return "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"


def _recording_block(profile: Profile) -> list[str]:
    command = _shortened(command_text(profile), _COLUMNS)
    facts = textwrap.wrap(", ".join(recording_facts(profile)), _COLUMNS)
    return [command, *facts] if command else facts


def _threads_block(threads: tuple[ThreadTime, ...]) -> list[str]:
    if not threads:
        return []
    ordered = sorted(threads, key=lambda it: (-it.on_cpu_ns - it.runqueue_ns, -it.wait_count, it.tid))
    lines = [
        f"{'process':<18} {'thread':<15} {'tid':>7} {'wall s':>7} {'on-CPU s':>12} {'run queue s':>12} "
        f"{'off-CPU s':>12} {'accounted':>9}"
    ]
    lines += [_thread_row(thread) for thread in ordered[:_MAX_THREADS]]
    if len(ordered) > _MAX_THREADS:
        rest = ordered[_MAX_THREADS:]
        busy_ns = sum(thread.on_cpu_ns for thread in rest)
        more = counted(len(rest), "more thread")
        lines.append(
            f"and {more}, together {duration_text(busy_ns)} on a CPU in {duration_text(_wall_ns(rest))} of wall time"
        )
    return lines


def _thread_row(thread: ThreadTime) -> str:
    pid = f" ({thread.pid})"
    process = _padded(_shortened(clean(thread.process_name), 18 - len(pid)) + pid, 18)
    name = _padded(_shortened(clean(thread.thread_name), 15), 15)
    shares = " ".join(
        f"{seconds_text(part_ns):>7} {_whole_percent(part_ns, thread.wall_ns):>4}"
        for part_ns in (thread.on_cpu_ns, thread.runqueue_ns, thread.off_cpu_ns)
    )
    accounted = percent_text(thread.accounted_ns, thread.wall_ns)
    return f"{process} {name} {thread.tid:>7} {seconds_text(thread.wall_ns):>7} {shares} {accounted:>9}"


def _functions_block(functions: list[FunctionTime]) -> list[str]:
    if not functions:
        return []
    lines = ["top functions by their own on-CPU time (native code counts for the Python function that called it)"]
    lines.append(f"{'on-CPU s':>10} {'share':>7} {'off-CPU s':>10}  function")
    for row in functions:
        share = percent_text(row.on_cpu_ns, row.all_on_cpu_ns, 1)
        times = f"{seconds_text(row.on_cpu_ns):>10} {share:>7} {seconds_text(row.off_cpu_ns):>10}"
        lines.append(f"{times}  {_shortened(row.function, _COLUMNS - 31)}")
    return lines


def _waits_block(waits: list[WaitTime]) -> list[str]:
    if not waits:
        return []
    lines = ["top waits", f"{'total s':>10} {'count':>9} {'longest':>10}  {'reason':<18} function"]
    for row in waits:
        reason = _padded(_shortened(row.reason, 18), 18)
        times = f"{seconds_text(row.total_ns):>10} {row.count:>9,} {duration_text(row.max_ns):>10}"
        lines.append(f"{times}  {reason} {_shortened(row.function, _COLUMNS - 52)}")
    return lines


def _longest_block(profile: Profile, wait: LongestWait | None) -> list[str]:
    if wait is None:
        return []
    thread = profile.threads[wait.thread]
    where = f"{thread_label(thread)}, {process_label(thread)}"
    head = f"longest wait: {duration_text(wait.max_ns)} {wait.mark}, {where}"
    stack = " < ".join(wait.functions)
    return [_shortened(head, _COLUMNS), *([_shortened(f"  in {stack}", _COLUMNS)] if stack else [])]


def _wall_ns(threads: list[ThreadTime]) -> int:
    return sum(thread.wall_ns for thread in threads)


def _whole_percent(part: int, whole: int) -> str:
    text = percent_text(part, whole, 0)
    return text if len(text) <= 4 else text.lstrip("<>")


def _shortened(text: str, columns: int) -> str:
    """The text, cut to so many columns; a cut is marked."""
    if _width(text) <= columns:
        return text
    while text and _width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - _width(text))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
