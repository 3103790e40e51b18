"""A profile and its work -> the figures and places that the rules of a verdict ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bpfprof.known.services import object_text
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import Total, sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.states import AWAIT_REASONS, ThreadState, reason_number, reason_text
from bpfprof.query.answer.causes import CAUSES, MEMORY, cause_ns, causes_of, in_ioctl, largest_cause, makes_room_in
from bpfprof.query.answer.checkpoint_facts import checkpoint_facts
from bpfprof.query.answer.data_facts import data_facts
from bpfprof.query.answer.device_facts import device_facts, main_waits
from bpfprof.query.answer.facts import MAIN_HOLDER, STUCK, Facts
from bpfprof.query.answer.late_rank import late_facts
from bpfprof.query.answer.rank_facts import rank_facts
from bpfprof.query.answer.stuck import hung_facts
from bpfprof.query.answer.whole import Whole, whole_of, whole_of_fronts
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.code.operators import find_operators
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.critical_path import critical_path
from bpfprof.query.steps.phases import find_phases
from bpfprof.query.threads.cpu_throttles import limit_facts
from bpfprof.query.threads.pools import pools_of
from bpfprof.query.waits.chains import waker_name
from bpfprof.query.waits.children import awaited_process
from bpfprof.query.waits.lock_holders import LockWaits, file_locked_for, hog_of, lock_waits, waits_while_held
from bpfprof.query.work.executors import do_items
from bpfprof.query.work.places import WITH_OBJECTS, place_text, top_object, top_place
from bpfprof.query.work.shares import DEVICE, HANDED, IDLE, LOCK, NATIVE, OTHER, PYTHON, READY
from bpfprof.query.work.table import Work

_MIN_CPU_NS = 200_000_000  # less says nothing by ticks of 10 ms
_READY = AWAIT_REASONS.index("ready")
_CALLBACK = ("/asyncio/events.py", "Handle._run")  # what calls callbacks and steps of tasks
_SAMPLE_NS = 10_000_000  # exact time counts as what a clock of 100 Hz would see of it
_SLEEP = reason_number("sleep")
_ONE_LOCK = 0.6  # of the waits for locks: then it is one lock that matters
_INSIDE = 0.3  # of the time that a lock was held while others waited
_DOING = {
    **{"disk": "disk reads or writes", "net": "waits for the network", "sleep": "sleeps", "gil": "waits for the GIL"},
    **{"pipe": "waits for another process", "child": "waits for another process", "device": "calls of a device"},
}


def facts_of(profile: Profile, work: Work, fronts: tuple[int, ...] = ()) -> tuple[Facts, int, Whole]:
    """(what the rules ask, the place of the largest share in Profile.frames, -1: none, what all are parts of)

    fronts: places in Profile.threads of those that are the story; none where the time tells.
    """
    phases = find_phases(work.stack_frames.frames, work.stack_frames)
    everything, path = work, critical_path(profile, work, phases)
    ranks, waits_at, mains = rank_facts(profile, work, phases, path)
    mains = fronts or mains or main_waits(profile, work)
    whole = whole_of_fronts(profile, work, mains) if mains else whole_of(profile, work, path)
    work = replace(work, rows=whole.rows) if mains else whole.work
    causes = causes_of(work)
    by_cause = cause_ns(work.rows, causes)
    working_ns = int(by_cause.sum())
    parts = tuple((by_cause / max(working_ns, 1)).tolist())
    first, part = largest_cause(parts)
    functions = np.append(function_of_frames(profile.frames), -1)
    of_first, frame, holds_most = _first_facts(profile, work, causes, first, functions)
    duration_ns = _duration_ns(profile)
    cpu_ns = _cpu_ns(everything)
    facts = Facts(
        samples=_samples(profile, everything),
        duration_ns=duration_ns,
        least_ns=profile.info.least_ns,
        is_of_all=not profile.filter_text,
        working_ns=working_ns,
        busy_part=_busy_part(profile, everything, duration_ns),
        first=first,
        part=part,
        of_whole=working_ns / max(whole.ns, 1),
        parts=parts,
        cpu_count=cpu_ns / max(duration_ns, 1),
        thread_count=int((_busy_ns(profile, everything) * 20 > duration_ns).sum()),
        room_part=_room_part(work, causes),
        device_cpu_part=1 - float(work.share_ns()[DEVICE]) / max(int(by_cause[DEVICE]), 1),
        **of_first,
        **_idle_facts(profile, work, functions),
        **_kernel_facts(profile, cpu_ns, duration_ns),
        collection_part=_collection_part(work),
        **_pool_facts(profile, everything, cpu_ns),
        **limit_facts(profile, everything, duration_ns),
        **device_facts(profile, work),
    )
    hung, place = hung_facts(profile, everything)
    facts = replace(facts, **hung)
    if facts.deadlock or facts.stuck_part >= STUCK:
        part = max(facts.stuck_part, float(parts[LOCK]) if facts.deadlock else 0.0)
        return replace(facts, part=part), place, whole
    if ranks:
        return replace(facts, **ranks), waits_at, whole
    if path and (path.data_ns + path.loading_ns) * 4 > path.wall_ns:
        of_data, made_at = data_facts(profile, everything, path, facts.duration_ns)
        facts, frame = replace(facts, **of_data), made_at if made_at >= 0 else frame
    if saves := checkpoint_facts(profile, work, phases, causes, whole.ns):
        facts, frame = replace(facts, **saves[0]), saves[1]
    late, late_at = late_facts(profile, path.loops if path else ())
    if late:
        return replace(facts, **late), late_at, whole
    return facts, holds_most if holds_most >= 0 else frame, whole


def _first_facts(
    profile: Profile, work: Work, causes: Ints, first: str, functions: Ints
) -> tuple[dict[str, Any], int, int]:
    """(those of Facts that say something of the largest cause, the frame of most of it, that of its main holder or -1)

    causes, functions: of each row of the work its cause, of each frame its function.
    """
    lock_part = _first_lock_part(work)
    is_first = np.isin(causes, (PYTHON, NATIVE) if first in ("python", "native") else (CAUSES.index(first),))
    is_one_lock = first == "lock" and lock_part >= _ONE_LOCK
    frame, where_part = top_place(work, is_first & (work.rows["lock"] == 1) if is_one_lock else is_first, functions)
    if frame < 0 or profile.frames[frame].kind != FrameKind.PYTHON:
        # Of threads without Python it is the line that waits for them, or that does the same.
        awaiting, part_of_it = top_place(work, is_first | (work.rows["share"] == HANDED), functions, in_python=True)
        frame, where_part = (awaiting, part_of_it) if awaiting >= 0 else (frame, where_part)
    facts: dict[str, Any] = {
        "lock_part": lock_part,
        "where": _text(profile, frame),
        "where_part": where_part,
        "in_loop": _is_in_loop(work, is_first),
        **_task_facts(profile, work, is_first),
        "object": _object_text(profile, work, causes, CAUSES.index(first)),
    }
    holder, holder_part = -1, 0.0
    if first == "gil":
        holder, holder_part = _gil_holder(profile, work, functions)
    elif first == "lock":
        facts["inside"] = _held_through(profile, work)
        (lock,) = lock_waits(profile, work, 1)[:1] if is_one_lock else (None,)
        if lock and (hog := hog_of(lock, functions)):
            facts["hog"], facts["hog_part"] = _hog_text(profile, lock, hog), hog.ns / lock.ns
            if functions[hog.frame] != functions[frame]:
                holder, holder_part = hog.frame, hog.ns / lock.ns
        elif lock:
            locked_file, facts["hog"] = file_locked_for(profile, lock)
            facts["object"] = facts["object"] or object_text(locked_file)
    elif first == "child":
        facts["child"] = awaited_process(profile)
    elif first == "other":
        facts["waits_for"] = _other_reason(work)
    elif first == "native":
        facts |= _operator_facts(work, is_first)
    facts |= {"holder": _text(profile, holder), "holder_part": holder_part}
    return facts, frame, holder if holder_part >= MAIN_HOLDER else -1


def _idle_facts(profile: Profile, work: Work, functions: Ints) -> dict[str, Any]:
    """Of what threads do that have no work; who waits for another one counts where all do."""
    is_idle = work.rows["share"] == IDLE
    is_idle = is_idle if is_idle.any() else work.rows["share"] >= IDLE
    sleeps = is_idle & (work.rows["reason"] == _SLEEP)
    is_asleep = 2 * int(work.rows["ns"][sleeps].sum()) > int(work.rows["ns"][is_idle].sum())
    place, _ = top_place(work, sleeps if is_asleep else is_idle, functions)
    return {"idle_where": _text(profile, place), "is_idle_asleep": is_asleep}


def _operator_facts(work: Work, chosen: Bools) -> dict[str, Any]:
    """Of the operator with most of the chosen rows, those of Facts that say something of it."""
    operators, rows = find_operators(work.stack_frames.frames, work.stack_frames), work.rows[chosen]
    of_row = np.append(operators.of_frame, -1)[operators.owner[rows["stack"]]]
    best = next((each for each in totals_of(of_row, rows["ns"]) if each.value >= 0), None)
    if best is None:
        return {}
    return {"operator": operators.names[best.value], "operator_part": best.ns / max(int(rows["ns"].sum()), 1)}


def _pool_facts(profile: Profile, work: Work, cpu_ns: int) -> dict[str, Any]:
    """Of the largest pool of threads, those of Facts that say something of it."""
    pool = next(iter(pools_of(profile, work)), None)
    if pool is None:
        return {}
    pids = {int(profile.threads[thread].pid) for thread in pool.threads}
    ready_ns = int(work.rows["ns"][work.rows["share"] == READY].sum())
    return {
        "pool": pool.name,
        "pool_threads": len(pool.threads),
        "pool_processes": len(pids),
        "pool_cpus": max((profile.info.cpu_limits.get(pid, 0.0) for pid in pids), default=0.0),
        "pool_part": (pool.cpu_ns + pool.ready_ns) / max(cpu_ns + ready_ns, 1),
        "pool_setting": pool.setting,
        "spin_part": pool.spin_ns / max(cpu_ns, 1),
    }


def _text(profile: Profile, frame: int) -> str:
    return place_text(profile.frames[frame]) if frame >= 0 else ""


def _duration_ns(profile: Profile) -> int:
    """From the first moment of any thread to the last of any."""
    seen = [thread for thread in profile.threads if thread.wall_ns > 0]
    return max(each.last_ns for each in seen) - min(each.first_ns for each in seen) if seen else 0


def _samples(profile: Profile, work: Work) -> int:
    off_cpu_ns = int(work.rows["ns"].sum()) - _cpu_ns(work)
    return sum(thread.sample_count for thread in profile.threads) + off_cpu_ns // _SAMPLE_NS


def _cpu_ns(work: Work) -> int:
    rows = work.rows
    return int(rows["ns"][(rows["share"] < IDLE) & (rows["state"] == ThreadState.ON_CPU)].sum())


def _busy_ns(profile: Profile, work: Work) -> Ints:
    """How long each thread worked."""
    is_working = work.rows["share"] < IDLE
    return sums_by(work.rows["thread"][is_working], work.rows["ns"][is_working], len(profile.threads))


def _busy_part(profile: Profile, work: Work, duration_ns: int) -> float:
    """How much of the time the busiest thread worked; threads that lived for less than half of it count as one."""
    busy_ns = _busy_ns(profile, work)
    is_short = np.array([2 * thread.wall_ns < duration_ns for thread in profile.threads], np.bool_)
    busiest_ns = max(int(busy_ns[is_short].sum()), int(busy_ns[~is_short].max(initial=0)))
    return min(1.0, busiest_ns / max(duration_ns, 1))


def _gil_holder(profile: Profile, work: Work, functions: Ints) -> tuple[int, float]:
    """(the frame that held the GIL for most of the time that others waited for it, its part of that)"""
    rows = profile.gil_waits
    own = np.append(work.own, -1)[rows["stack"].astype(np.int64) - 1]
    found = totals_of(functions[own], rows["ns"].astype(np.int64), own)
    known = [share for share in found if share.frame >= 0]
    if not known:
        return -1, 0.0
    by_function: dict[int, int] = {}
    for share in known:
        by_function[share.value] = by_function.get(share.value, 0) + share.ns
    best = max(by_function, key=lambda function: (by_function[function], -function))
    line = next(share.frame for share in known if share.value == best)
    return line, by_function[best] / sum(share.ns for share in found)


def _first_lock_part(work: Work) -> float:
    """Of all waits for locks those for the lock with most of them."""
    locks = work.rows[work.rows["share"] == LOCK]
    return float(locks["ns"][locks["lock"] == 1].sum()) / max(int(locks["ns"].sum()), 1)


def _object_text(profile: Profile, work: Work, causes: Ints, cause: int) -> str:
    rows = work.rows[causes == cause]
    if cause == DEVICE:  # on a CPU in a call it is not known; it is of those who left the CPU in it
        rows = work.rows[(causes == cause) | in_ioctl(work.stack_frames)[work.rows["stack"]]]
        rows = rows[rows["object"] > 0]
    place = top_object(rows)[0] if cause in WITH_OBJECTS else -1
    return object_text(profile.objects[place]) if place >= 0 else ""


def _hog_text(profile: Profile, lock: LockWaits, hog: Total) -> str:
    """`hog (x.py:46) of Process-7 (5311)`; the thread where it is one, and its process instead if several wait."""
    place = _text(profile, hog.frame)
    if hog.value < 0:
        return place
    waker = profile.wakers[hog.value]
    is_shared = len({profile.threads[thread].pid for thread in lock.threads}) > 1
    who = f"{waker.process_name} ({waker.pid})" if is_shared else waker_name(waker, profile.threads)
    return f"{place} of {who}" if place else who


def _held_through(profile: Profile, work: Work) -> str:
    """What those who held the first lock waited for, if that was so for much of the time that others waited."""
    if not (work.lock_waits["number"] == 1).any():
        return ""
    held_ns, reasons = waits_while_held(profile, work, 1)
    for share in reasons[:2]:
        word = reason_text(share.value)
        if word in _DOING and share.ns >= _INSIDE * held_ns > 0:
            return _DOING[word]
    return ""


def _kernel_facts(profile: Profile, cpu_ns: int, duration_ns: int) -> dict[str, Any]:
    """What the kernel counted; its part of the CPU time is 0 where it is not known of most of that."""
    usage, second = profile.info.usage.values(), max(duration_ns, 1) / 1e9
    faults, reads, own_ns, kernel_ns = (sum(row[column] for row in usage) for column in range(4))
    is_known = own_ns + kernel_ns > max(cpu_ns // 2, _MIN_CPU_NS)
    return {
        "kernel_part": kernel_ns / (own_ns + kernel_ns) if is_known else 0.0,
        "faults_per_s": (faults + reads) / second,
        "reads_per_s": reads / second,
        "limit_hits_per_s": max(profile.info.limit_hits.values(), default=0) / second,
    }


def _collection_part(work: Work) -> float:
    rows = work.rows[work.rows["state"] == ThreadState.ON_CPU]
    collects = work.stack_frames.collect_garbage()
    return float(rows["ns"][collects[rows["stack"]]].sum()) / max(int(rows["ns"].sum()), 1)


def _task_facts(profile: Profile, work: Work, chosen: Bools) -> dict[str, Any]:
    """How many tasks of event loops waited at a time; those of executors where most of the chosen rows are theirs."""
    spans, second = profile.task_spans, max(_duration_ns(profile), 1)
    waits, is_ready = ~spans["is_running"], spans["reason"] == _READY
    rows = work.rows[chosen]
    of_executor = rows["ns"][do_items(work.stack_frames)[rows["stack"]]].sum() * 2 > rows["ns"].sum()
    wanted = work.wanted_threads if of_executor else None
    return {
        "loop_tasks": int(spans["stands_for_ns"][waits].sum() / second),
        "ready_tasks": round(float(spans["stands_for_ns"][waits & is_ready].sum() / second)),
        "executor_tasks": round(wanted.tasks) if wanted else 0,
        "executor_threads": round(wanted.threads) if wanted else 0,
    }


def _room_part(work: Work, causes: Ints) -> float:
    rows = work.rows[causes == MEMORY]
    made = rows["ns"][makes_room_in(work.stack_frames)[rows["stack"]]].sum()
    return float(made) / max(int(rows["ns"].sum()), 1)


def _is_in_loop(work: Work, chosen: Bools) -> bool:
    rows = work.rows[chosen]
    tail, name = _CALLBACK
    called = work.stack_frames.have(
        [frame.name == name and frame.file.endswith(tail) for frame in work.stack_frames.frames]
    )
    return bool(rows["ns"][called[rows["stack"]]].sum() * 2 > rows["ns"].sum())


def _other_reason(work: Work) -> str:
    rows = work.rows[work.rows["share"] == OTHER]
    word = reason_text(totals_of(rows["reason"], rows["ns"])[0].value)
    return "what is not known" if word == "unknown" else word
