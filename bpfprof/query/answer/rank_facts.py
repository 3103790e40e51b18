"""Work -> how long a rank that is recorded alone waits for the others, and where."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bpfprof.known.frameworks import OF_RANKS, RANKS_IN_PACKAGES
from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.grouping import sums_by, totals_of
from bpfprof.model.profile import Profile
from bpfprof.model.spans import ThreadState
from bpfprof.query.code.functions import Ints, function_of_frames
from bpfprof.query.code.stack_frames import OWN_RANK, Bools
from bpfprof.query.steps.critical_path import CriticalPath
from bpfprof.query.steps.phases import COMMUNICATION, OTHER, StackPhases
from bpfprof.query.work.places import place_text, top_place
from bpfprof.query.work.shares import DISK, GIL, GPU, HANDED, IDLE, NATIVE, NET, PYTHON, READY, SPIN
from bpfprof.query.work.table import Work

_LEAST = 0.35  # of the time of the main thread: less is no story
_OWN = (PYTHON, NATIVE, READY, DISK, GIL, IDLE)  # what a rank does, or lacks, itself, wherever it is
# Processes that have the libraries of a rank and are none: its loaders, and who launched it.
_BESIDE = re.compile(r".*/torch/(?:utils/data/_utils/worker\.py|distributed/elastic/agent/.*)")


def rank_facts(
    profile: Profile, work: Work, phases: StackPhases, path: CriticalPath | None
) -> tuple[dict[str, Any], int, tuple[int, ...]]:
    """(those of Facts that say something of it, where it waits, a place in Profile.frames, its main thread).

    None where others are or may be recorded, or the main thread of the one that is does something else for longer.
    """
    rows = work.rows
    communicates = phases.of_stack == phases.names.index(COMMUNICATION)
    mains = _of_lone_rank(profile, work, communicates)
    if not mains:
        return {}, -1, ()
    of_library = (phases.of_frame == phases.names.index(COMMUNICATION)) & (work.stack_frames.nearness != OWN_RANK)
    # Code of one's own that is only called like a collective may wait for its own threads, or sleep.
    proven = work.stack_frames.have(of_library.tolist())[rows["stack"]] | (rows["share"] == NET)
    waits = communicates[rows["stack"]] & ~np.isin(rows["share"], _OWN) & proven
    waits |= (rows["share"] == HANDED) & _for_those_who(profile, work, waits, mains)[rows["stack"]]
    of_main = np.isin(rows["thread"], mains)
    chosen = of_main & waits
    ns, wall_ns = int(rows["ns"][chosen].sum()), max(sum(profile.threads[thread].wall_ns for thread in mains), 1)
    if ns < max(_LEAST * wall_ns, _most_else(work, of_main & ~waits, path)):
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


def _of_lone_rank(profile: Profile, work: Work, communicates: Bools) -> tuple[int, ...]:
    """The main thread of the only process that is, or may be, a rank; none where it is not known to communicate.

    What is not shown may be other ranks.
    """
    frames, threads = work.stack_frames, profile.threads
    if profile.filter_text:
        return ()
    pids = np.array([int(thread.pid) for thread in threads] or [0], np.int64)

    def those_in(stacks: Bools) -> set[int]:
        return {*np.unique(pids[work.rows["thread"][stacks[work.rows["stack"]]]]).tolist()}

    in_libraries = those_in(frames.have([_is_of_ranks(frame) for frame in frames.frames]))
    beside = those_in(frames.have([bool(_BESIDE.match(frame.file)) for frame in frames.frames]))
    talk, in_python = those_in(communicates), those_in(frames.innermost_python() >= 0) - beside
    may_be = (in_libraries | talk) & in_python
    numbers = {thread.rank for thread in threads if thread.rank and int(thread.pid) in in_python}
    have_numbers = len(numbers) > len({number.partition("=")[0] for number in numbers})
    if len(may_be) != 1 or not may_be <= in_libraries & talk or have_numbers:
        return ()
    return tuple(place for place, it in enumerate(threads) if {int(it.tid), int(it.pid)} == may_be)


def _is_of_ranks(frame: Frame) -> bool:
    if frame.kind not in (FrameKind.NATIVE, FrameKind.INLINED):
        return False
    return bool(OF_RANKS.fullmatch(frame.file.rpartition("/")[2]) or RANKS_IN_PACKAGES.fullmatch(frame.file))


def _most_else(work: Work, others: Bools, path: CriticalPath | None) -> int:
    """Nanoseconds of what there is most of in these rows: one share, all that is computed, or data."""
    by_share = sums_by(work.rows["share"][others], work.rows["ns"][others], HANDED + 1)
    data_ns = path.data_ns + path.loading_ns if path else 0
    return max(int(by_share.max()), int(by_share[[PYTHON, NATIVE]].sum()), data_ns)


def _for_those_who(profile: Profile, work: Work, waits: Bools, mains: tuple[int, ...]) -> Bools:
    """For each stack whether these threads wait in it, most of their time there, for one that waits for other ranks
    most of its own, as that does which runs a backward pass."""
    assert profile.spans is not None
    spans, rows, count = profile.spans, work.rows, len(profile.threads)
    waits_ns, all_ns = (
        sums_by(rows["thread"][each], rows["ns"][each], count) for each in (waits, rows["share"] != IDLE)
    )
    communicates = np.append(2 * waits_ns > np.maximum(all_ns, 1), False)
    of: Ints = np.array([-1, *(waker.thread for waker in profile.wakers)], np.int64)
    asleep = np.isin(spans["thread"], mains) & (spans["state"] == ThreadState.OFF_CPU)
    ended = asleep & communicates[of[spans["waker"].astype(np.int64)]]
    ended_ns, asleep_ns = (
        sums_by(spans["stack"][each], spans["stands_for_ns"][each].astype(np.int64), work.stack_frames.count)
        for each in (ended, asleep)
    )
    found: Bools = 2 * ended_ns > asleep_ns
    return found
