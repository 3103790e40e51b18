"""Profile -> who waited for the GIL, and behind which function of which thread."""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.model.profile import Profile
from bpfprof.query.chains import GilWait, Share, gil_waits
from bpfprof.render.columns import COLUMNS, duration_text, percent_text, shortened, width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import clean, frame_labels

_MAX_WAITERS = 8
_MAX_HOLDERS = 3
_MAX_FREE = 3


def gil_block(profile: Profile, options: RenderOptions) -> list[str]:
    """A line a thread and large holder, and who has no GIL; [] when everybody has one and nobody waited for it."""
    waits = gil_waits(profile)
    without = _without_gil(profile, waits)
    if not waits and not without:
        return []
    labels = frame_labels(profile, options)
    lines = ["waits for the GIL", *without]
    for wait in waits[:_MAX_WAITERS]:
        lines += _lines_of(profile, labels, wait)
    if len(waits) > _MAX_WAITERS:
        rest = waits[_MAX_WAITERS:]
        rest_ns = sum(wait.total_ns for wait in rest)
        lines.append(f"and {counted(len(rest), 'more thread')}, together {duration_text(rest_ns)}")
    return lines


def holder_text(profile: Profile, labels: list[str], holder: Share, columns: int) -> str:
    """`hog (oracle.py:12) of thread hog (31010)`, in at most so many columns, 60 or more."""
    if holder.value < 0:
        return "a holder that is not known"
    thread = profile.threads[holder.value]
    who = f"thread {_short_name(thread.thread_name)} ({thread.tid})"
    return f"{shortened(labels[holder.frame], columns - width(who) - 4)} of {who}" if holder.frame >= 0 else who


def largest(shares: Sequence[Share], most: int) -> tuple[list[Share], int]:
    """(the first ones, up to so many; how long the others took), without parts under 1% beside the first."""
    all_ns = sum(share.ns for share in shares)
    shown = [share for number, share in enumerate(shares[:most]) if not number or share.ns * 100 >= all_ns]
    return shown, all_ns - sum(share.ns for share in shown)


def others_text(count: int, ns: int, all_ns: int) -> str:
    """`and 4 others, 55%`; "" where they are under 1%."""
    return f"and {counted(count, 'other')}, {percent_text(ns, all_ns, 0)}" if ns * 100 >= all_ns > 0 else ""


def _without_gil(profile: Profile, waits: Sequence[GilWait]) -> list[str]:
    """A free-threaded CPython has a GIL where PYTHON_GIL=1 asks for it, or a module of its program needs it."""
    free = set(profile.info.free_threaded) - {profile.threads[wait.thread].pid for wait in waits}
    names = dict.fromkeys(f"{clean(each.process_name)} ({each.pid})" for each in profile.threads if each.pid in free)
    if not names:
        return []
    shown = ", ".join([*names][:_MAX_FREE]) + (f" and {len(names) - _MAX_FREE} more" if len(names) > _MAX_FREE else "")
    return [f"none in {shown}: the free-threaded CPython has no GIL"]


def _lines_of(profile: Profile, labels: list[str], wait: GilWait) -> list[str]:
    thread = profile.threads[wait.thread]
    begin = f"{_short_name(thread.thread_name)} ({thread.tid}): waited {duration_text(wait.total_ns)}, "
    lines = []
    holders, rest_ns = largest(wait.holders, _MAX_HOLDERS)
    for holder in holders:
        begin += f"{percent_text(holder.ns, wait.total_ns, 0)} behind "
        lines.append(shortened(begin + holder_text(profile, labels, holder, COLUMNS - width(begin))))
        begin = " " * 4
    others = others_text(len(wait.holders) - len(holders), rest_ns, wait.total_ns)
    return [*lines, begin + others] if others else lines


def _short_name(name: str) -> str:
    return shortened(clean(name) or "?", 16)
