"""Work -> how long a rank that is recorded alone waits for the others, and where."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof.model.grouping import sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.critical_path import CriticalPath
from bpfprof.query.steps.phases import COMMUNICATION, OTHER, StackPhases
from bpfprof.query.work.places import place_text, top_place
from bpfprof.query.work.shares import DISK, GIL, GPU, HANDED, IDLE, NATIVE, PYTHON, READY, SPIN
from bpfprof.query.work.table import Work

_LEAST = 0.35  # of the time of the main thread: less is no story
_OWN = (PYTHON, NATIVE, READY, DISK, GIL)  # what a rank does, or lacks, itself, wherever it is


def rank_facts(
    profile: Profile, work: Work, phases: StackPhases, path: CriticalPath | None
) -> tuple[dict[str, Any], int, tuple[int, ...]]:
    """(those of Facts that say something of it, where it waits, a place in Profile.frames, its main thread).

    None where several processes communicate, or the main thread of the one that does computes or loads for longer.
    """
    rows = work.rows
    in_it = (phases.of_stack == phases.names.index(COMMUNICATION))[rows["stack"]]
    pids = {int(profile.threads[thread].pid) for thread in np.unique(rows["thread"][in_it]).tolist()}
    mains = tuple(place for place, it in enumerate(profile.threads) if {int(it.tid), int(it.pid)} == pids)
    if not mains:
        return {}, -1, ()
    waits = in_it & ~np.isin(rows["share"], _OWN)
    waits |= (rows["share"] == HANDED) & _for_those_who(profile, work, waits, mains)[rows["stack"]]
    of_main = np.isin(rows["thread"], mains)
    chosen = of_main & waits
    ns, computes = int(rows["ns"][chosen].sum()), of_main & np.isin(rows["share"], (PYTHON, NATIVE))
    wall_ns = max(sum(profile.threads[thread].wall_ns for thread in mains), 1)
    more_ns = max(int(rows["ns"][computes].sum()), path.data_ns + path.loading_ns if path else 0)
    if ns < max(_LEAST * wall_ns, more_ns):
        return {}, -1, ()
    at, _ = top_place(work, chosen, np.append(function_of_frames(profile.frames), -1), in_python=True)
    phase = phases.names[totals_of(phases.of_stack[rows["stack"][chosen]], rows["ns"][chosen])[0].value]
    share = totals_of(rows["share"][chosen], rows["ns"][chosen])[0].value
    found = dict(
        ranks_part=ns / wall_ns,
        ranks_bound={GPU: "gpu", SPIN: "spin"}.get(share, "net"),
        ranks_where=place_text(profile.frames[at]) if at >= 0 else "",
        ranks_phase=phase if phase not in (COMMUNICATION, OTHER) else "",
    )
    return found, at, mains


def _for_those_who(profile: Profile, work: Work, waits: Bools, mains: tuple[int, ...]) -> Bools:
    """For each stack whether these threads wait in it for one that waits for other ranks most of its time, as that does
    which runs a backward pass."""
    assert profile.spans is not None
    spans, rows, count = profile.spans, work.rows, len(profile.threads)
    waits_ns, all_ns = (
        sums_by(rows["thread"][each], rows["ns"][each], count) for each in (waits, rows["share"] != IDLE)
    )
    communicates = np.append(2 * waits_ns > np.maximum(all_ns, 1), False)
    of: Ints = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    asleep = np.isin(spans["thread"], mains) & (spans["state"] == ThreadState.OFF_CPU)
    ended = asleep & communicates[of[spans["waker"].astype(np.int64)]]
    found: Bools = np.zeros(work.stack_frames.count, np.bool_)
    found[spans["stack"][ended]] = True
    return found
