"""Files decoded by processes without rights, on other CPUs than the recording: an ElfImage in, rows and rules out.

A process takes a tenth of a second to begin, so it is for large files, or for many.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import bpfprof
from bpfprof.elf.cfi.rules import Rules
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.proc.own_process import helpers, usual_nice
from bpfprof.unwind.cache import FILE_LIMIT_BYTES, unpack
from bpfprof.unwind.decoder_child import ERROR_BYTES
from bpfprof.unwind.rows import FileRows

_CHILD = str(Path(__file__).with_name("decoder_child.py"))
_FOLDERS = tuple(dict.fromkeys(str(Path(module.__file__ or "").parents[1]) for module in (np, bpfprof)))


class _Process:
    """One that decodes a file after the other, until it is ended or dies of one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Before a recording bpfprof's own threads go before others; this work is long, and others go on beside it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _CHILD, str(theirs.fileno()), str(usual_nice()), *_FOLDERS],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"OPENBLAS_NUM_THREADS": "1"},
                cwd="/",
            )
        self.pid = self._process.pid
        helpers.add(self.pid)

    def ask(self, fd: int, output: int) -> str | None:
        """What went wrong with a file, "" for nothing; None: it has died."""
        try:
            socket.send_fds(self._socket, [b"."], [fd, output])
            answer = self._socket.recv(1 + ERROR_BYTES)
        except OSError:
            return None
        return answer[1:].decode(errors="replace") if answer else None

    def end(self) -> float:
        """Returns the CPU time that it has used."""
        self._socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime


class Decoder:
    """Any number of threads may have it decode; `close()` ends what is under way."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._running: set[_Process] = set()
        self._lock = threading.Lock()
        self._ended_cpu_s = 0.0
        self._is_closed = False

    def decode(self, image: ElfImage) -> tuple[FileRows, Rules]:
        """As decode_rows(). Raises ElfError also where the process came to an end without an answer."""
        with os.fdopen(os.memfd_create("bpfprof-rows"), "r+b") as output:
            problem = self._ask(image.fileno(), output.fileno())
            output.seek(0)
            content = output.read(FILE_LIMIT_BYTES)
        found = unpack(content) if problem == "" else None
        if found is None:
            raise ElfError(problem or "its decoder ended")
        return found

    def cpu_s(self) -> float:
        """What all of its processes have used of CPUs."""
        with self._lock:
            living = [*self._running, *self._idle]
            return self._ended_cpu_s + sum(_schedstat_s(process.pid)[0] for process in living)

    def starved_s(self) -> float:
        """How long each of those that run has waited for a CPU, on average."""
        with self._lock:
            waited = [_schedstat_s(process.pid)[1] for process in self._running]
        return sum(waited) / max(1, len(waited))

    def close(self) -> None:
        """No more is begun."""
        with self._lock:
            self._is_closed = True
            for process in self._running:  # whoever waits for it ends it
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            while self._idle:
                self._ended_cpu_s += self._idle.pop().end()

    def _ask(self, fd: int, output: int) -> str | None:
        problem, is_new = None, False
        while problem is None and not is_new and not self._is_closed:  # one that was idle may have ended of itself
            with self._lock:
                is_new = not self._idle
                process = self._idle.pop() if self._idle else _Process()
                self._running.add(process)
            problem = process.ask(fd, output)
            with self._lock:
                self._running.remove(process)
                if problem is not None and not self._is_closed:
                    self._idle.append(process)
                else:
                    self._ended_cpu_s += process.end()
        return problem


def _schedstat_s(pid: int) -> tuple[float, float]:
    """What a process had of a CPU, and how long it waited for one."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat", "rb") as file:
        had_ns, waited_ns, _ = map(int, file.read().split())
        return had_ns / 1e9, waited_ns / 1e9
    return 0.0, 0.0
