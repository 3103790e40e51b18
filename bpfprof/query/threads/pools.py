"""A profile and its work -> pools of threads: whose they are, how long they spin, and what sets their number."""

from __future__ import annotations

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.known.waiting import pool_lines, pool_of
from bpfprof.model.frames import FrameKind
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.query.code.functions import Ints
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.work.shares import NATIVE, PYTHON, READY, SPIN
from bpfprof.query.work.table import Work

_MOST = 0.5  # of what a thread works in stacks of a pool: then it is one of its threads
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)


@dataclass(frozen=True)
class Pool:
    """threads: places in Profile.threads of those that work in it. spin_ns: CPU time in which they wait for others."""

    name: str
    setting: str
    threads: tuple[int, ...]
    cpu_ns: int
    ready_ns: int
    spin_ns: int


def pools_of(profile: Profile, work: Work) -> list[Pool]:
    """Those that worked or wanted to most first."""
    rows = work.working
    if not len(rows):
        return []
    kinds = _of_stacks(work.stack_frames)
    is_cpu, is_ready = np.isin(rows["share"], (PYTHON, NATIVE, SPIN)), rows["share"] == READY
    count, kind = len(profile.threads), kinds[rows["stack"]]
    all_ns = sums_by(rows["thread"], np.where(is_cpu | is_ready, rows["ns"], 0), count)
    found: dict[str, Pool] = {}
    lines = pool_lines()
    for name in dict.fromkeys(line.name for line in lines):
        numbers = [number for number, line in enumerate(lines) if line.name == name]
        of_it = np.isin(kind, numbers) & (is_cpu | is_ready)
        if not of_it.any():
            continue
        threads = np.flatnonzero(sums_by(rows["thread"][of_it], rows["ns"][of_it], count) > _MOST * all_ns)
        own = np.isin(rows["thread"], threads)
        spin_ns = int(rows["ns"][own & of_it & (rows["share"] == SPIN)].sum())
        cpu_ns, ready_ns = (int(rows["ns"][own & chosen].sum()) for chosen in (is_cpu, is_ready))
        if len(threads):
            found[name] = Pool(name, lines[numbers[0]].setting, tuple(threads.tolist()), cpu_ns, ready_ns, spin_ns)
    return sorted(found.values(), key=lambda pool: -(pool.cpu_ns + pool.ready_ns))


def _of_stacks(stack_frames: StackFrames) -> Ints:
    """For each stack a place in pool_lines(), -1: of no pool."""
    frames, lines = stack_frames.frames, pool_lines()
    kinds = np.array([pool_of(each.name, each.file) if each.kind in _NATIVE else -1 for each in frames], np.int64)
    anywhere = [number >= 0 and lines[number].anywhere for number in kinds.tolist()]
    found = np.append(kinds, -1)[stack_frames.beginnings()]
    # The first line that any frame is of; of the others the outermost frame must be one.
    ranks = np.where(anywhere, len(lines) - kinds, 0)
    inside = stack_frames.outermost_of_best(ranks.tolist())
    return np.where(inside >= 0, np.append(kinds, -1)[inside], found)
