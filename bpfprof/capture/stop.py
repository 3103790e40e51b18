"""How the user ends a recording: signals in, a request out, and which of them a launched command has had itself."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from bpfprof.proc.own_process import STOP_SIGNALS, ignored_signals

_SFD_CLOEXEC, _SIGSET_BYTES = os.O_CLOEXEC, 128  # signalfd(2); sigset_t of glibc and musl
_SI_KERNEL = 0x80  # include/uapi/asm-generic/siginfo.h: sent by the terminal, to all that is in its foreground


class _CutError(BaseException):
    """Raised in what is left. No Exception: nothing that goes on after one of those takes it."""


class StopRequest:
    """Becomes `requested` when SIGINT, SIGTERM or SIGHUP arrives within the `with` block.

    SIGHUP only where it was not ignored, as under nohup. The signals are blocked and asked for, as only so it is known
    who sent them; threads that were there before may still get one.
    """

    def __init__(self) -> None:
        self._signals = {number for number in STOP_SIGNALS if number != signal.SIGHUP or number not in ignored_signals}
        self._number = 0  # of the last one that came and was not taken
        self._count = 0  # of signals that came
        self._is_requested = self._may_cut = False
        self._leaves_ctrl_c = self._has_left_one = False
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_mask: set[int] | None = None
        self.fd = -1  # readable while a signal waits to be taken, within the block

    def __enter__(self) -> StopRequest:
        for number in self._signals:  # a shell has SIGINT ignored in the background: nothing would be queued
            self._previous[number] = signal.signal(number, self._came)
        self._previous_mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._signals))
        self.fd = _signal_fd(self._signals)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def end(self) -> None:
        """From here on signals end bpfprof, in good order: what is left to do may be given up."""
        if self._previous_mask is None:
            return
        self._look(0)  # what came is not to come again
        signal.pthread_sigmask(signal.SIG_SETMASK, self._previous_mask)
        self._previous_mask = None
        for number, handler in self._previous.items():
            signal.signal(number, _give_up if handler is signal.SIG_DFL else handler)

    @property
    def requested(self) -> bool:
        """Whether the recording is to end."""
        self._look(0)
        return self._is_requested

    @property
    def count(self) -> int:
        """How many signals have come."""
        self._look(0)
        return self._count

    def request(self) -> None:
        """As a signal does."""
        self._is_requested = True
        if self._may_cut and threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def cuts(self, work: Callable[[], None]) -> None:
        """Calls it in the main thread, and leaves it wherever it is when a request comes: it is of no use any more."""
        try:
            try:
                self._may_cut = True
                if not self.requested:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, self._signals)
                    work()
            finally:
                self._may_cut = False
        except _CutError:
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def leave_ctrl_c(self) -> None:
        """From here on a command runs in the foreground, which the terminal sends its SIGINT, too: it decides."""
        self._look(0)
        self._leaves_ctrl_c = True

    def take_ctrl_c(self) -> None:
        """From here on it is for bpfprof again, for that command has ended; one that came before may be why."""
        self._look(0)
        self._leaves_ctrl_c = False
        if self._has_left_one:
            self.request()

    def take(self, timeout_s: float) -> int:
        """The last signal that made a request and was not taken before, waiting so long for one; 0: none."""
        if not self._number:
            self._look(timeout_s)
        number, self._number = self._number, 0
        return number

    def _look(self, timeout_s: float) -> None:
        while self._previous_mask is not None:
            found = signal.sigtimedwait(self._signals, timeout_s)
            if found is None:
                return
            if self._leaves_ctrl_c and found.si_signo == signal.SIGINT and found.si_code == _SI_KERNEL:
                self._has_left_one = True
                continue
            self._came(found.si_signo, None)
            timeout_s = 0

    def _came(self, number: int, _frame: FrameType | None) -> None:
        self._number, self._is_requested = number, True
        self._count += 1
        if self._may_cut:
            self._may_cut = False  # once
            raise _CutError


def _signal_fd(signals: set[signal.Signals]) -> int:
    """A descriptor that is readable while one of these, which are blocked, is pending; -1 where there is none."""
    mask = (ctypes.c_ulong * (_SIGSET_BYTES // ctypes.sizeof(ctypes.c_ulong)))()
    mask[0] = sum(1 << (number - 1) for number in signals)
    return int(ctypes.CDLL(None).signalfd(-1, mask, _SFD_CLOEXEC))


def _give_up(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # as a shell has it
