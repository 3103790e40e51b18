"""A profile -> the processes of whose time too much was lost for the rest to be taken for all of it."""

from __future__ import annotations

from collections import Counter

from bpfprof.dataclass import dataclass
from bpfprof.model.profile import Profile

_MOST = 0.05  # of the wall time of a process's threads
# CPU time that /proc has in ticks, of several threads, may be more by so much; and less is not worth a word.
_LEAST_NS = 100_000_000


@dataclass(frozen=True)
class Loss:
    """Of one process. lost_ns: wall time without an account, and CPU time of threads that were not watched."""

    pid: int
    process_name: str
    lost_ns: int
    whole_ns: int

    @property
    def share(self) -> float:
        return self.lost_ns / self.whole_ns


def losses_of(profile: Profile) -> list[Loss]:
    """Where it is over 5%, and 0.1 s, the largest first.

    Of a part of the time, or of some threads, it cannot be known: none. Nor does the recorder watch all of its own.
    """
    if profile.filter_text:
        return []
    names: dict[int, str] = {}
    wall: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    cpu: Counter[int] = Counter()
    for thread in profile.threads:
        pid = int(thread.pid)
        names.setdefault(pid, thread.process_name)
        wall[pid] += thread.wall_ns
        lost[pid] += max(0, thread.wall_ns - thread.accounted_ns)
        cpu[pid] += thread.on_cpu_ns
    found = []
    for pid, name in names.items():
        if pid in profile.info.own_pids:
            continue
        _, _, user_ns, kernel_ns = profile.info.usage.get(pid, (0, 0, 0, 0))
        unseen_ns = user_ns + kernel_ns - cpu[pid] - lost[pid]
        if unseen_ns < _LEAST_NS:
            unseen_ns = 0
        loss = Loss(pid, name, lost[pid] + unseen_ns, max(wall[pid] + unseen_ns, 1))
        if loss.share > _MOST and loss.lost_ns >= _LEAST_NS:
            found.append(loss)
    return sorted(found, key=lambda each: -each.lost_ns)
