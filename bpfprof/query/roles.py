"""Threads of a Profile and their work -> threads that do the same, as one row."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from bpfprof.model.profile import Profile, ThreadTime
from bpfprof.query.work import HANDED, IDLE, Work, sums

_DIGITS = re.compile(r"\d+")
_APART = 2  # a thread with so many times the work of the others of its role has a row of its own


@dataclass
class Role:
    """Threads that have one name but for its digits, of processes that have one name.

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


def roles_of(profile: Profile, work: Work) -> list[Role]:
    """Those that worked most first."""
    by_thread, kinds = thread_shares(profile, work), work.thread_kinds(len(profile.threads))
    pids: dict[str, set[int]] = {}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, thread in enumerate(profile.threads):
        if thread.wall_ns > 0:
            pids.setdefault(thread.process_name, set()).add(thread.pid)
            groups.setdefault(_key(thread), []).append(index)
    found = []
    for members in groups.values():
        busy = {index: sum(by_thread[index][:IDLE]) for index in members}
        usual = median(busy.values())
        # Of two the one that works more is not told from the usual.
        apart = [it for it in members if len(members) > 2 and _differs(busy[it], usual, profile.threads[it].wall_ns)]
        together = [it for it in members if it not in apart]
        found += [_role(profile, by_thread, kinds, part) for part in (together, *[[it] for it in apart]) if part]
    return sorted(found, key=lambda role: (role.shares[HANDED] - sum(role.shares.values()), -role.wall_ns, role.name))


def thread_shares(profile: Profile, work: Work) -> list[list[int]]:
    """Of each thread nanoseconds by place in SHARES, IDLE and HANDED."""
    count = HANDED + 1
    of_all = sums(work.rows["thread"] * count + work.rows["share"], work.rows["ns"], len(profile.threads) * count)
    by_thread: list[list[int]] = of_all.reshape(-1, count).tolist()
    return by_thread


def _key(thread: ThreadTime) -> tuple[str, str, str]:
    # The main thread of a process may have the name of the process.
    is_main = int(thread.tid) == int(thread.pid)
    return thread.process_name, "" if is_main else _DIGITS.sub("#", thread.thread_name), "main" * is_main


def _differs(busy_ns: int, usual_ns: float, wall_ns: int) -> bool:
    low, high = sorted((busy_ns, usual_ns))
    return high > _APART * low and high - low > wall_ns / 20


def _role(profile: Profile, by_thread: list[list[int]], kinds: list[list[int]], members: list[int]) -> Role:
    threads = [profile.threads[index] for index in members]
    role = Role(_folded_name([thread.thread_name for thread in threads]), threads[0].process_name, members)
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


def _folded_name(names: list[str]) -> str:
    """`worker_0..7`: each number from the least to the greatest."""
    numbers = [[int(number[:18]) for number in _DIGITS.findall(name)] for name in names]
    least, greatest = (list(map(best, zip(*numbers))) for best in (min, max))
    spans = iter([f"{low}" if low == high else f"{low}..{high}" for low, high in zip(least, greatest)])
    return names[0] if len(set(names)) == 1 else _DIGITS.sub(lambda _: next(spans), names[0])
