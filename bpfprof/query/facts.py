"""A profile and its work -> the figures and places that the rules of a verdict ask for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_number, reason_text
from bpfprof.query.chains import shares_of
from bpfprof.query.functions import Ints, function_of_frames
from bpfprof.query.places import place_text, top_place
from bpfprof.query.waits import find_waits
from bpfprof.query.work import (
    HANDED,
    IDLE,
    LOCK,
    NATIVE,
    OTHER,
    PYTHON,
    READY,
    SHARES,
    Work,
    sums,
)

_SAMPLE_NS = 10_000_000  # exact time counts as what a clock of 100 Hz would see of it
_ONE_LOCK = 0.6  # of the waits for locks: then it is one lock that matters
_INSIDE = 0.3  # of the time that a lock was waited for
_DOING = {
    **{"disk": "disk reads or writes", "net": "waits for the network", "sleep": "sleeps", "gil": "waits for the GIL"},
    **{"pipe": "waits for another process", "child": "waits for another process", "device": "calls of a device"},
}

MAIN_HOLDER = 0.25  # who held a lock so much of the time is its main holder


def percent(part: float) -> str:
    """`38%`."""
    return "<1%" if 0 < part < 0.005 else f"{100 * part:.0f}%"


@dataclass(frozen=True)
class Facts:
    """What the rules ask and what their sentences say; parts are of the working time, from 0 to 1.

    first: the largest share, one of SHARES, CPU time in Python and native code together as the larger of them.
    busy_part: of its wall time, how much the thread that works most worked. cpu_count: CPUs used on average.
    where: its place, "" if none is known; where_part: of the share; idle_where: what the threads mostly wait in.
    lock_part: of all waits for locks, those for the first; holder: who held it, "" if nobody for most of the time;
    inside: what the holder waited for meanwhile. child: what the awaited process did. waits_for: the reason of OTHER.
    """

    samples: int = 1000
    duration_ns: int = 10_000_000_000
    working_ns: int = 1
    busy_part: float = 1.0
    first: str = ""
    part: float = 0.0
    parts: tuple[float, ...] = (0.0,) * len(SHARES)
    cpu_count: float = 0.0
    thread_count: int = 1
    where: str = ""
    where_part: float = 0.0
    idle_where: str = ""
    lock_part: float = 0.0
    holder: str = ""
    holder_part: float = 0.0
    inside: str = ""
    child: str = ""
    waits_for: str = ""

    def of(self, share: int) -> str:
        """`38%`."""
        return percent(float(self.parts[share]))


def facts_of(profile: Profile, work: Work) -> tuple[Facts, int]:
    """(what the rules ask, the place of the largest share in Profile.frames, -1: none)"""
    by_share = work.share_ns()
    working_ns = int(by_share[:IDLE].sum())
    parts = tuple((by_share[:IDLE] / max(working_ns, 1)).tolist())
    first, part = _largest(parts)
    lock_part = _first_lock_part(work)
    functions = np.append(function_of_frames(profile.frames), -1)
    shares = (PYTHON, NATIVE) if first in ("python", "native") else (SHARES.index(first),)
    frame, where_part = top_place(work, shares, functions, int(first == "lock" and lock_part >= _ONE_LOCK))
    if frame < 0 or profile.frames[frame].kind != FrameKind.PYTHON:
        # Of a thread without Python it is the line that waits for that thread.
        waiting, _ = top_place(work, (HANDED,), functions)
        is_python = waiting >= 0 and profile.frames[waiting].kind == FrameKind.PYTHON
        frame, where_part = (waiting, 1.0) if is_python else (frame, where_part)
    holder, holder_part = _gil_holder(profile, work, functions) if first == "gil" else (-1, 0.0)
    duration_ns = _duration_ns(profile)
    facts = Facts(
        samples=_samples(profile, by_share),
        duration_ns=duration_ns,
        working_ns=working_ns,
        busy_part=_busy_part(profile, work, duration_ns),
        first=first,
        part=part,
        parts=parts,
        cpu_count=float(by_share[[PYTHON, NATIVE]].sum()) / max(duration_ns, 1),
        thread_count=int((_busy_ns(profile, work) * 20 > duration_ns).sum()),
        where=_text(profile, frame),
        where_part=where_part,
        idle_where=_text(profile, top_place(work, (IDLE, HANDED), functions)[0]),
        lock_part=lock_part,
        holder=_text(profile, holder),
        holder_part=holder_part,
        inside=_held_through(profile, work) if first == "lock" else "",
        child=_child_did(profile) if first == "child" else "",
        waits_for=_other_reason(work) if first == "other" else "",
    )
    return facts, holder if holder >= 0 and holder_part >= MAIN_HOLDER else frame


def _largest(parts: tuple[float, ...]) -> tuple[str, float]:
    """The largest share; CPU time is one, called as the larger part of it."""
    cpu = parts[PYTHON] + parts[NATIVE]
    waits = max(range(READY, len(SHARES)), key=parts.__getitem__)
    if cpu >= parts[waits]:
        return ("native" if parts[NATIVE] > parts[PYTHON] else "python"), cpu
    return SHARES[waits], parts[waits]


def _text(profile: Profile, frame: int) -> str:
    return place_text(profile.frames[frame]) if frame >= 0 else ""


def _duration_ns(profile: Profile) -> int:
    """From the first moment of any thread to the last of any."""
    seen = [thread for thread in profile.threads if thread.wall_ns > 0]
    return max(each.last_ns for each in seen) - min(each.first_ns for each in seen) if seen else 0


def _samples(profile: Profile, by_share: Ints) -> int:
    off_cpu_ns = int(by_share.sum() - by_share[[PYTHON, NATIVE]].sum())
    return sum(thread.sample_count for thread in profile.threads) + off_cpu_ns // _SAMPLE_NS


def _busy_ns(profile: Profile, work: Work) -> Ints:
    """How long each thread worked."""
    return sums(work.working["thread"], work.working["ns"], len(profile.threads))


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
    found = shares_of(functions[own], rows["ns"].astype(np.int64), own)
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


def _held_through(profile: Profile, work: Work) -> str:
    """What those who released the first lock had just waited for, if that was so for much of the time."""
    if not work.locks:
        return ""
    pid, address = work.locks[0]
    rows = find_waits(profile).rows
    pids = np.array([int(thread.pid) for thread in profile.threads], np.int64)
    found = rows[(rows["lock"] == address) & (pids[rows["thread"]] == pid) & rows["is_shown"]]
    before = found[found["before"] >= 0]
    for share in shares_of(rows["reason"][before["before"]], before["total_ns"])[:2]:
        word = reason_text(share.value)
        if word in _DOING and share.ns >= _INSIDE * found["total_ns"].sum():
            return _DOING[word]
    return ""


def _child_did(profile: Profile) -> str:
    """What the process that was waited for most did most of its time; "" if it was not recorded."""
    assert profile.spans is not None
    asked = [reason_number("pipe"), reason_number("child")]
    spans = profile.spans[(profile.spans["state"] == ThreadState.OFF_CPU) & np.isin(profile.spans["reason"], asked)]
    pids = np.array([*(int(thread.pid) for thread in profile.threads), -1], np.int64)
    awaited = pids[np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)[spans["waker"]]]
    other = (awaited >= 0) & (awaited != pids[spans["thread"]])
    if not other.any():
        return ""
    pid = shares_of(awaited[other], spans["stands_for_ns"][other].astype(np.int64))[0].value
    did = {"on the CPU": 0, "ready without a CPU": 0}
    threads = [thread for thread in profile.threads if thread.pid == pid]
    for thread in threads:
        did["on the CPU"] += thread.on_cpu_ns
        did["ready without a CPU"] += thread.runqueue_ns
        for word, ns in thread.off_by_reason:
            doing = {"sleep": "asleep"}.get(word, f"waiting ({word})")
            did[doing] = did.get(doing, 0) + ns
    most = max(did, key=lambda doing: did[doing])
    return f"{threads[0].process_name} ({pid}), {most} {100 * did[most] / max(sum(did.values()), 1):.0f}%"


def _other_reason(work: Work) -> str:
    rows = work.rows[work.rows["share"] == OTHER]
    return reason_text(shares_of(rows["reason"], rows["ns"])[0].value)
