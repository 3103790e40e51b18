"""Profile -> the two blocks that share out each thread's wall time: by state, and off the CPU by reason."""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.model.profile import ThreadTime
from bpfprof.render.columns import COLUMNS, duration_text, filled, padded, percent_text, seconds_text, shortened
from bpfprof.render.header import counted
from bpfprof.render.labels import printable, reason_label

_MAX_THREADS = 30
_REASON_COLUMNS = 48
_NAMES, _SHORT_NAMES = (18, 15), (14, 12)  # columns of process and thread, and beside one more column
_LEAST = 0.01  # of its wall time, in which a thread only waited on a CPU: less has no column


def threads_block(threads: tuple[ThreadTime, ...], waited_ns: Sequence[int] = ()) -> list[str]:
    """A line a thread: on-CPU, ready and off-CPU time, and how much of its wall time they are together.

    waited_ns: of the on-CPU time of each that in which it only waited, which has a column where it matters.
    """
    if not threads:
        return []
    shown, rest = _by_activity(threads)
    waited = dict(zip(threads, waited_ns))
    if not any(ns > _LEAST * thread.wall_ns for thread, ns in waited.items()):
        waited = {}
    process, name = _SHORT_NAMES if waited else _NAMES
    lines = [
        f"{'process':<{process}} {'thread':<{name}} {'tid':>7} {'wall s':>7} {'on-CPU s':>12} "
        f"{'waited ' * bool(waited)}{'ready s':>12} {'off-CPU s':>12} {'accounted':>9}"
    ]
    lines += [_thread_row(thread, waited.get(thread)) for thread in shown]
    if rest:
        busy_ns = sum(thread.on_cpu_ns for thread in rest)
        more = counted(len(rest), "more thread")
        wall_ns = sum(thread.wall_ns for thread in rest)
        lines.append(f"and {more}, together {duration_text(busy_ns)} on a CPU in {duration_text(wall_ns)} of wall time")
    return lines


def reasons_block(threads: tuple[ThreadTime, ...]) -> list[str]:
    """For each thread, in the same order: the sum of the three, how far it is from the wall time, and the reasons."""
    if not threads:
        return []
    lines = [
        "off-CPU by reason; sum is on-CPU + ready + off-CPU",
        f"{'thread':<15} {'tid':>7} {'sum s':>7} {'wall s':>7} {'difference':>10}  off-CPU s",
    ]
    shown, rest = _by_activity(threads)
    lines += [line for thread in shown for line in _reasons_rows(thread)]
    if rest:
        more, off_cpu_ns = counted(len(rest), "more thread"), sum(thread.off_cpu_ns for thread in rest)
        difference_ns = sum(thread.accounted_ns - thread.wall_ns for thread in rest)
        lines.append(
            f"and {more}, together {duration_text(off_cpu_ns)} off the CPU, difference {_signed(difference_ns)}"
        )
    return lines


def _by_activity(threads: tuple[ThreadTime, ...]) -> tuple[list[ThreadTime], list[ThreadTime]]:
    """(those with a line of their own, the others)"""
    seen = [thread for thread in threads if thread.wall_ns or thread.accounted_ns]
    seen.sort(key=lambda thread: (-thread.on_cpu_ns - thread.runqueue_ns, -thread.wait_count, thread.tid))
    return seen[:_MAX_THREADS], seen[_MAX_THREADS:]


def _thread_row(thread: ThreadTime, waited_ns: int | None) -> str:
    """waited_ns: None: there is no such column."""
    process_columns, columns = _NAMES if waited_ns is None else _SHORT_NAMES
    pid = f" ({thread.pid})"
    process = padded(shortened(printable(thread.process_name), process_columns - len(pid)) + pid, process_columns)
    name = padded(shortened(printable(thread.thread_name), columns), columns)
    shares = [
        f"{seconds_text(part_ns):>7} {_whole_percent(part_ns, thread.wall_ns):>4}"
        for part_ns in (thread.on_cpu_ns, thread.runqueue_ns, thread.off_cpu_ns)
    ]
    if waited_ns is not None:
        shares[0] += f" {_whole_percent(waited_ns, thread.on_cpu_ns) if waited_ns else '-':>6}"
    accounted = percent_text(thread.accounted_ns, thread.wall_ns)
    return f"{process} {name} {thread.tid:>7} {seconds_text(thread.wall_ns):>7} {' '.join(shares)} {accounted:>9}"


def _reasons_rows(thread: ThreadTime) -> list[str]:
    name = padded(shortened(printable(thread.thread_name), 15), 15)
    reasons = [
        f"{reason_label(reason)} {seconds_text(ns)} ({_whole_percent(ns, thread.off_cpu_ns)})"
        for reason, ns in thread.off_by_reason
        if ns > 0
    ]
    parts = [shortened(reason, _REASON_COLUMNS - 1) for reason in reasons]
    parts = [*(f"{part}," for part in parts[:-1]), *parts[-1:]]
    figures = f"{seconds_text(thread.accounted_ns):>7} {seconds_text(thread.wall_ns):>7}"
    begin = f"{name} {thread.tid:>7} {figures} {_signed(thread.accounted_ns - thread.wall_ns):>10}  "
    first, *others = filled(parts, _REASON_COLUMNS) or ["-"]
    return [begin + first, *(" " * (COLUMNS - _REASON_COLUMNS) + line for line in others)]


def _signed(ns: int) -> str:
    return ("+" if ns > 0 else "") + duration_text(ns)


def _whole_percent(part: int, whole: int) -> str:
    text = percent_text(part, whole, 0)
    return text if len(text) <= 4 else text.lstrip("<>")
