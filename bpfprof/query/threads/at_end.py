"""What each thread did at the end of a profile; threads of one role that did the same as one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.folded_names import folded_name
from bpfprof.query.code.functions import Ints
from bpfprof.query.threads.roles import role_key
from bpfprof.query.work.shares import HANDED, IDLE, OTHER, PYTHON, READY
from bpfprof.query.work.table import Work

# Those that use a CPU or want one, those that wait, those that leave it to other threads, the idle.
_ORDER = {PYTHON: 0, READY: 1, HANDED: 3, IDLE: 4}


@dataclass(frozen=True)
class NowGroup:
    """Threads of one role. share: place in SHARES (PYTHON for all on a CPU), IDLE or HANDED."""

    name: str
    thread_count: int
    share: int


def now_of(profile: Profile, work: Work, states: Mapping[tuple[int, int], ThreadState]) -> list[NowGroup]:
    """Of the threads that have a state, by (pid, tid); those on a CPU first, the idle last."""
    waits_for = _waits_for(profile, work)
    groups: dict[tuple[int, tuple[str, str, str]], list[str]] = {}
    for index, thread in enumerate(profile.threads):
        state = states.get((int(thread.pid), int(thread.tid)))
        if state is not None:
            share = {ThreadState.ON_CPU: PYTHON, ThreadState.RUNQUEUE: READY}.get(state, waits_for.get(index, OTHER))
            groups.setdefault((share, role_key(thread)), []).append(thread.thread_name)
    found = [NowGroup(folded_name(names), len(names), share) for (share, _), names in groups.items()]
    return sorted(found, key=lambda group: (_ORDER.get(group.share, 2), -group.thread_count, group.name))


def _waits_for(profile: Profile, work: Work) -> dict[int, int]:
    """For each thread the share that its last wait is counted in."""
    assert profile.spans is not None
    spans, rows = profile.spans, work.rows
    waits = np.flatnonzero((spans["state"] == ThreadState.OFF_CPU) & (spans["wait"] > 0))
    waits = waits[np.append(np.diff(spans["thread"][waits].astype(np.int64)) != 0, True)[: len(waits)]]
    columns = (spans[name][waits].astype(np.int64) for name in ("thread", "stack", "reason"))
    last = dict(zip(_keys(*columns).tolist(), spans["thread"][waits].tolist()))
    keys = _keys(rows["thread"], rows["stack"], rows["reason"])
    chosen = np.flatnonzero(np.isin(keys, [*last]) & (rows["state"] == ThreadState.OFF_CPU))
    chosen = chosen[np.argsort(rows["ns"][chosen], kind="stable")]
    return {last[key]: share for key, share in zip(keys[chosen].tolist(), rows["share"][chosen].tolist())}


def _keys(thread: Ints, stack: Ints, reason: Ints) -> Ints:
    return np.asarray(thread << 48 | stack << 16 | reason)
