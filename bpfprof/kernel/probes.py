"""Uprobes: a program at a function's first instruction and one at its return, in every process that maps the file.

By one BPF link of all functions of a file where the kernel has those (Linux 6.6). Else by a perf event of each, of the
PMU `uprobe` that Linux 4.17 brought. Neither needs tracefs. While a function is probed the kernel has a breakpoint in
place of its first instruction, in a page that is each process's own then; all other memory stays as it is, and so does
the file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import bpf_syscall
from bpfprof.kernel.attach import cpus
from bpfprof.kernel.btf import KernelTypes
from bpfprof.kernel.kernel_facts import has_uprobe_links
from bpfprof.kernel.kernel_side import KernelSide
from bpfprof.kernel.refusals import is_forbidden, refusal
from bpfprof.proc import privilege

_PMU = Path("/sys/bus/event_source/devices/uprobe")
_NONE = "this kernel has no uprobes (CONFIG_UPROBE_EVENTS)"


class Probes:
    """Those of one recording; `close()` ends them."""

    def __init__(self, kernel: KernelSide) -> None:
        """Its compilation was one with calls. Raises UnsupportedError where there can be none."""
        self._kernel = kernel
        self._fds: list[int] = []
        self._type, self._return_bit = _pmu()

    def add(self, file_fd: int, number_of_offset: Mapping[int, int]) -> None:
        """Runs the programs of calls in these functions: where the code of each begins in the file, to its number.

        Those at the end come first: without them a call that has begun would seem not to return. Raises OSError, and
        UnsupportedError when a program cannot be loaded; some may be there then.
        """
        path = f"/proc/self/fd/{file_fd}\0".encode()  # the very file, whatever its path leads to now
        if self._kernel.uses_links:
            begin_fd, end_fd = self._kernel.call_programs(None)
            for program_fd, is_return in ((end_fd, True), (begin_fd, False)):
                self._fds.append(bpf_syscall.uprobe_link(program_fd, path, dict(number_of_offset), is_return))
            return
        cpu = cpus("online")[0]
        for offset, number in number_of_offset.items():
            begin_fd, end_fd = self._kernel.call_programs(number)
            for kind, program_fd in ((self._return_bit, end_fd), (0, begin_fd)):
                self._fds.append(bpf_syscall.uprobe_open((self._type, kind), cpu, path, offset, program_fd))

    def close(self) -> None:
        """Functions become what they were, which goes on in another thread. Safe to call again.

        The kernel waits for each link or event, one after the other, until no CPU can be in it: 0.02 to 0.2 s. The
        process does not end before.
        """
        fds, self._fds = self._fds, []
        if fds:
            Thread(target=_close, args=(fds,), name="bpfprof-probes").start()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def check_probes() -> None:
    """Raises UnsupportedError where the kernel has none, or does not let this user have any."""
    kind, _ = _pmu()
    if has_uprobe_links(KernelTypes()):
        return  # who may load programs may have them
    try:
        os.close(bpf_syscall.uprobe_open((kind, 0), cpus("online")[0], b"/dev/null\0", 0, -1))
    except OSError as error:
        if is_forbidden(error):
            if lacking := privilege.missing(privilege.UPROBES):
                what = f"this kernel lets nobody set uprobes without {lacking[0]}"
                raise UnsupportedError(what, privilege.how_to_get(lacking)) from error
            raise refusal("the perf event of uprobes", error) from error
        if error.errno != errno.EINVAL:  # what it says of a file that is none
            raise UnsupportedError(f"{_NONE[:-1]}: {error.strerror})") from error


def _pmu() -> tuple[int, int]:
    """Its type, and the bit of its config for returns."""
    try:
        kind = int((_PMU / "type").read_text())
        bit = int((_PMU / "format" / "retprobe").read_text().strip().removeprefix("config:"))
    except (OSError, ValueError) as error:
        raise UnsupportedError(_NONE) from error
    return kind, 1 << bit
