"""Profile -> who waited for the GIL, and in which function of which thread it was held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bpfprof.model.grouping import Total, totals_of
from bpfprof.model.profile import Profile
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.threads.roles import role_members
from bpfprof.query.waits.chains import GilWait, convoys, gil_waits
from bpfprof.render.columns import COLUMNS, duration_text, percent_text, shortened, width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.header import counted
from bpfprof.render.labels import frame_labels, printable

_MAX_WAITERS = 8
_MANY = 2  # threads of a process, from which on it has a line of its own
_MAX_HOLDERS = 3
_MAIN_PART = 4  # one part in so many makes a holder worth to be looked at, with those after it
_MAX_FREE = 3


def gil_block(profile: Profile, options: RenderOptions) -> list[str]:
    """Per process, then per role of its threads and large holder, and who has no GIL; [] when nobody waited for one."""
    members = role_members(profile.threads)
    group_of = np.zeros(len(profile.threads), np.int64)
    for first, group in members.items():
        group_of[group] = first
    waits = gil_waits(profile, group_of)
    without = _without_gil(profile, waits)
    if not waits and not without:
        return []
    labels = frame_labels(profile, options)
    lines = ["waits for the GIL", *without, *_processes(profile)]
    for wait in waits[:_MAX_WAITERS]:
        lines += _lines_of(profile, labels, wait, members)
    if len(waits) > _MAX_WAITERS:
        rest = waits[_MAX_WAITERS:]
        rest_ns = sum(wait.total_ns for wait in rest)
        threads = sum(len(members[wait.thread]) for wait in rest)
        lines.append(f"and {counted(threads, 'more thread')}, together {duration_text(rest_ns)}")
    return lines


def _processes(profile: Profile) -> list[str]:
    """`python a.py (100): 2.1 s of 8 threads, 41% of their time; while one waited, 3.2 did on average`."""
    length, lines = convoys(profile), []
    by_pid: dict[int, list[int]] = {}
    for share in totals_of(profile.gil_waits["thread"], profile.gil_waits["ns"].astype(np.int64)):
        by_pid.setdefault(profile.threads[share.value].pid, []).append(share.value)
    waited = {share.value: share.ns for share in totals_of(profile.gil_waits["thread"], profile.gil_waits["ns"])}
    for pid, threads in list(by_pid.items())[:_MAX_WAITERS]:
        if len(threads) < _MANY:
            continue
        total_ns = sum(waited[thread] for thread in threads)
        wall_ns = sum(profile.threads[thread].wall_ns for thread in threads)
        name = printable(profile.threads[threads[0]].process_name)
        line = f"{name} ({pid}): {duration_text(total_ns)} of {len(threads)} threads, "
        line += f"{percent_text(total_ns, wall_ns, 0)} of their time"
        line += f"; while one waited, {length[pid]:.1f} did on average" if pid in length else ""
        lines.append(shortened(line))
    return lines


def holder_text(
    profile: Profile, labels: list[str], holder: Total, columns: int, members: dict[int, list[int]] | None = None
) -> str:
    """`hog (oracle.py:12) of thread hog (31010)`, in at most so many columns, 60 or more."""
    if holder.value < 0:
        return "a holder that is not known"
    who = _who(profile, (members or {}).get(holder.value, [holder.value]), "thread ")
    return f"{shortened(labels[holder.frame], columns - width(who) - 4)} of {who}" if holder.frame >= 0 else who


def _who(profile: Profile, threads: list[int], one: str = "") -> str:
    """`hog (31010)`, `worker_0..7 (8 threads)`."""
    if len(threads) == 1:
        thread = profile.threads[threads[0]]
        return f"{one}{_short_name(thread.thread_name)} ({thread.tid})"
    name = folded_name([profile.threads[thread].thread_name for thread in threads])
    return f"{_short_name(name)} ({len(threads)} threads)"


def largest(shares: Sequence[Total], most: int) -> tuple[list[Total], int]:
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
    names = dict.fromkeys(
        f"{printable(each.process_name)} ({each.pid})" for each in profile.threads if each.pid in free
    )
    if not names:
        return []
    shown = ", ".join([*names][:_MAX_FREE]) + (f" and {len(names) - _MAX_FREE} more" if len(names) > _MAX_FREE else "")
    return [f"none in {shown}: the free-threaded CPython has no GIL"]


def _lines_of(profile: Profile, labels: list[str], wait: GilWait, members: dict[int, list[int]]) -> list[str]:
    begin = f"{_who(profile, members[wait.thread])}: {duration_text(wait.total_ns)} for the GIL; held "
    lines = []
    has_main = bool(wait.holders) and wait.holders[0].ns * _MAIN_PART >= wait.total_ns
    holders, rest_ns = largest(wait.holders, _MAX_HOLDERS if has_main else 1)
    for holder in holders:
        word = "in" if holder.value >= 0 and holder.frame >= 0 else "by"
        begin += f"{percent_text(holder.ns, wait.total_ns, 0)} {word} "
        lines.append(shortened(begin + holder_text(profile, labels, holder, COLUMNS - width(begin), members)))
        begin = " " * 4
    others = others_text(len(wait.holders) - len(holders), rest_ns, wait.total_ns)
    return [*lines, begin + others] if others else lines


def _short_name(name: str) -> str:
    return shortened(printable(name) or "?", 16)
