"""Waits of a Profile for other processes -> what those did meanwhile."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bpfprof.model.grouping import totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.model.states import reason_number

_ASKED = ("pipe", "child")


def awaited_process(profile: Profile) -> str:
    """`sh (7), asleep 98%`: what the process that was waited for most did most of its time; "" if none was recorded.

    Where that one waited for a third, it is the third.
    """
    awaited = _awaited(profile)
    if not awaited:
        return ""
    pid = sum(awaited.values(), Counter[int]()).most_common(1)[0][0]
    did, seen = _time_of(profile, pid), {pid}
    while _mostly(did) in map(_waiting, _ASKED) and pid in awaited:
        pid = awaited[pid].most_common(1)[0][0]
        if pid in seen:
            break
        did, seen = _time_of(profile, pid), seen | {pid}
    name = next(thread.process_name for thread in profile.threads if thread.pid == pid)
    return f"{name} ({pid}), {_mostly(did)} {100 * did[_mostly(did)] / max(sum(did.values()), 1):.0f}%"


def _awaited(profile: Profile) -> dict[int, Counter[int]]:
    """pid -> of the processes that it waited for, nanoseconds."""
    assert profile.spans is not None
    reasons = [reason_number(word) for word in _ASKED]
    spans = profile.spans[(profile.spans["state"] == ThreadState.OFF_CPU) & np.isin(profile.spans["reason"], reasons)]
    pids = np.array([*(int(thread.pid) for thread in profile.threads), -1], np.int64)
    awaited = pids[np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)[spans["waker"]]]
    waiting = pids[spans["thread"]]
    found: dict[int, Counter[int]] = {}
    other = (awaited >= 0) & (awaited != waiting)
    for share in totals_of(waiting[other], spans["stands_for_ns"][other].astype(np.int64), awaited[other]):
        found.setdefault(share.value, Counter())[share.frame] += share.ns
    return found


def _time_of(profile: Profile, pid: int) -> Counter[str]:
    did: Counter[str] = Counter()
    for thread in profile.threads:
        if thread.pid == pid:
            did["on the CPU"] += thread.on_cpu_ns
            did["ready without a CPU"] += thread.runqueue_ns
            for word, ns in thread.off_by_reason:
                did[_waiting(word)] += ns
    return did


def _waiting(reason: str) -> str:
    return "asleep" if reason == "sleep" else f"waiting ({reason})"


def _mostly(did: Counter[str]) -> str:
    return did.most_common(1)[0][0]
