"""A command that bpfprof launches: it runs as if it had been started without bpfprof, and its end is bpfprof's own."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Iterable
from typing import NoReturn

from bpfprof.capture.stop import StopRequest
from bpfprof.dataclass import dataclass
from bpfprof.errors import LaunchError
from bpfprof.model.ids import Pid
from bpfprof.proc import tasks
from bpfprof.proc.caller import caller_environment, caller_groups, caller_ids, own_environment
from bpfprof.proc.own_process import usual_locked_memory_limit, usual_priority, usual_signals
from bpfprof.proc.privilege import CAPABILITIES

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER = 47, 3  # include/uapi/linux/prctl.h
_FAILED, _NOT_EXECUTABLE, _NOT_FOUND = 125, 126, 127  # as env(1), nohup(1) and shells end
_GRACE_S, _KILL_S = 5.0, 1.0
_SIGNALLED = 128  # a shell's status of a command that a signal has ended, without the signal's number


@dataclass(frozen=True)
class _User:
    """Whom a command runs as. ids: None: as bpfprof does."""

    ids: tuple[int, int] | None
    groups: list[int]
    environment: dict[str, str]

    @classmethod
    def of_caller(cls) -> _User:
        """Asked before the fork: between fork and exec as little as possible is done."""
        ids = caller_ids()
        if ids is None:
            return cls(None, [], own_environment())
        return cls(ids, caller_groups(*ids), caller_environment(ids[0]))


@dataclass
class LaunchedCommand:
    """A command that was forked but waits for `release()` before it becomes the program."""

    pid: Pid
    command: tuple[str, ...]
    _gate: int
    _failure: int  # reads exit status and errno of what failed; ends without any when it runs
    is_released: bool = False
    _status: int | None = None  # as a shell has it; None: it still runs

    @classmethod
    def start(cls, command: tuple[str, ...]) -> LaunchedCommand:
        """Forks. Under sudo the command runs as the user who called sudo, with that user's groups and environment.

        Raises LaunchError.
        """
        user = _User.of_caller()
        waiting, gate = os.pipe()
        failure, failure_end = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            raise _cannot(command, error.errno or 0, _FAILED) from error
        if pid == 0:
            os.close(gate)
            _become_command(command, user, waiting, failure_end)
        os.close(waiting)
        os.close(failure_end)
        return cls(Pid(pid), command, gate, failure)

    def release(self) -> None:
        """Lets the command begin. Raises LaunchError when it cannot be run."""
        with contextlib.suppress(BrokenPipeError):  # something has ended it meanwhile
            os.write(self._gate, b"x")
        os.close(self._gate)
        self.is_released = True
        with os.fdopen(self._failure, "rb") as stream:
            answer = stream.read()
        if answer:
            status, number = map(int, answer.split())
            raise _cannot(self.command, number, status)

    def wait(self, stop: StopRequest) -> int:
        """Its exit status, as a shell has it, when it has ended; passes on signals that it cannot have had itself."""
        while not self.has_ended():
            number = stop.take(0.1)
            if number:
                with contextlib.suppress(OSError):  # another user's since it was launched (setuid)
                    os.kill(self.pid, number)
        assert self._status is not None
        return self._status

    def end(self, others: Iterable[Pid], stop: StopRequest) -> None:
        """Ends it and the others, which it started, and what these have started since they were looked at.

        SIGTERM, and SIGKILL some seconds or one more request later.
        """
        fds, ended = [], select.poll()
        # The command first: a shell whose child was ended before it goes on to what comes next, or to its own end.
        for pid in tasks.with_descendants([*(() if self.has_ended() else (self.pid,)), *others]):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fds.append(os.pidfd_open(pid))
                ended.register(fds[-1], select.POLLIN)
        stop.take(0)
        for number, seconds in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
            deadline_s = time.monotonic() + seconds
            for fd in fds:
                with contextlib.suppress(OSError):  # ended, or another user's since it was launched (setuid)
                    signal.pidfd_send_signal(fd, number)
            while fds and time.monotonic() < deadline_s and not stop.take(0):
                for fd, _ in ended.poll(100):
                    ended.unregister(fd)
                    fds.remove(fd)
                    os.close(fd)
        for fd in fds:
            os.close(fd)

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else _SIGNALLED - code
        return self._status is not None

    @property
    def ending(self) -> str:
        """What is to be said of how it ended: the signal, if one did that."""
        number = (self._status or 0) - _SIGNALLED
        return signal.Signals(number).name if number in signal.valid_signals() else ""


def _cannot(command: tuple[str, ...], number: int, status: int) -> LaunchError:
    return LaunchError(f"cannot run {command[0]}: {os.strerror(number)}", status)


def _become_command(command: tuple[str, ...], user: _User, waiting: int, failure_end: int) -> NoReturn:
    """In the child. The pipes close themselves at execve."""
    status = _FAILED
    try:
        if os.read(waiting, 1):
            usual_priority()
            usual_locked_memory_limit()
            usual_signals()
            _lower_capabilities()
            if user.ids is not None:
                uid, gid = user.ids
                os.setgroups(user.groups)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)  # from root to another user: all capabilities are gone (capabilities(7))
            status = _NOT_EXECUTABLE
            _exec(command, user.environment)
    except OSError as error:
        if status == _NOT_EXECUTABLE and error.errno in (errno.ENOENT, errno.ENOTDIR):
            status = _NOT_FOUND
        os.write(failure_end, f"{status} {error.errno}".encode())
    except BaseException:
        os.write(failure_end, f"{status} {errno.EINVAL}".encode())
    os._exit(status)


def _exec(command: tuple[str, ...], environment: dict[str, str]) -> None:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        import shutil

        path = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno != errno.ENOEXEC or path is None:
            raise
        os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environment)  # a script without #!, as execvp(3) does


def _lower_capabilities() -> None:
    """Those that bpfprof was given for itself are not for a program, which would get ambient ones at execve."""
    prctl = ctypes.CDLL(None).prctl
    for capability in CAPABILITIES:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, ctypes.c_ulong(capability.number), 0, 0)
