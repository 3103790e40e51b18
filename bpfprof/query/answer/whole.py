"""A profile and its work -> the threads that count, and their time: of it a verdict, shares and places are parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bpfprof import array_types as npt
from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile
from bpfprof.model.rows import picked
from bpfprof.query.code.stack_frames import Bools
from bpfprof.query.steps.critical_path import CriticalPath
from bpfprof.query.threads.roles import Role, roles_of
from bpfprof.query.work.shares import GPU, HANDED, IDLE
from bpfprof.query.work.table import Work

_COUNTS = 0.25  # of how busy the busiest role is: threads of one that is less so don't count
_COUNTS_IN_C = 0.5  # the same of threads without Python beside one with it, whom they serve
_MUCH = 0.25  # of the work of the role that works most: so much makes another one worth comparing with
_NOTHING = 0.01  # of the longest time of a thread: where no role works so much, none does
_WORKS = 0.05  # of its time: a role that works less has nothing to say
_WAITS = 0.5  # of its time: a role that waits for other threads so much is left out for that reason


@dataclass(frozen=True)
class Whole:
    """rows: of WORK_DTYPE, all that the time of `roles` is made of; work: the same work without what others worked.

    others_ns: waits of these threads for others that no row has. roles: those that count, the one that works most
    first; waiting, idle: those that were left out because they only waited for others, or for work; small: because they
    worked little beside them. handed_ns: what those that count waited for one another, or for the rest: it is no part
    of the whole, for it was spent on what those did.
    """

    work: Work
    rows: npt.NDArray[np.void]
    roles: tuple[Role, ...]
    others_ns: int = 0
    handed_ns: int = 0
    waiting: tuple[Role, ...] = ()
    idle: tuple[Role, ...] = ()
    small: tuple[Role, ...] = ()

    @property
    def ns(self) -> int:
        """All of it."""
        return int(self.rows["ns"].sum()) + self.others_ns

    @property
    def working(self) -> npt.NDArray[np.void]:
        """Its rows that are not idle."""
        return _chosen(self.rows, self.rows["share"] != IDLE)

    @property
    def threads(self) -> list[int]:
        """Those that count, places in Profile.threads."""
        return sorted(thread for role in self.roles for thread in role.threads)

    def share_ns(self) -> list[int]:
        """For each of SHARES, then idle, then waits for other threads."""
        found: list[int] = sums_by(self.rows["share"], self.rows["ns"], HANDED + 1).tolist()
        found[HANDED] += self.others_ns
        return found


def whole_of(profile: Profile, work: Work, path: CriticalPath | None) -> Whole:
    """Of training loops their own time, in which what they waited for is what those did that they waited for."""
    roles = roles_of(profile, work)
    if path:
        return _of_loops(profile, work, path, roles)
    working = [role for role in roles if _working_ns(role)]
    # Who serves nobody may be on a CPU all the same: a pool that spins for work, a driver's thread that polls.
    working = [
        role for role in working if not (work.serve_nobody[role.threads].all() and _is_kept_busy(role))
    ] or working
    largest_ns = max((_working_ns(role) for role in working), default=0)
    busiest = max((_part(role) for role in working if _working_ns(role) >= _MUCH * largest_ns), default=0.0)
    in_python = _in_python(work)
    has_python = any(_part(role) >= busiest and {*role.threads} & in_python for role in working)
    counts = [
        role
        for role in working
        if _part(role) >= _WORKS
        and _part(role) >= busiest * (_COUNTS_IN_C if has_python and not {*role.threads} & in_python else _COUNTS)
    ] or working
    if largest_ns < _NOTHING * max((thread.wall_ns for thread in profile.threads), default=0):
        counts = roles  # at rest: all of them, which are idle
    threads = sorted(thread for role in counts for thread in role.threads)
    rows, is_own = work.rows, np.isin(work.rows["thread"], threads)
    kept = _chosen(rows, is_own & (rows["share"] != HANDED))
    handed_ns = int(rows["ns"][is_own & (rows["share"] == HANDED)].sum())
    return _beside(
        roles,
        Whole(replace(work, rows=_chosen(rows, is_own | (rows["share"] >= IDLE))), kept, tuple(counts), 0, handed_ns),
    )


def _chosen(rows: npt.NDArray[np.void], chosen: Bools) -> npt.NDArray[np.void]:
    """They are many, and mostly all."""
    return rows if chosen.all() else picked(rows, chosen)


def whole_of_fronts(profile: Profile, work: Work, fronts: tuple[int, ...]) -> Whole:
    """Of threads that are the story: all their time, with that in which they wait for others."""
    roles, rows = roles_of(profile, work), work.rows
    own = [_only(role, fronts) for role in roles if {*role.threads} & {*fronts}]
    return _beside(roles, Whole(work, _chosen(rows, np.isin(rows["thread"], fronts)), tuple(own)))


def _of_loops(profile: Profile, work: Work, path: CriticalPath, roles: list[Role]) -> Whole:
    """What they waited for is as long as those worked meanwhile; the rest is not known to be anybody's work."""
    rows = path.work.rows
    of_loop = np.isin(rows["thread"], path.loops)
    kept = rows[((rows["share"] < IDLE) & (rows["ns"] > 0)) | (of_loop & (rows["share"] == IDLE))]
    all_ns = int(work.rows["ns"][np.isin(work.rows["thread"], path.loops)].sum())
    own = [_only(role, path.loops) for role in roles if {*role.threads} & {*path.loops}]
    return _beside(roles, Whole(path.work, kept, tuple(own), max(all_ns - int(kept["ns"].sum()), 0)))


def _in_python(work: Work) -> set[int]:
    """Threads that run Python."""
    has_python = (work.stack_frames.innermost_python() >= 0)[work.rows["stack"]]
    return {*np.unique(work.rows["thread"][has_python]).tolist()}


def _beside(roles: list[Role], whole: Whole) -> Whole:
    """The same with the roles that are left out."""
    counted = {thread for role in whole.roles for thread in role.threads}
    rest = [role for role in roles if role.wall_ns and not {*role.threads} & counted]
    waiting = [role for role in rest if role.shares[HANDED] >= _WAITS * role.wall_ns]
    idle = [role for role in rest if role not in waiting and _part(role) < _WORKS]
    small = [role for role in rest if role not in waiting and role not in idle]
    return replace(whole, waiting=tuple(waiting), idle=tuple(idle), small=tuple(small))


def _only(role: Role, threads: tuple[int, ...]) -> Role:
    """A role of which no more than these threads count, by name."""
    return (
        role
        if {*role.threads} <= {*threads}
        else replace(role, threads=[thread for thread in role.threads if thread in threads])
    )


def _working_ns(role: Role) -> int:
    return sum(ns for share, ns in role.shares.items() if share < IDLE)


def _is_kept_busy(role: Role) -> bool:
    """And does not wait for a device that it has given work, as a server in C does that nobody is known to wait for."""
    return 2 * role.shares.get(GPU, 0) < _working_ns(role)


def _part(role: Role) -> float:
    """How much of its time it works, but for that in which it waits for what others do."""
    working_ns = _working_ns(role)
    return working_ns / max(working_ns + role.idle_ns, 1)
