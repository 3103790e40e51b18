"""The processes the user named: checked, and watched for their end."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field

from bpfprof.capture.members import Members
from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.kernel.refusals import is_forbidden, refusal
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.privilege import OTHER_USERS, how_to_get, missing

_TOGETHER_S = 0.0003  # births and mappings come in groups: they are looked at together


@dataclass
class Targets:
    """The named processes, each held by a pidfd so that its end is noticed and its pid cannot be taken by another."""

    pids: tuple[Pid, ...]
    members: Members = field(default_factory=lambda: Members([], []))  # of the cgroups that were named
    woken_by: set[int] = field(default_factory=set)  # descriptors that cut the last wait short
    _pidfds: dict[int, Pid] = field(default_factory=dict)
    _epoll: select.epoll = field(default_factory=select.epoll)

    @classmethod
    def open(cls, pids: tuple[Pid, ...], cgroups: tuple[str, ...] = (), containers: tuple[str, ...] = ()) -> Targets:
        """Raises TargetError when one does not exist, is a thread, or is a kernel thread's.

        UnsupportedError when /proc hides it, or the kernel lets nobody watch.
        """
        targets = cls(pids, Members.find(cgroups, containers))
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except OSError as error:
                if is_forbidden(error):
                    raise refusal("pidfd_open(2)", error) from error
                if tasks.list_threads(pid):
                    raise TargetError(f"process {pid} cannot be watched: {error.strerror}") from error
                raise TargetError(f"there is no process {pid}", "ps -e lists the processes that run") from error
            if tasks.is_kernel_thread(pid):
                os.close(fd)
                raise TargetError(f"process {pid} is a kernel thread", "record -a has those that run")
            if tasks.has_died(pid) and tasks.list_threads(pid) == [Tid(pid)]:
                os.close(fd)
                reason = f"process {pid} has ended: it is a zombie until its parent waits for it"
                raise TargetError(reason, f"the parent is process {tasks.parent(pid)}")
            targets._pidfds[fd] = pid
            targets._epoll.register(fd, select.EPOLLIN)
            if not tasks.list_threads(pid) and not targets._epoll.poll(0):
                raise UnsupportedError(f"/proc hides process {pid} (hidepid)", how_to_get(missing(OTHER_USERS)))
        return targets

    def wake_on(self, ring_fd: int) -> None:
        """Lets the kernel side cut a wait short by waking up a ring buffer."""
        # Edge-triggered: records that are merely there do not count.
        self._epoll.register(ring_fd, select.EPOLLIN | select.EPOLLET)

    def all_ended(self, timeout_s: float) -> bool:
        """Waits up to timeout_s, or until something happens; true as soon as none of them runs any more.

        Cgroups have ended when they were removed; the whole machine never does.
        """
        woken = self._epoll.poll(timeout_s)
        self.woken_by = {fd for fd, _ in woken}
        if self.woken_by - self._pidfds.keys():
            time.sleep(_TOGETHER_S)
        for fd, _ in woken:
            if fd in self._pidfds:
                self._epoll.unregister(fd)
                os.close(fd)
                del self._pidfds[fd]
        return self.members.have_ended or (bool(self.pids) and not self._pidfds)

    def close(self) -> None:
        """Lets go of the pidfds."""
        self._epoll.close()
        while self._pidfds:
            os.close(self._pidfds.popitem()[0])
