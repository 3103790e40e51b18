"""Profile with its spans -> JSON for other programs: verdict, totals, rows, threads and quality; times in seconds."""

from __future__ import annotations

import json
from typing import Any

from bpfprof.model.frames import Frame
from bpfprof.model.profile import Profile
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.tables.choices import CALL, OF_FRAMES, STEP
from bpfprof.query.tables.merging import merged_threads
from bpfprof.query.tables.rows import Row, rows_by, sorted_rows
from bpfprof.query.threads.losses import losses_of
from bpfprof.query.threads.roles import thread_shares
from bpfprof.query.waits.chains import thread_name
from bpfprof.query.waits.lock_holders import LockWaits
from bpfprof.query.work.shares import SHARES
from bpfprof.query.work.table import Work, work_of
from bpfprof.render.concurrency import concurrency_json
from bpfprof.render.formats import RenderOptions
from bpfprof.render.labels import printable
from bpfprof.render.library_calls import library_calls_json
from bpfprof.render.lock_orders import last_wait_json, lock_order_json
from bpfprof.render.quality import lost_count
from bpfprof.render.steps import steps_json


def render_json(profile: Profile, options: RenderOptions) -> str:
    """One object; rows by function unless another grouping is asked for."""
    work = work_of(profile, options.by == "waker")
    content = {
        "verdict": _verdict(profile, work),
        "totals": _totals(profile, work),
        **_rows(profile, options, work),
        "threads": _threads(profile, work),
        **concurrency_json(profile),
        **library_calls_json(profile),
        **lock_order_json(profile, work),
        "quality": quality_json(profile),
    }
    return json.dumps(content, indent=1) + "\n"


def _rows(profile: Profile, options: RenderOptions, work: Work) -> dict[str, Any]:
    """Steps are no rows of time: there may be those of several processes, with figures of all of them."""
    if options.by == STEP:
        return steps_json(profile, options)
    if options.by == CALL:
        return {}
    return {"rows": json_rows(profile, options, work)[1]}


def json_rows(profile: Profile, options: RenderOptions, work: Work | None = None) -> tuple[str, list[dict[str, Any]]]:
    """(what they are by, the rows)"""
    work = work or work_of(profile, options.by == "waker")
    by = "function" if options.by == "stack" else options.by
    threads = merged_threads(profile, work, options.merge) if options.merge else None
    rows = sorted_rows(rows_by(profile, work, by, threads, options.with_idle, options.operators), options.sort)
    return by, [_row(row, by) | _lock(profile, row.lock) for row in rows]


def _verdict(profile: Profile, work: Work) -> dict[str, Any]:
    verdict = verdict_of(profile, work)
    return {
        "bound": verdict.bound,
        "share": round(verdict.share, 4),
        "sentence": printable(verdict.sentence),
        "advice": verdict.advice,
        "where": _place(verdict.where) if verdict.where else None,
        "of": {
            "s": _seconds(verdict.whole.ns),
            "threads": [int(profile.threads[thread].tid) for thread in verdict.whole.threads],
        },
    }


def _place(frame: Frame) -> dict[str, Any]:
    return {"function": printable(frame.name), "file": printable(frame.file), "line": frame.line or None}


def _totals(profile: Profile, work: Work) -> dict[str, float]:
    cpu, ready, wait, idle = map(sum, zip(*work.thread_kinds(len(profile.threads)), (0, 0, 0, 0)))
    return {
        "wall_s": _seconds(sum(thread.wall_ns for thread in profile.threads)),
        "cpu_s": _seconds(cpu),
        "ready_s": _seconds(ready),
        "wait_s": _seconds(wait),
        "idle_s": _seconds(idle),
        "cpu_waiting_s": _seconds(sum(work.waiting_cpu_ns(len(profile.threads)))),  # a part of wait_s
    }


def _row(row: Row, by: str) -> dict[str, Any]:
    found: dict[str, Any] = {by: printable(row.name)}
    if row.frame is not None and by in OF_FRAMES:
        found["file"] = printable(row.frame.file) if by != "library" else None
        found["line"] = (row.frame.line or None) if by in ("function", "line", "operator") else None
        if by == "operator":
            found["function"] = printable(row.frame.name)
        if by == "line":
            found["line"], found["function"] = row.frame.line or None, printable(row.frame.name)
    if row.worker:
        found["worker"] = printable(row.worker)
    for name, own, total in zip(("cpu", "ready", "wait"), row.own_ns, row.total_ns):
        found |= {f"{name}_self_s": _seconds(own), f"{name}_total_s": _seconds(total)}
    found["count"] = row.count
    found["reasons"] = {printable(reason): _seconds(ns) for reason, ns in row.reasons.items()}
    return found


def _lock(profile: Profile, lock: LockWaits | None) -> dict[str, Any]:
    """Of a row of a lock: where it is taken, who waits, and who held it in the meantime; nothing of other rows."""
    if lock is None:
        return {}
    holders = []
    for share in lock.holders:
        waker = profile.wakers[share.value] if share.value >= 0 else None
        holders.append(
            {
                "pid": int(waker.pid) if waker else None,
                "tid": int(waker.tid) if waker else None,
                "process": printable(waker.process_name) if waker else None,
                "name": printable(thread_name(waker, profile.threads)) if waker else None,
                "where": _place(profile.frames[share.frame]) if share.frame >= 0 else None,
                "wait_s": _seconds(share.ns),
            }
        )
    return {
        "where": _place(profile.frames[lock.frame]) if lock.frame >= 0 else None,
        "waiting_tids": [int(profile.threads[thread].tid) for thread in lock.threads],
        "holders": holders,
    }


def _threads(profile: Profile, work: Work) -> list[dict[str, Any]]:
    found = []
    shares_of, last = thread_shares(profile, work), {wait.thread: wait for wait in profile.last_waits}
    stuck = {*work.stuck["thread"].tolist()}
    kinds_of_all, waiting = work.thread_kinds(len(profile.threads)), work.waiting_cpu_ns(len(profile.threads))
    for place, (thread, shares, kinds) in enumerate(zip(profile.threads, shares_of, kinds_of_all)):
        times = dict(zip(("cpu_s", "ready_s", "wait_s", "idle_s"), map(_seconds, kinds)))
        found.append(
            {
                "pid": int(thread.pid),
                "tid": int(thread.tid),
                "process": printable(thread.process_name),
                "parent_pid": thread.parent_pid or None,
                "name": printable(thread.thread_name),
                "wall_s": _seconds(thread.wall_ns),
                **times,
                "cpu_waiting_s": _seconds(waiting[place]),  # of wait_s what was on a CPU
                "shares": {
                    name: _seconds(ns) for name, ns in zip((*SHARES, "idle", "waits_for_threads"), shares) if ns
                },
                "stuck": place in stuck,
                "waits_for": last_wait_json(last[place], profile) if place in last else None,
            }
        )
    return found


def quality_json(profile: Profile) -> dict[str, Any]:
    quality = profile.quality
    wall_ns = sum(thread.wall_ns for thread in profile.threads)
    stacks = quality.complete_count + sum(quality.truncated_counts.values())
    return {
        "accounted": _part(sum(thread.accounted_ns for thread in profile.threads), wall_ns),
        "stacks_complete": _part(quality.complete_count, stacks),
        "lost": lost_count(profile),
        "own_cpu": _part(quality.own_cpu_ns, quality.recording_ns),
        "unfinished": printable(quality.unfinished),
        "lost_processes": [
            {
                "pid": loss.pid,
                "process": printable(loss.process_name),
                "lost_s": _seconds(loss.lost_ns),
                "share": _part(loss.lost_ns, loss.whole_ns),
            }
            for loss in losses_of(profile)
        ],
    }


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 9)


def _part(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole > 0 else None
