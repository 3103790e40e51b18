"""Profile -> a file of Python's cProfile, which pstats.Stats and snakeviz open."""

from __future__ import annotations

import marshal
from collections import Counter
from typing import Any

from bpfprof.model.profile import Profile
from bpfprof.render.calls import Function, calls_of
from bpfprof.render.formats import RenderOptions

_Key = tuple[str, int, str]  # file, line, function


def render_pstats(profile: Profile, options: RenderOptions) -> bytes:
    """Wall time in seconds; ready and waits are functions of their own, `[off-cpu: lock]`, below those that waited.

    Calls are counted as often as they were seen: in samples and intervals. A function has the lowest line seen of it.
    """
    calls = calls_of(profile, options)
    keys = {each: _key(each, calls.lines[each]) for each in calls.below}
    own: Counter[Function] = Counter()
    for (function, _), times in calls.own.items():
        own[function] += sum(times.units)
    stats: dict[_Key, tuple[Any, ...]] = {}
    callers: dict[_Key, dict[_Key, tuple[int, int, float, float]]] = {key: {} for key in keys.values()}
    for (caller, callee), times in calls.pairs.items():
        own_ns = sum(calls.pair_own[caller, callee].units) if (caller, callee) in calls.pair_own else 0
        of_pair = times.count, times.count, own_ns / 1e9, sum(times.units) / 1e9
        callers[keys[callee]][keys[caller]] = of_pair
    for function, times in calls.below.items():
        key = keys[function]
        below = sum(times.units) / 1e9
        stats[key] = times.count, times.count, own[function] / 1e9, below, callers[key]
    return marshal.dumps(stats, 4)


def _key(function: Function, line: int) -> _Key:
    return function.file or function.object or "~", line, function.name
