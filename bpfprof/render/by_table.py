"""Profile -> a table of time by what it was spent in: functions with library and module, libraries, threads ..."""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.profile import Profile
from bpfprof.query.code.origins import origins
from bpfprof.query.tables.choices import ROW_GROUPINGS
from bpfprof.query.tables.merging import merged_threads
from bpfprof.query.tables.rows import Row, rows_by, sorted_rows
from bpfprof.query.waits.chains import waker_name
from bpfprof.query.waits.lock_holders import LockWaits
from bpfprof.query.work.places import place_text
from bpfprof.query.work.table import work_of
from bpfprof.render.columns import COLUMNS, padded, percent_text, seconds_text, shortened, width, wrapped
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import file_names, frame_label, printable, reason_label, source_line

_LIBRARY, _MODULE = 12, 16  # columns
_REASONS = 3
_SEEN = "   seen  "
_WITHOUT_REASONS = ("function", "library", "file", "reason", "lock", "operator")
_HOLDERS = 4  # lines of a lock
_WAITED = "CPU waits"
_TIMES = (" CPU own", "CPU total", "ready own", "wait own", "wait total")
_SOURCE_COLUMNS = 16  # at least, of a line's text
_OWN_OF = {
    "function": "own time includes that of the native code it called",
    "operator": "seen: samples and waits in it, not calls",
    "library": "own time with what interpreter and C library did for it",
    "task": "asyncio tasks: running, ready and suspended",
    "waker": "waits that each ended",
}
# What is said where there are no rows, and what would have some.
_NONE = {
    "task": "no task of asyncio was seen; those of a running event loop are, with a recording of waits (--async-rate)",
    "lock": "no thread waited for a lock; --by reason has what threads waited for",
    "waker": "no wait ended that was recorded; recordings of --mode cpu have none",
    "reason": "no thread waited; recordings of --mode cpu have no waits",
    "operator": "no operator of a known framework was seen; --group NAME=REGEX names others",
}


def by_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Most time of its own first or as asked, `options.most` rows; nothing unless one of ROW_GROUPINGS is asked for.

    The profile has its spans then, else ValueError.
    """
    if options.by not in ROW_GROUPINGS:
        return []
    work = work_of(profile, options.by == "waker")
    threads = merged_threads(profile, work, options.merge or "none", folds_short=True)
    found = rows_by(profile, work, options.by, threads, options.with_idle, options.operators)
    rows = sorted_rows(found, options.sort)
    if not rows:
        return wrapped(f"time by {options.by}: {_NONE.get(options.by, 'no stack was seen')}", "  ")
    is_function, is_operator = options.by == "function", options.by == "operator"
    has_waited = options.by == "thread" and any(row.waited_ns for row in rows)
    heading = " ".join((*_TIMES, *[_WAITED] * has_waited)) + "  "
    left_out = "" if options.with_idle or options.by == "task" else "waits for work left out"
    waited = f"{_WAITED} are a part of wait own" * has_waited
    about = "; ".join(part for part in (_OWN_OF.get(options.by, ""), waited, left_out) if part)
    lines = [f"seconds by {options.by}{': ' * bool(about)}{about}"]
    lines.append(
        heading + f"{'library':<{_LIBRARY}} {'module':<{_MODULE}} " * is_function + _SEEN * is_operator + options.by
    )
    origin_of = dict(zip(profile.frames, origins(profile.frames))) if is_function else {}
    columns = max(COLUMNS, options.columns)
    of_lines = [row.frame for row in rows[: options.most] if row.frame and options.by == "line"]
    beside = _with_sources(profile, of_lines, options, columns - width(_times(rows[0])))
    for row in rows[: options.most]:
        text = _times(row, has_waited)
        if is_function and row.frame is not None:
            origin = origin_of[row.frame]
            text += f"{_column(origin.library, _LIBRARY)} {_column(origin.module, _MODULE)} "
        if is_operator:
            text += f"{row.count:>{len(_SEEN) - 2}}  "
        where = f"  from {printable(place_text(row.frame))}" if is_operator and row.frame else ""
        where += (
            f" in {printable(place_text(profile.frames[row.lock.frame]))}" if row.lock and row.lock.frame >= 0 else ""
        )
        name = beside[row.frame] if row.frame in beside else _row_name(row, options.by) + where
        lines.append(shortened(text + name, columns))
        lines += _lock_lines(profile, row.lock) if row.lock else []
    more = len(rows) - options.most
    return [*lines, *[f"and {more:,} more (--limit)"] * (more > 0)]


def _with_sources(profile: Profile, frames: Sequence[Frame], options: RenderOptions, room: int) -> dict[Frame, str]:
    """Function and line of each and, where there is room, the line's text."""
    files = file_names(profile, options)
    paths = [*dict.fromkeys(frame.file for frame in frames if frame.kind == FrameKind.PYTHON)]
    sources = options.sources(paths, profile.info.started_unix_ns) if paths and options.sources else {}
    names = {frame: frame_label(frame, files, function_only=False) for frame in frames}
    texts = {frame: text for frame in frames if (text := source_line(frame, sources))}
    longest = max((width(names[frame]) for frame in texts), default=0)
    if longest + 2 + _SOURCE_COLUMNS <= room:
        names |= {frame: f"{padded(names[frame], longest)}  {text}" for frame, text in texts.items()}
    return names


def _row_name(row: Row, by: str) -> str:
    most = [*row.reasons.items()][:_REASONS]
    reasons = ", ".join(f"{reason_label(reason)} {seconds_text(ns)}" for reason, ns in most)
    named = reason_label(row.name) if by == "reason" else printable(row.name) or "(no name)"
    name = named + f", {printable(row.worker)}" * bool(row.worker)
    return name + (f"  ({reasons})" if reasons and by not in _WITHOUT_REASONS else "")


def _lock_lines(profile: Profile, lock: LockWaits) -> list[str]:
    """Who waited, and who held it meanwhile: `91% by hog (x.py:46), thread Process-7 (5311)`; the smallest together."""
    pids = {profile.threads[thread].pid for thread in lock.threads}
    of_several = f" of {len(pids)} processes" if len(pids) > 1 else ""
    times = counted(lock.count, "time")
    lines = [f"{counted(len(lock.threads), 'thread')}{of_several} waited {times}, while it was held"]
    large = [share for share in lock.holders if share.ns * 20 >= lock.ns][:_HOLDERS]
    for share in large:
        waker = profile.wakers[share.value] if share.value >= 0 else None
        who = printable(waker_name(waker, profile.threads)) if waker else "a thread that is not known"
        who += f" of {printable(waker.process_name) or '?'} ({waker.pid})" if waker and of_several else ""
        place = f"{printable(place_text(profile.frames[share.frame]))}, " if share.frame >= 0 else ""
        lines.append(f"{percent_text(share.ns, lock.ns, 0):>4} by {place}{who}")
    rest = lock.holders[len(large) :]
    if rest:
        others = counted(len({share.value for share in rest}), "other thread")
        lines.append(f"{percent_text(sum(share.ns for share in rest), lock.ns, 0):>4} by {others}")
    return [shortened(f"    {line}", COLUMNS) for line in lines]


def _times(row: Row, has_waited: bool = False) -> str:
    (cpu, ready, wait), (all_cpu, _, all_wait) = row.own_ns, row.total_ns
    times = (cpu, all_cpu, ready, wait, all_wait, *[row.waited_ns] * has_waited)
    return " ".join(f"{seconds_text(ns):>{len(heading)}}" for ns, heading in zip(times, (*_TIMES, _WAITED))) + "  "


def _column(text: str, columns: int) -> str:
    return padded(shortened(printable(text) or "-", columns), columns)
