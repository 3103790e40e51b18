"""Groups of waits -> a table for a terminal: plain text, at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.tables.groups import WaitGroup, WaitGroups, group_waits
from bpfprof.query.tables.merging import merged_threads
from bpfprof.query.work.table import work_of
from bpfprof.render.columns import COLUMNS, duration_text, percent_text, shortened, wrapped
from bpfprof.render.containers import containers_block
from bpfprof.render.formats import RenderOptions
from bpfprof.render.gil_table import gil_block
from bpfprof.render.header import counted, recording_block
from bpfprof.render.labels import frame_labels, printable
from bpfprof.render.lock_orders import deadlock_lines, order_lines, stuck_lines
from bpfprof.render.quality import quality_line
from bpfprof.render.task_table import render_tasks
from bpfprof.render.thread_times import reasons_block, threads_block
from bpfprof.render.wait_details import WaitDetails

_BY = {
    "stack": "reason and stack",
    "lock": "lock and function",
}
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = ".:-=+*#@"
_EMPTY = " "
_FIGURES = ("total", "share", "count", "mean", "p50", "p99", "max")
_WIDTHS = (9, 6, 9, 8, 8, 8, 8)
_FIGURES_COLUMNS = sum(_WIDTHS) + len(_WIDTHS) - 1


def render_off_cpu(profile: Profile, options: RenderOptions) -> str:
    """Groups, then what is not in them, with `options.details` the accounting of each thread, the quality line last.

    Raises ValueError if the profile was built without its spans.
    """
    if options.by == "task":
        return render_tasks(profile, options)
    ascii_only = options.ascii_only
    work = work_of(profile)
    merged = merged_threads(profile, work, options.merge) if options.merge else None
    groups = group_waits(
        profile,
        options.by,
        options.most,
        options.waker_depth,
        options.function_only,
        options.hide_idle,
        options.with_idle,
        work.serve_nobody,
        merged,
    )
    details = WaitDetails(profile, groups.by, options, merged, work.locks)
    blocks = [
        deadlock_lines(profile),
        stuck_lines(profile, work),
        recording_block(profile),
        _head(profile, groups),
        *(_group_block(details, group, groups.total_ns, ascii_only) for group in groups.groups),
        _rest(groups),
        *_idle_blocks(details, groups, ascii_only),
        _short_block(profile),
        gil_block(profile, options),
        order_lines(profile, work, frame_labels(profile, options)),
        *(_accounting(profile) if options.details else []),
        wrapped(quality_line(profile), "  "),
    ]
    text = "\n\n".join(["\n".join(block) for block in blocks if block]) + "\n"
    return text.replace("…", "~") if ascii_only else text


def _accounting(profile: Profile) -> list[list[str]]:
    return [containers_block(profile.threads), threads_block(profile.threads), reasons_block(profile.threads)]


def _head(profile: Profile, groups: WaitGroups) -> list[str]:
    hidden = f"; idle ones hidden, {duration_text(groups.hidden_idle_ns)}" * bool(groups.hidden_idle_ns)
    asked = printable(profile.filter_text)
    if not groups.group_count:
        return wrapped(f"no waits{asked}" + ", but idle ones" * bool(groups.idle_group_count) + hidden, "  ")
    apart = f", without {duration_text(groups.idle_ns)} of idle threads, below" * bool(groups.idle_group_count)
    text = f"waits by {_BY.get(groups.by, groups.by)}{asked}: {duration_text(groups.total_ns)} in "
    text += counted(groups.group_count, "group") + apart + hidden
    return [
        *wrapped(text, "  "),
        " ".join(f"{name:>{columns}}" for name, columns in zip(_FIGURES, _WIDTHS)) + "  durations",
    ]


def _group_block(details: WaitDetails, group: WaitGroup, all_ns: int, ascii_only: bool) -> list[str]:
    heading = details.heading(group)
    lines = [f"idle: {heading}" if group.is_idle else heading, _figures(group, all_ns, ascii_only)]
    return [shortened(line, COLUMNS) for line in (*lines, *details.lines(group))]


def _figures(group: WaitGroup, all_ns: int, ascii_only: bool) -> str:
    lengths = (group.p50_ns, group.p99_ns, group.max_ns)
    texts = (
        duration_text(group.total_ns),
        percent_text(group.total_ns, all_ns, 1),
        f"{group.count:,}",
        duration_text(group.mean_ns),
        *(duration_text(ns) if group.buckets else "-" for ns in lengths),
    )
    figures = " ".join(f"{text:>{columns}}" for text, columns in zip(texts, _WIDTHS))
    return f"{figures}  {histogram_line(group, COLUMNS - _FIGURES_COLUMNS - 2, ascii_only)}".rstrip()


def _rest(groups: WaitGroups) -> list[str]:
    lines = _more(groups.groups, groups.group_count, groups.total_ns, "more group", " (--limit shows more)")
    if groups.without_lock_ns:
        lines.append(f"waits without a lock: {duration_text(groups.without_lock_ns)}")
    return lines


def _idle_blocks(details: WaitDetails, groups: WaitGroups, ascii_only: bool) -> Iterator[list[str]]:
    if not groups.idle_group_count:
        return
    count = counted(groups.idle_group_count, "group")
    yield [f"idle (threads with nothing to do): {duration_text(groups.idle_ns)} in {count}"]
    for group in groups.idle:
        yield _group_block(details, group, groups.idle_ns, ascii_only)
    yield _more(groups.idle, groups.idle_group_count, groups.idle_ns, "more idle group")


def _more(shown: tuple[WaitGroup, ...], count: int, all_ns: int, what: str, hint: str = "") -> list[str]:
    """A line on the groups that are not shown, if there are any."""
    rest_ns = all_ns - sum(group.total_ns for group in shown)
    more = f"and {counted(count - len(shown), what)}, together {duration_text(rest_ns)}{hint}"
    return [more] if count > len(shown) else []


def _short_block(profile: Profile) -> list[str]:
    begins = [bool(stack) and profile.frames[stack[0]].kind == FrameKind.SHORT_WAITS for stack in profile.stacks]
    is_short = np.array([*begins, False])[profile.weights["stack"].astype(np.int64)]
    rows = profile.weights[is_short & (profile.weights["state"] == ThreadState.OFF_CPU)]
    count = int(rows["count"].sum())
    if not count:
        return []
    under = f" under {profile.info.min_block_us:,} us" if profile.info.min_block_us else ""
    return [
        f"short waits{under}, which have no stack: {count:,}, together {duration_text(int(rows['total_ns'].sum()))}"
    ]


def histogram_line(group: WaitGroup, columns: int, ascii_only: bool) -> str:
    """The shortest wait, a bar a bucket, the longest wait, in so many columns; the highest bar has most waits.

    A bucket with a single wait is seen. Neighbours share a bar where there are too many. "" where no length is known.
    """
    if not group.buckets:
        return ""
    low, high = _short_duration(group.min_ns), _short_duration(group.max_ns)
    room = max(columns - len(low) - len(high) - 2, 1)
    together = -(-len(group.buckets) // room)
    counts = [sum(group.buckets[first : first + together]) for first in range(0, len(group.buckets), together)]
    return f"{low} {bars(counts, ascii_only)} {high}"


def bars(counts: list[int], ascii_only: bool) -> str:
    """A character a count, in eighths of the largest; none of nothing."""
    levels = _ASCII_BARS if ascii_only else _BARS
    most = max(counts, default=0)
    return "".join(levels[-(-count * len(levels) // most) - 1] if count else _EMPTY for count in counts)


def _short_duration(ns: int) -> str:
    """Three digits without a space: `100us`, `5.2ms`, `52ms`, `1.7s`, `120s`."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if ns >= size * 0.9995:
            value = ns / size
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return f"{ns}ns"
