"""The processes the user named: checked, and watched for their end."""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import field

from bpfprof.capture.members import Members
from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError, UnsupportedError, UsageError, shortage
from bpfprof.kernel.refusals import is_forbidden, refusal
from bpfprof.model.ids import Pid, Tid
from bpfprof.proc import tasks
from bpfprof.proc.privilege import OTHER_USERS, how_to_get, missing

_TOGETHER_S = 0.0003  # births and mappings come in groups: they are looked at together
_CGROUPS_S = 1.0  # nothing tells that one was removed
_REST, _REST_LIMIT_S = (
    50,
    0.02,
)  # times what a look took that found nothing of the targets: those cost 2% of a CPU at most


@dataclass
class Targets:
    """The named processes, each held by a pidfd so that its end is noticed and its pid cannot be taken by another."""

    pids: tuple[Pid, ...]
    members: Members = field(default_factory=lambda: Members([], []))  # of the cgroups that were named
    woken_by: set[int] = field(default_factory=set)  # descriptors that cut the last wait short
    is_told: bool = False  # wake() did
    _pidfds: dict[int, Pid] = field(default_factory=dict)
    _epoll: select.epoll = field(default_factory=select.epoll)
    _asked: select.epoll = field(default_factory=select.epoll)  # what cannot wait: ends, signals, wake()
    _of_any: select.epoll = field(default_factory=select.epoll)  # what other programs make readable, too
    _rest_until_s: float = 0.0
    _ending_fd: int = -1
    _bell: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self._epoll.register(self._of_any.fileno(), select.EPOLLIN)
        self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wake_while(self._bell[0])

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
                if shortage(error):
                    raise
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
            targets.wake_while(fd)
            if not tasks.list_threads(pid) and not targets._epoll.poll(0):
                raise UnsupportedError(f"/proc hides process {pid} (hidepid)", how_to_get(missing(OTHER_USERS)))
        return targets

    def end_with(self, fd: int) -> None:
        """They count as ended when a pipe does. Raises UsageError if it is none."""
        try:
            self.wake_while(fd)
        except OSError as error:
            raise UsageError("--until-eof wants a pipe as standard input") from error
        self._ending_fd = fd

    def wake_on(self, ring_fd: int) -> None:
        """Lets the kernel side cut a wait short by waking up a ring buffer."""
        # Edge-triggered: records that are merely there do not count.
        self._epoll.register(ring_fd, select.EPOLLIN | select.EPOLLET)

    def wake_on_any(self, fd: int) -> None:
        """The same of a descriptor that programs which are no targets make readable, too: see rest()."""
        self._of_any.register(fd, select.EPOLLIN | select.EPOLLET)

    def wake_while(self, fd: int) -> None:
        """Lets a descriptor cut waits short, and pauses, while it is readable."""
        if fd >= 0:
            self._epoll.register(fd, select.EPOLLIN)
            self._asked.register(fd, select.EPOLLIN)

    def wake(self) -> None:
        """Cuts the wait that is under way short, or the next one; from any thread."""
        with contextlib.suppress(BlockingIOError):  # it has been told often
            os.write(self._bell[1], b"x")

    def rest(self, look_s: float) -> None:
        """A look that took so long found nothing of the targets: the next that others ask for can wait a little."""
        self._rest_until_s = time.monotonic() + min(_REST * look_s, _REST_LIMIT_S)

    def all_ended(self, timeout_s: float) -> bool:
        """Waits up to timeout_s, or until something happens; true as soon as none of them runs any more.

        Cgroups have ended when they were removed; the whole machine never does.
        """
        woken = self._poll(min(timeout_s, _CGROUPS_S) if self.members.cgroups else timeout_s)
        self.woken_by = {fd for fd, _ in woken}
        self.is_told = self._bell[0] in self.woken_by
        if self.is_told:
            os.read(self._bell[0], 4096)
            self.woken_by.remove(self._bell[0])
        if self.woken_by - self._pidfds.keys():
            time.sleep(_TOGETHER_S)
            self._of_any.poll(0)  # once told they are silent
        for fd, _ in woken:
            if fd in self._pidfds:
                self._epoll.unregister(fd)
                self._asked.unregister(fd)
                os.close(fd)
                del self._pidfds[fd]
        if self._ending_fd in self.woken_by and not os.read(self._ending_fd, 4096):
            return True
        return self.members.have_ended or (bool(self.pids) and not self._pidfds)

    def pause(self, timeout_s: float) -> bool:
        """Waits so long, or until something happens that cannot wait: births and mappings can."""
        return bool(self._asked.poll(timeout_s))

    def _poll(self, timeout_s: float) -> list[tuple[int, int]]:
        rest_s = min(self._rest_until_s - time.monotonic(), timeout_s)
        if rest_s > 0:
            self._epoll.modify(self._of_any.fileno(), 0)
            woken = self._epoll.poll(rest_s)
            self._epoll.modify(self._of_any.fileno(), select.EPOLLIN)
            if woken or rest_s == timeout_s:
                return woken
        return self._epoll.poll(timeout_s - max(0.0, rest_s))

    def close(self) -> None:
        """Lets go of all descriptors."""
        for each in (self._epoll, self._asked, self._of_any):
            each.close()
        bell, self._bell = self._bell, (-1, -1)
        for fd in (*self._pidfds, *(fd for fd in bell if fd >= 0)):
            os.close(fd)
        self._pidfds.clear()
