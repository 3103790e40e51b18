"""What kind of file a descriptor of a target is: tells a read of a pipe from a read of a socket."""

from __future__ import annotations

import os
import stat
import time

import numpy as np
import numpy.typing as npt

from bpfprof.model.samples import FD_CALLS, FdKind

# By number of the call; -1 (in no call) is the last element.
_TAKES_DESCRIPTOR = np.zeros(1 << 16, np.bool_)
_TAKES_DESCRIPTOR[FD_CALLS] = True
_REMEMBERED_S = 1.0  # a descriptor can be closed and given again
_REMEMBERED_COUNT = 10_000


class DescriptorKinds:
    """Looked up when a wait is drained, so a descriptor that was closed meanwhile is unknown."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[float, FdKind]] = {}

    def of_waits(self, pids: npt.NDArray[np.uint32], waits: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
        """A FdKind for each wait (fields syscall, args); UNKNOWN for calls that take no descriptor."""
        kinds = np.zeros(len(waits), np.uint8)
        chosen = np.flatnonzero(_TAKES_DESCRIPTOR[waits["syscall"]])
        if not len(chosen):
            return kinds
        keys = pids[chosen].astype(np.uint64) << np.uint64(32) | waits["args"][chosen, 0] & np.uint64(0xFFFFFFFF)
        unique, inverse = np.unique(keys, return_inverse=True)
        found = [self._kind(key >> 32, key & 0xFFFFFFFF) for key in unique.tolist()]
        kinds[chosen] = np.array(found, np.uint8)[inverse]
        return kinds

    def _kind(self, pid: int, fd: int) -> FdKind:
        now = time.monotonic()
        since, kind = self._known.get((pid, fd), (-_REMEMBERED_S, FdKind.UNKNOWN))
        if now - since >= _REMEMBERED_S:
            kind = _look(pid, fd)
            if len(self._known) >= _REMEMBERED_COUNT:
                self._known.clear()
            self._known[pid, fd] = now, kind
        return kind


def _look(pid: int, fd: int) -> FdKind:
    try:
        mode = os.stat(f"/proc/{pid}/fd/{fd}").st_mode
    except OSError:
        return FdKind.UNKNOWN
    if stat.S_ISFIFO(mode):
        return FdKind.PIPE
    if stat.S_ISSOCK(mode):
        return FdKind.SOCKET
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return FdKind.DEVICE
    return FdKind.FILE if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else FdKind.UNKNOWN
