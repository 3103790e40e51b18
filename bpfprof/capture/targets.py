"""The processes the user named: checked, watched for their end, or launched; and how the user ends a recording."""

from __future__ import annotations

import os
import pwd
import select
import signal
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from bpfprof.errors import TargetError, UnsupportedError
from bpfprof.kernel.refusals import is_forbidden, refusal
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.proc.own_process import caller_ids, usual_locked_memory_limit, usual_priority
from bpfprof.proc.privilege import OTHER_USERS, how_to_get, missing

_TOGETHER_S = 0.0003  # births and mappings come in groups: they are looked at together


@dataclass
class LaunchedCommand:
    """A command that was forked but waits for `release()` before it becomes the program."""

    pid: Pid
    command: tuple[str, ...]
    _gate: int
    _failure: int  # reads the errno of an execve that failed; ends without one when it worked

    @classmethod
    def start(cls, command: tuple[str, ...]) -> LaunchedCommand:
        """Forks; under sudo the command runs as the user who called sudo, with that user's groups and HOME."""
        waiting, gate = os.pipe()
        failure, failure_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            _become_command(command, waiting, failure_end)
        os.close(waiting)
        os.close(failure_end)
        return cls(Pid(pid), command, gate, failure)

    def release(self) -> None:
        """Lets the command begin. Raises TargetError when it cannot be run."""
        os.write(self._gate, b"x")
        os.close(self._gate)
        with os.fdopen(self._failure, "rb") as stream:
            number = stream.read()
        if number:
            raise TargetError(f"cannot run {self.command[0]}: {os.strerror(int(number))}")


def _become_command(command: tuple[str, ...], waiting: int, failure_end: int) -> None:
    """In the child; never returns. The pipes close themselves at execve."""
    try:
        if os.read(waiting, 1):
            usual_priority()
            usual_locked_memory_limit()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            _become_caller()
            os.execvp(command[0], command)
    except OSError as error:
        os.write(failure_end, str(error.errno).encode())
    os._exit(127)


def _become_caller() -> None:
    ids = caller_ids()
    if ids is None:
        return
    try:
        entry = pwd.getpwuid(ids[0])
        os.initgroups(entry.pw_name, ids[1])
        os.environ["HOME"] = entry.pw_dir
    except KeyError:
        os.setgroups([ids[1]])
    os.setresgid(ids[1], ids[1], ids[1])
    os.setresuid(ids[0], ids[0], ids[0])


@dataclass
class Targets:
    """The named processes, each held by a pidfd so that its end is noticed and its pid cannot be taken by another."""

    pids: tuple[Pid, ...]
    woken_by: set[int] = field(default_factory=set)  # descriptors that cut the last wait short
    _pidfds: dict[int, Pid] = field(default_factory=dict)
    _epoll: select.epoll = field(default_factory=select.epoll)

    @classmethod
    def open(cls, pids: tuple[Pid, ...]) -> Targets:
        """Raises TargetError when one does not exist, is a thread, or is a kernel thread's.

        UnsupportedError when /proc hides it, or the kernel lets nobody watch.
        """
        targets = cls(pids)
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except OSError as error:
                if is_forbidden(error):
                    raise refusal("pidfd_open(2)", error) from error
                if tasks.list_threads(pid):
                    raise TargetError(f"process {pid} cannot be watched: {error.strerror}") from error
                raise TargetError(f"there is no process {pid}", "ps -e lists the processes that run") from error
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

        Never true where no process was named: then the whole machine is watched.
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
        return bool(self.pids) and not self._pidfds

    def close(self) -> None:
        """Lets go of the pidfds."""
        self._epoll.close()
        while self._pidfds:
            os.close(self._pidfds.popitem()[0])


class StopRequest:
    """Becomes `requested` when SIGINT or SIGTERM arrives within the `with` block."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
