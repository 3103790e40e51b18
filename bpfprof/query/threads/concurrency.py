"""Profile -> how many of its threads ran at a time, beside the CPUs that they may use, and which of them alone."""

from __future__ import annotations

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile, ThreadTime

_SINGLE = 8  # numbers that are a range of their own


@dataclass(frozen=True)
class AtOnce:
    """A number of threads, or from `first` to `last` of them, and for how long so many were on a CPU, and runnable.

    Both `first` and `last` were seen.
    """

    first: int
    last: int
    on_cpu_ns: int
    runnable_ns: int

    @property
    def name(self) -> str:
        """`3`, `9-16`."""
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,}-{self.last:,}"


@dataclass(frozen=True)
class ConcurrencyFacts:
    """Of all time from the first moment of any thread to the last of any.

    cpus: that each process may use, 0: not known, or not the same of all. on_cpu, runnable: threads on average.
    beyond_ns: for how long more were runnable than there are CPUs. spread_ns: as in model.profile.Concurrency.
    alone: each thread and for how long it was the only one that was runnable, the longest first; none where that is not
    known.
    """

    at_once: tuple[AtOnce, ...]
    wall_ns: int
    cpus: float
    on_cpu: float
    runnable: float
    beyond_ns: int
    spread_ns: int
    alone: tuple[tuple[ThreadTime, int], ...]


def concurrency_of(profile: Profile, is_folded: bool = False) -> ConcurrencyFacts | None:
    """is_folded: numbers above 8 in ranges of which each is twice as wide as the one before. None: it was not asked
    for, or nothing was seen."""
    if profile.concurrency is None or not len(profile.concurrency.rows):
        return None
    rows = profile.concurrency.rows
    wall_ns, cpus = int(rows["on_cpu_ns"].sum()), _cpus(profile)
    on_cpu, runnable = (
        float((rows["threads"] * (rows[name] / max(wall_ns, 1))).sum()) for name in ("on_cpu_ns", "runnable_ns")
    )
    beyond_ns = int(rows["runnable_ns"][rows["threads"] > cpus].sum()) if cpus else 0
    found: dict[int, AtOnce] = {}
    for threads, on_cpu_ns, runnable_ns in rows.tolist():
        place = (threads - 1).bit_length() + _SINGLE if is_folded and threads > _SINGLE else threads
        before = found.get(place, AtOnce(threads, threads, 0, 0))
        found[place] = AtOnce(before.first, threads, before.on_cpu_ns + on_cpu_ns, before.runnable_ns + runnable_ns)
    at_once, spread_ns = tuple(found.values()), profile.concurrency.spread_ns
    return ConcurrencyFacts(at_once, wall_ns, cpus, on_cpu, runnable, beyond_ns, spread_ns, _alone(profile))


def _alone(profile: Profile) -> tuple[tuple[ThreadTime, int], ...]:
    if profile.concurrency is None or profile.concurrency.alone_ns is None:
        return ()
    of_all = zip(profile.threads, profile.concurrency.alone_ns.tolist())
    return tuple(sorted((each for each in of_all if each[0].wall_ns > 0), key=lambda each: -each[1]))


def _cpus(profile: Profile) -> float:
    pids = {int(thread.pid) for thread in profile.threads if thread.wall_ns > 0}
    known = {profile.info.cpu_limits[pid] for pid in pids & profile.info.cpu_limits.keys()}
    return known.pop() if len(known) == 1 else 0.0
