"""Compiles and loads the BPF programs in a short-lived child process and takes over their descriptors.

BCC brings LLVM with it: some 90 MB that only the compiler needs. In a child they are given back after half a second,
the parent goes on with other work meanwhile, and a compiler that ends its process (LLVM does, on an error in code
generation) ends the child only.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import BinaryIO

from bpfprof import abi
from bpfprof.errors import UnsupportedError
from bpfprof.kernel.btf import KernelTypes
from bpfprof.kernel.sources import compiler_flags, join_includes

# name of the function in ebpf/ -> its program type (enum bpf_prog_type)
_PERF_EVENT, _RAW_TRACEPOINT = 7, 17
PROGRAMS = {
    "on_cpu": _PERF_EVENT,
    "perf_walk": _PERF_EVENT,
    "perf_identify": _PERF_EVENT,
    "sched_switch": _RAW_TRACEPOINT,
    "sched_walk": _RAW_TRACEPOINT,
    "sched_identify": _RAW_TRACEPOINT,
    "sched_waking": _RAW_TRACEPOINT,
    "sched_process_fork": _RAW_TRACEPOINT,
    "sched_process_exec": _RAW_TRACEPOINT,
    "sched_process_free": _RAW_TRACEPOINT,
}
_QUICKER = ["-g0", "-w"]  # no debug information, no warnings: a tenth of the time
_BCC_HINT = "sudo apt-get install python3-bpfcc"
_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP = 28, 4  # include/uapi/linux/prctl.h, securebits.h
_UID_NOBODY = 65534
_EXIT_NO_BCC, _EXIT_NOT_LOADED = 3, 4


def _hide_root() -> None:
    """Lets BCC see another effective uid, with every capability kept.

    As uid 0 BCC reads all of /proc/kallsyms (0.2 s) to learn whether the kernel has bpf_probe_read_kernel; as another it
    takes the answer to be no, which only matters to programs it rewrites. Ours call the helpers themselves.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0:
        os.seteuid(_UID_NOBODY)


def _compile_and_load(map_fds: dict[str, int]) -> list[int]:
    """In the child: descriptors of PROGRAMS, in order."""
    os.environ["BCC_KERNEL_SOURCE"] = str(abi.ebpf_directory())
    sys.path.append("/usr/lib/python3/dist-packages")  # where Debian and Ubuntu put BCC, whatever Python runs this
    try:
        from bcc import BPF
    except ImportError as error:
        print(error, file=sys.stderr)
        os._exit(_EXIT_NO_BCC)
    text = join_includes(abi.ebpf_directory() / "profiler.bpf.c")
    types = KernelTypes()
    _hide_root()
    module = BPF(text=text, cflags=[*compiler_flags(types, map_fds), *_QUICKER])
    return [module.load_func(name, program_type).fd for name, program_type in PROGRAMS.items()]


def _child(channel: socket.socket, log: BinaryIO, map_fds: dict[str, int]) -> None:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        socket.send_fds(channel, [b"x"], _compile_and_load(map_fds))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(_EXIT_NOT_LOADED)
    os._exit(0)


@dataclass(slots=True)
class Compilation:
    """A compilation under way; `programs()` waits for it."""

    child_pid: int
    channel: socket.socket
    log: BinaryIO

    @classmethod
    def start(cls, map_fds: dict[str, int]) -> Compilation:
        """Forks the child that compiles; call it before threads are started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        log = tempfile.TemporaryFile()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _child(theirs, log, map_fds)
        theirs.close()
        return cls(pid, ours, log)

    def cancel(self) -> None:
        """Ends the compilation; its programs are not wanted."""
        os.kill(self.child_pid, signal.SIGKILL)
        os.waitpid(self.child_pid, 0)
        self.channel.close()
        self.log.close()

    def programs(self) -> dict[str, int]:
        """Program descriptors by name. Raises UnsupportedError with what BCC, LLVM or the verifier said."""
        _, fds, _, _ = socket.recv_fds(self.channel, 1, len(PROGRAMS))
        self.channel.close()
        status = os.waitstatus_to_exitcode(os.waitpid(self.child_pid, 0)[1])
        self.log.seek(0)
        said = self.log.read().decode(errors="replace").strip()
        self.log.close()
        if len(fds) == len(PROGRAMS):
            return dict(zip(PROGRAMS, array.array("i", fds), strict=True))
        if status == _EXIT_NO_BCC:
            raise UnsupportedError(f"BCC's Python package is missing ({said.splitlines()[-1]})", _BCC_HINT)
        detail = said.splitlines()[-1] if said else f"the compiler ended with status {status}"
        error = UnsupportedError(f"the BPF programs could not be compiled or loaded: {detail}", "see --debug")
        error.add_note(said)
        raise error
