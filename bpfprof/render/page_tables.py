"""Profile -> what the page says in words and tables: the answers of the same queries that the terminal shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import Total, sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.states import reason_text
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.code.functions import Ints, function_name, object_name
from bpfprof.query.code.origins import KERNEL, OWN_CODE, is_runtime, origins, python_origin
from bpfprof.query.tables.groups import WaitGroup, group_waits
from bpfprof.query.tables.merging import MANY, merged_threads
from bpfprof.query.threads.roles import roles_of
from bpfprof.query.waits.chains import convoys, gil_waits, thread_name
from bpfprof.query.waits.lock_holders import lock_waits
from bpfprof.query.work.places import places_of
from bpfprof.query.work.shares import SHARE_NAMES
from bpfprof.query.work.table import Work
from bpfprof.render.concurrency import concurrency_table
from bpfprof.render.formats import RenderOptions
from bpfprof.render.frame_look import python_look, wait_reason
from bpfprof.render.header import counted, recording_facts, unread_sentences
from bpfprof.render.labels import MARKS, file_names, mark_text, printable, reason_label
from bpfprof.render.lock_orders import deadlock_lines
from bpfprof.render.named_locks import MOST_LOCKS
from bpfprof.render.page_spans import KINDS, kind_of_reason
from bpfprof.render.palette import PALETTE
from bpfprof.render.quality import lost_count, quality_line
from bpfprof.render.summary import command_text, mostly_of, whole_text
from bpfprof.render.wait_details import WaitDetails

_MAX_GROUPS = 64  # rows of the timeline that a person can look through
_PLACES, _GROUPS, _HOLDERS = 40, 200, 40
_GOOD_ACCOUNT, _GOOD_STACKS = 0.99, 0.98
# How a frame looks: places in this, as the page has them.
LOOKS = ("own", "library", "stdlib", "native", "kernel", "mark", "group")
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class Groups:
    """Threads whose stacks stand below one node. group_of: for each thread a place in `names`, which differ."""

    names: list[str]
    group_of: Ints


def page_groups(profile: Profile, work: Work, merge: str) -> Groups:
    """Of more than a few threads those of a role; those that worked most come first, and of many the last are one."""
    merged = merged_threads(profile, work, merge or ("role" if len(profile.threads) > MANY else "none"))
    shown = [printable(thread.thread_name) or "?" for thread in merged.threads]
    several = {name for name, count in Counter(shown).items() if count > 1}
    ids = [f" ({thread.thread_id})" if name in several else "" for name, thread in zip(shown, merged.threads)]
    names = [name + number for name, number in zip(shown, ids)]
    working = work.working
    order = np.argsort(-sums_by(merged.group_of[working["thread"]], working["ns"], len(names)), kind="stable")
    place = np.argsort(order)
    names = [names[each] for each in order.tolist()]
    if len(names) > _MAX_GROUPS:
        names = [*names[: _MAX_GROUPS - 1], "others"]
        place = np.minimum(place, _MAX_GROUPS - 1)
    return Groups(names, place[merged.group_of])


def page_tables(profile: Profile, work: Work, groups: Groups, options: RenderOptions) -> dict[str, Any]:
    """JSON of it, without waits."""
    info, verdict = profile.info, verdict_of(profile, work)
    return {
        "title": printable(options.title) or command_text(profile) or "all processes",
        "facts": recording_facts(profile),
        "command": printable(" ".join(info.command_line)),
        "version": printable(info.bpfprof_version),
        "duration_ns": info.duration_ns,
        "filter": printable(profile.filter_text[2:]),
        "palette": PALETTE,
        "kinds": KINDS,
        "looks": LOOKS,
        "verdict": _verdict(profile, verdict),
        "places": _places(profile, work, verdict),
        "roles": [
            {"name": printable(role.name), "threads": role.threads, "mostly": mostly_of(role)}
            for role in roles_of(profile, work)
        ],
        "groups": groups.names,
        "threads": _threads(profile, groups),
        "concurrency": concurrency_table(profile),
        "locks": _locks(profile, work),
        "gil": _gil(profile, groups),
        "quality": _quality(profile),
    }


def _verdict(profile: Profile, verdict: Verdict) -> dict[str, Any]:
    return {
        "bound": verdict.bound,
        "sentence": printable(verdict.sentence),
        "advice": printable(verdict.advice),
        "whole": whole_text(verdict.whole),
        "deadlocks": deadlock_lines(profile),
        "unread": unread_sentences(profile),
    }


def _places(profile: Profile, work: Work, verdict: Verdict) -> list[dict[str, Any]]:
    found = []
    for place in places_of(profile, work, verdict.whole.working, verdict.place)[:_PLACES]:
        words = [
            f"lock #{lock}" if lock else SHARE_NAMES[share]
            for (share, lock), ns in place.mostly
            if ns * 5 >= place.own_ns
        ]
        times = {"cpu": place.cpu_ns, "ready": place.ready_ns, "wait": place.wait_ns, "total": place.total_ns}
        found.append({"frame": place.frame, **times, "mostly": ", ".join(dict.fromkeys(words))})
    return found


def _threads(profile: Profile, groups: Groups) -> list[dict[str, Any]]:
    return [
        {
            "name": printable(thread.thread_name) or "?",
            "process": printable(thread.process_name) or "?",
            "pid": int(thread.pid),
            "tid": int(thread.tid),
            "group": int(groups.group_of[index]),
        }
        for index, thread in enumerate(profile.threads)
    ]


def page_frames(profile: Profile, options: RenderOptions) -> dict[str, list[Any]]:
    """Columns; `file`: place in the column `files`; `mark`: place in KINDS of a mark, else -1; `plumbing`: 1 or 0."""
    files = file_names(profile, options)
    numbers: dict[str, int] = {"": 0}
    shown = [""]
    found: dict[str, list[Any]] = {name: [] for name in ("name", "file", "line", "look", "mark", "plumbing")}
    for frame, origin in zip(profile.frames, origins(profile.frames)):
        if frame.file not in numbers:
            numbers[frame.file] = len(shown)
            is_python = frame.kind == FrameKind.PYTHON
            shown.append(files[frame.file] if is_python else printable(object_name(frame.file)))
        found["name"].append(_frame_name(frame))
        is_named = frame.name or frame.kind not in _NATIVE  # else the name has the file
        found["file"].append(numbers[frame.file] if is_named else 0)
        found["line"].append(0 if options.function_only else frame.line)
        found["look"].append(_look(frame, origin.library))
        found["mark"].append(_mark(frame))
        found["plumbing"].append(int(frame.kind in _NATIVE and is_runtime(origin.library)))
    found["files"] = shown
    return found


def _frame_name(frame: Frame) -> str:
    if frame.kind in MARKS:
        return mark_text(frame)
    if frame.kind in _NATIVE and not frame.name:
        return f"{printable(object_name(frame.file)) or 'code'}+0x{frame.offset:x}"
    return printable(function_name(frame)) or "(no name)"


def _look(frame: Frame, library: str) -> int:
    if frame.kind == FrameKind.PYTHON:
        word = python_look(frame, library)
    else:
        word = "native" if frame.kind in _NATIVE else KERNEL if frame.kind == FrameKind.KERNEL else "mark"
    return LOOKS.index(word)


def _mark(frame: Frame) -> int:
    """The kind of time that a mark is of; of one that is of a CPU too the last but one, which has dots."""
    if frame.kind == FrameKind.WAIT:
        return kind_of_reason(wait_reason(frame))
    if frame.kind == FrameKind.RUNQUEUE:
        return KINDS.index("ready")
    return KINDS.index("lost") if frame.kind in MARKS else -1


def page_waits(profile: Profile, serve_nobody: npt.NDArray[np.bool_], options: RenderOptions) -> list[dict[str, Any]]:
    """JSON of waits by function; serve_nobody: as Work has it, of which no more is needed."""
    groups = group_waits(profile, "function", _GROUPS, idle_threads=serve_nobody)
    details = WaitDetails(profile, "function", options)
    return [_wait(details, group) for group in (*groups.groups, *groups.idle)]


def _wait(details: WaitDetails, group: WaitGroup) -> dict[str, Any]:
    return {
        "function": group.functions[0].value + 1,
        "idle": group.is_idle,
        "name": printable(details.heading(group)),
        "reasons": [(_reason(reason_text(share.value)), share.ns) for share in group.reasons[:4]],
        "kind": kind_of_reason(reason_text(group.reasons[0].value)),
        "ns": group.total_ns,
        "count": group.count,
        "lengths": [group.p50_ns, group.p99_ns, group.max_ns] if group.buckets else None,
        "buckets": [group.first_bucket, *group.buckets],
        "lines": [printable(line.strip()) for line in details.lines(group)],
    }


def _reason(reason: str) -> str:
    return "GIL" if reason == "gil" else reason_label(reason)


def _locks(profile: Profile, work: Work) -> list[dict[str, Any]]:
    found = []
    for lock in lock_waits(profile, work, MOST_LOCKS):
        holders = [_lock_holder(profile, share) for share in lock.holders[:4]]
        names = [printable(profile.threads[thread].thread_name) for thread in lock.threads[:4]]
        more = len(lock.threads) - len(names)
        waiters = ", ".join(names) + f" and {more} more" * (more > 0)
        times = {"ns": lock.ns, "count": lock.count}
        found.append({"number": lock.number, "frame": lock.frame, **times, "waiters": waiters, "holders": holders})
    return found


def _lock_holder(profile: Profile, share: Total) -> tuple[str, int, int]:
    """(who, in which frame or -1, nanoseconds)"""
    waker = profile.wakers[share.value] if share.value >= 0 else None
    name = printable(thread_name(waker, profile.threads)) if waker else ""
    return name or "a holder that is not known", share.frame, share.ns


def _gil(profile: Profile, groups: Groups) -> dict[str, Any]:
    """Where it was held, of all that waited; how many waited while one did. Who waits for whom the page adds up."""
    held: dict[tuple[int, int], int] = {}
    for wait in gil_waits(profile, groups.group_of):
        for share in wait.holders:
            held[share.value, share.frame] = held.get((share.value, share.frame), 0) + share.ns
    ordered = sorted(held.items(), key=lambda item: -item[1])[:_HOLDERS]
    names = {int(thread.pid): thread.process_name for thread in profile.threads}
    return {
        "holders": [{"group": group, "frame": frame, "ns": ns} for (group, frame), ns in ordered],
        "convoys": [f"{printable(names[pid])} ({pid}): {length:.1f}" for pid, length in convoys(profile).items()],
    }


def _quality(profile: Profile) -> dict[str, Any]:
    """level: whole, part or unfinished; word: the worst figure."""
    quality = profile.quality
    wall_ns = sum(thread.wall_ns for thread in profile.threads)
    accounted = sum(thread.accounted_ns for thread in profile.threads) / max(wall_ns, 1)
    stacks = quality.complete_count + sum(quality.truncated_counts.values())
    complete, lost = quality.complete_count / max(stacks, 1), lost_count(profile)
    level, word = "whole", "whole"
    if quality.unfinished:
        level, word = "unfinished", "unfinished"
    elif wall_ns and not _GOOD_ACCOUNT <= accounted <= 2 - _GOOD_ACCOUNT:
        level, word = "part", f"{accounted:.1%} accounted"
    elif lost:
        level, word = "part", f"{lost:,} lost"
    elif stacks and complete < _GOOD_STACKS:
        level, word = "part", f"{complete:.0%} of stacks complete"
    lines = quality_line(profile).removeprefix("quality: ").split("; ")
    return {"level": level, "word": word, "lines": lines, "threads": counted(len(profile.threads), "thread")}


def page_files(profile: Profile, options: RenderOptions, owners: npt.NDArray[np.generic]) -> list[dict[str, Any]]:
    """For each file of Python frames its whole path, and its text or why there is none; exact: the path is as it was.

    owners: places in Profile.frames whose files' text is worth most, most first.
    """
    python = [profile.frames[each] for each in owners.tolist() if profile.frames[each].kind == FrameKind.PYTHON]
    paths = [*dict.fromkeys(frame.file for frame in python)]
    read = options.sources(paths, profile.info.started_unix_ns) if options.sources else {}
    missing = "it is one of many files" if options.sources else "they were left out (--no-source)"
    number = {path: place for place, path in enumerate(dict.fromkeys(["", *(each.file for each in profile.frames)]))}
    own = {path: origin.library == OWN_CODE for path, origin in zip(paths, map(python_origin, paths))}
    found = []
    for path in paths:
        text, why = read.get(path, ("", missing))
        shown = printable(path)
        entry = {"file": number[path], "path": shown, "exact": shown == path, "own": own[path]}
        found.append({**entry, "lines": text.split("\n") if text else [], "why": why})
    return found
