"""Threads of a Profile and their work -> threads that do the same, as one row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from statistics import median

import numpy as np

from bpfprof.dataclass import dataclass
from bpfprof.model.grouping import sums_by
from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.query.code.folded_names import folded_name, role_name
from bpfprof.query.code.functions import function_of_frames
from bpfprof.query.work.shares import HANDED, IDLE
from bpfprof.query.work.table import Work

_MADE_UP = re.compile(r"Thread-\d+")  # Lib/threading.py before 3.10: the name of a thread that was given none
_ROOT_PART = 0.9  # of a thread's time in the user's own code below one function, which then is its root
_MAIN = "main"
_APART = 2  # a thread with so many times the work of the others of its role has a row of its own


@dataclass
class Role:
    """Threads that have one name but for its digits or began in one function, of processes that have one name.

    shares: place in SHARES, or HANDED, -> nanoseconds.
    """

    name: str
    process_name: str
    threads: list[int] = field(default_factory=list)
    wall_ns: int = 0
    cpu_ns: int = 0
    ready_ns: int = 0
    wait_ns: int = 0
    idle_ns: int = 0
    shares: Counter[int] = field(default_factory=Counter)

    @property
    def is_awaited(self) -> bool:
        """Whether it works in time that is left to other threads: that is counted as their wait for it."""
        return self.shares[HANDED] > self.wait_ns + self.idle_ns


def roles_of(profile: Profile, work: Work) -> list[Role]:
    """Those that worked most first."""
    by_thread, kinds = thread_shares(profile, work), work.thread_kinds(len(profile.threads))
    found = []
    for members in _members(profile, work):
        busy = {index: sum(by_thread[index][:IDLE]) for index in members}
        usual = median(busy.values())
        # Of two the one that works more is not told from the usual.
        apart = [
            member
            for member in members
            if len(members) > 2 and _differs(busy[member], usual, profile.threads[member].wall_ns)
        ]
        together = sorted({*members} - {*apart})
        found += [_role(profile, by_thread, kinds, part) for part in (together, *[[each] for each in apart]) if part]
    return sorted(found, key=lambda role: (role.shares[HANDED] - sum(role.shares.values()), -role.wall_ns, role.name))


def _members(profile: Profile, work: Work) -> list[list[int]]:
    """For each role its threads. Names that were made up say less than the function that a thread began in."""
    roots = _root_functions(profile, work)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, thread in enumerate(profile.threads):
        if thread.wall_ns > 0:
            is_made_up = _MADE_UP.fullmatch(thread.thread_name) and roots[index] >= 0
            groups.setdefault((*role_key(thread), str(roots[index]) if is_made_up else ""), []).append(index)
    found: dict[tuple[str, ...], list[int]] = {}
    for key, members in groups.items():
        root, *others = {roots[index] for index in members}
        has_root = root >= 0 and not others and key[2] != _MAIN
        found.setdefault((key[0], f"root {root}") if has_root else key, []).extend(members)
    return [*found.values()]


def _root_functions(profile: Profile, work: Work) -> list[int]:
    """For each thread the outermost function of its own code, a place in Profile.frames; -1: none, or several."""
    functions = np.append(function_of_frames(profile.frames), -1)
    rows = work.rows
    root = functions[work.stack_frames.outermost_own()[rows["stack"]]]
    spent: list[Counter[int]] = [Counter() for _ in profile.threads]
    for thread, function, ns in zip(rows["thread"].tolist(), root.tolist(), rows["ns"].tolist()):
        if function >= 0:
            spent[thread][function] += ns
    best = [of_thread.most_common(1)[0] if of_thread else (-1, 0) for of_thread in spent]
    return [it if ns >= _ROOT_PART * sum(own.values()) else -1 for (it, ns), own in zip(best, spent)]


def role_members(threads: Sequence[ThreadTime]) -> dict[int, list[int]]:
    """For each role its first thread -> all its threads; they are of one process and have one name but for digits."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, thread in enumerate(threads):
        groups.setdefault((thread.pid, *role_key(thread)), []).append(index)
    return {members[0]: members for members in groups.values()}


def thread_shares(profile: Profile, work: Work) -> list[list[int]]:
    """For each thread nanoseconds by place in SHARES, IDLE and HANDED."""
    count = HANDED + 1
    of_all = sums_by(work.rows["thread"] * count + work.rows["share"], work.rows["ns"], len(profile.threads) * count)
    by_thread: list[list[int]] = of_all.reshape(-1, count).tolist()
    return by_thread


def role_key(thread: ThreadTime) -> tuple[str, str, str]:
    """The same for threads that may be of one role."""
    # The main thread of a process may have the name of the process.
    is_main = int(thread.tid) == int(thread.pid)
    return thread.process_name, "" if is_main else role_name(thread.thread_name), _MAIN * is_main


def _differs(busy_ns: int, usual_ns: float, wall_ns: int) -> bool:
    low, high = sorted((busy_ns, usual_ns))
    return high > _APART * low and high - low > wall_ns / 20


def _role(profile: Profile, by_thread: list[list[int]], kinds: list[list[int]], members: list[int]) -> Role:
    threads = [profile.threads[index] for index in members]
    role = Role(folded_name([thread.thread_name for thread in threads]), threads[0].process_name, members)
    for index, thread in zip(members, threads):
        shares = by_thread[index]
        role.wall_ns += thread.wall_ns
        role.shares.update({share: ns for share, ns in enumerate(shares) if ns and share != IDLE})
        cpu_ns, ready_ns, wait_ns, idle_ns = kinds[index]
        role.cpu_ns += cpu_ns
        role.ready_ns += ready_ns
        role.wait_ns += wait_ns
        role.idle_ns += idle_ns
    return role
