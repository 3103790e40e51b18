"""A training loop and what feeds it -> how long it waits for data, what that is spent on, how many loaders would do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.query.answer.causes import CAUSES, cause_ns, causes_of, largest_cause, mix_of
from bpfprof.query.code.functions import function_of_frames
from bpfprof.query.steps.critical_path import CriticalPath
from bpfprof.query.work.places import place_text, top_place
from bpfprof.query.work.shares import IDLE, NATIVE, PYTHON, SPIN
from bpfprof.query.work.table import Work

_HANDS_ON = 0.25  # of the time of who loads most: who works less hands on what others do


def data_facts(profile: Profile, work: Work, path: CriticalPath, duration_ns: int) -> tuple[dict[str, Any], int]:
    """(those of Facts that say something of the data that training loops wait for, the place where it is made)"""
    causes, functions = causes_of(work), np.append(function_of_frames(profile.frames), -1)
    loads_itself = path.loading_ns > path.data_ns
    of_loaders = np.isin(work.rows["thread"], path.loader_threads) & (work.rows["share"] < IDLE)
    is_loading = path.is_loading if loads_itself else of_loaders | path.is_loading
    # Beside who loads there are threads that hand on.
    loading_ns = sums_by(work.rows["thread"][is_loading], work.rows["ns"][is_loading], max(len(profile.threads), 1))
    is_loading &= (loading_ns >= _HANDS_ON * loading_ns.max())[work.rows["thread"]]
    by_cause = cause_ns(work.rows[is_loading], causes[is_loading])
    first, _ = largest_cause(tuple((by_cause / max(int(by_cause.sum()), 1)).tolist()))
    chosen = is_loading & np.isin(causes, (PYTHON, NATIVE) if first in ("python", "native") else (CAUSES.index(first),))
    made_at, _ = top_place(work, chosen, functions, in_python=True)
    # A loop that loads data itself would have others do it; what it does with theirs stays its own.
    made_ns, kept_ns = (path.loading_ns, 0) if loads_itself else (path.loaders_ns, path.loading_ns)
    computing_ns = path.wall_ns - path.data_ns - path.loading_ns + kept_ns
    cpus = max((profile.info.cpu_limits.get(int(profile.threads[loop].pid), 0.0) for loop in path.loops), default=0.0)
    cpu_ns = int(by_cause[[PYTHON, NATIVE, SPIN]].sum())
    made = dict(
        data_part=path.data_ns / path.wall_ns,
        loading_part=path.loading_ns / path.wall_ns,
        loaders=0 if loads_itself else path.loaders,
        loaders_needed=math.ceil(made_ns * len(path.loops) / max(computing_ns, path.wall_ns // 100, 1)),
        loaders_busy=min(1.0, path.loaders_ns / max(path.loaders * duration_ns, 1)),
        loading_first=first if by_cause.any() else "",
        loading_mix=mix_of(by_cause),
        loading_where=place_text(profile.frames[made_at]) if made_at >= 0 else "",
        cpus=cpus,
        loaders_most=int(cpus * int(by_cause.sum()) / cpu_ns) if cpu_ns else 0,
    )
    return made, made_at
