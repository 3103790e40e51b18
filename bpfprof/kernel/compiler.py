"""The BPF programs as instructions: ready made, kept, or compiled in short-lived child processes, side by side.

Ready made are those that came with bpfprof (build_hook.py); the cache has what this user compiled (see private_cache).
Both are under a hash of everything that went into the compiler, and serve all kernels that can the same.

BCC brings LLVM with it: some 90 MB that only the compiler needs. In a child they are given back after a third of a
second, the parent goes on with other work meanwhile, and a compiler that ends its process (LLVM does, on an error in
code generation) ends the child only. This module is imported before anything large, so that the child starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from bpfprof import __version__
from bpfprof.abi import ebpf_directory
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import sources
from bpfprof.kernel.kernel_facts import KernelFacts, kernel_facts
from bpfprof.kernel.sources import compiler_flags, function_names, join_includes, number_flags, with_numbers
from bpfprof.private_cache import PrivateCache

KPROBE, PERF_EVENT, RAW_TRACEPOINT = 2, 7, 17  # enum bpf_prog_type of include/uapi/linux/bpf.h
# Programs, each a function in ebpf/, and the type it is loaded as.
PROGRAMS = {
    "on_cpu": PERF_EVENT,
    "on_event": PERF_EVENT,
    "sched_switch": RAW_TRACEPOINT,
    "sched_waking": RAW_TRACEPOINT,
    "sched_process_fork": RAW_TRACEPOINT,
    "sched_process_exec": RAW_TRACEPOINT,
    "sched_process_free": RAW_TRACEPOINT,
}
# The one that is loaded for each event that is asked for; all others always are.
ON_EVENT = "on_event"
# Those that are loaded for each function whose calls are counted, and compiled only with them.
CALL_PROGRAMS = {"call_begin": KPROBE, "call_end": KPROBE}
_CACHE = PrivateCache("", file_limit_bytes=1 << 22)
READY_MADE = Path(__file__).parent / "ready_made"
# No debug information, no warnings, and none of clang's own optimisation, for BCC optimises what clang makes as well
# (run_pass_manager() of its bpf_module.cc). Programs are as quick, at most 4% longer, and take two thirds of the time.
_QUICKER = ["-g0", "-w", "-Xclang", "-disable-llvm-passes"]
_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP = 28, 4  # include/uapi/linux/prctl.h, securebits.h
_UID_NOBODY = 65534
_DISTRIBUTION_PACKAGES = "/usr/lib/python3/dist-packages"  # where Debian and Ubuntu put BCC, whatever Python runs this
_SAYS_WHY = 3  # exit status of a compiler whose answer is an error; others are LLVM's and signals
_SEE_DEBUG = "--debug shows the compiler's messages"


class Compilation:
    """A compilation under way, or its result if that was there already; `result()` waits for it."""

    def __init__(self, key: str, facts: KernelFacts, with_calls: bool = False) -> None:
        self.facts, self.with_calls = facts, with_calls
        self._key = key
        ready = _read(READY_MADE / self.file_name)
        self._programs = _parse(_CACHE.load(key) if ready is None else ready)
        self._children: list[_Child] = []

    @classmethod
    def start(cls, with_calls: bool = False) -> Compilation:
        """Looks for it, else forks the children that compile; call it before threads are started.

        with_calls: with CALL_PROGRAMS, and stacks that lead through such calls.

        Raises UnsupportedError without the kernel's type information, and without BCC where something is compiled.
        """
        return cls.of(kernel_facts(), with_calls)

    @classmethod
    def of(cls, facts: KernelFacts, with_calls: bool) -> Compilation:
        """The same for a kernel that may be another."""
        text = _text()
        compilation = cls(_key(text, facts, with_calls), facts, with_calls)
        if compilation._programs is None:
            check_bcc()
            programs, functions = [*PROGRAMS, *(CALL_PROGRAMS if with_calls else ())], function_names(text)
            flags = compiler_flags(functions, facts.takes_pointer, with_calls, facts.uses_links) + number_flags()
            for define, names in (("-DBP_ONLY_PROGRAMS=1", programs), ("-DBP_ONLY_FUNCTIONS=1", functions)):
                compilation._children.append(_Child(text, [*flags, define], names))
        return compilation

    def result(self) -> dict[str, bytes]:
        """The instructions of each program, then of each function that they call, in the order of their numbers.

        Raises UnsupportedError with what BCC or LLVM said.
        """
        if self._programs is None:
            _CACHE.store(self._key, self.content())
        return {name: with_numbers(code, self.facts.numbers) for name, code in (self._programs or {}).items()}

    def content(self) -> bytes:
        """What a file in READY_MADE or the cache has, with numbers of no kernel. Raises the same."""
        if self._programs is None:
            answers = [json.loads(child.answer()) for child in self._children]
            self._programs = _programs({name: code for each in answers for name, code in each.items()})
        return json.dumps({name: code.hex() for name, code in self._programs.items()}).encode()

    @property
    def file_name(self) -> str:
        """In READY_MADE."""
        return f"{self._key}.json"

    def interrupt(self) -> None:
        """Makes `result()`, which another thread may be waiting in, fail soon if the programs are not there yet."""
        for child in self._children:
            child.kill()

    def cancel(self) -> None:
        """Ends the compilation if its result was not taken; its programs are not wanted."""
        self.interrupt()
        for child in self._children:
            with contextlib.suppress(UnsupportedError):
                child.answer()


class _Child:
    """A process that compiles."""

    def __init__(self, text: str, flags: list[str], names: list[str]) -> None:
        """names: of all programs and functions that are wanted."""
        self._answer_fd, answer_end = os.pipe()
        self._log_fd = os.memfd_create("bpfprof-compiler")
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._answer_fd)
            _compile_and_end(text, flags, names, answer_end, self._log_fd)
        os.close(answer_end)

    def kill(self) -> None:
        """It has no answer, if it has none yet."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def answer(self) -> bytes:
        """Waits for it; b"" when it was taken before. Raises UnsupportedError with what BCC or LLVM said."""
        if not self._pid:
            return b""
        with os.fdopen(self._answer_fd, "rb") as stream:
            answer = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        log = os.pread(self._log_fd, 1 << 20, 0).decode(errors="replace").strip()
        os.close(self._log_fd)
        if status:
            reason = answer.decode() if status == _SAYS_WHY else f"the compiler ended with status {status}"
            raise UnsupportedError(f"the BPF programs could not be compiled: {reason}", _SEE_DEBUG, log)
        return answer


def are_ready_made() -> bool:
    """Whether the programs for this kernel came with bpfprof. Raises UnsupportedError without its type information."""
    return (READY_MADE / f"{_key(_text(), kernel_facts(), False)}.json").exists()


def _text() -> str:
    return join_includes(ebpf_directory() / "profiler.bpf.c")


def _key(text: str, facts: KernelFacts, with_calls: bool) -> str:
    """Of all that the programs are made of."""
    can = facts.takes_pointer, with_calls, with_calls and facts.uses_links
    parts = [__version__.encode(), os.uname().machine.encode(), repr(can).encode(), text.encode()]
    return hashlib.sha256(b"\0".join([*parts, Path(str(sources.__file__)).read_bytes()])).hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _parse(content: bytes | memoryview | None) -> dict[str, bytes] | None:
    """None for anything else."""
    try:
        return _programs(json.loads(bytes(content or b"")))
    except (ValueError, AttributeError, TypeError):
        return None


def _programs(kept: Any) -> dict[str, bytes]:
    return {name: bytes.fromhex(code) for name, code in kept.items()}


def check_bcc() -> str:
    """Where BCC's Python package is; looked at, not imported. Raises UnsupportedError when it is missing."""
    if _DISTRIBUTION_PACKAGES not in sys.path:
        sys.path.append(_DISTRIBUTION_PACKAGES)
    spec = importlib.util.find_spec("bcc")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.path.isfile(os.path.join(folder, "libbcc.py")):
            return folder
    raise UnsupportedError(
        "BCC's Python package, which no pip installs, is missing", "sudo apt-get install python3-bpfcc"
    )


def bcc_version(folder: str) -> str:
    """Of the package in this folder, without importing it; "of an unknown version" where it does not say."""
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, "version.py"), encoding="utf-8", errors="replace") as file,
    ):
        found = re.search(r"""^__version__ *= *['"]([^'"]+)""", file.read(4096), re.MULTILINE)
        if found:
            return found.group(1)
    return "of an unknown version"


def _compile_and_end(text: str, flags: list[str], names: list[str], answer_fd: int, log_fd: int) -> None:
    """Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    try:
        answer, status = json.dumps({name: code.hex() for name, code in _compile(text, flags, names).items()}), 0
    except BaseException as error:
        answer, status = f"{type(error).__name__}: {error}", _SAYS_WHY
    with os.fdopen(answer_fd, "wb") as stream:
        stream.write(answer.encode(errors="replace"))
    os._exit(status)


def _compile(text: str, flags: list[str], names: list[str]) -> dict[str, bytes]:
    os.environ["BCC_KERNEL_SOURCE"] = str(ebpf_directory())
    from bcc import BPF
    from bcc.libbcc import lib

    _hide_root()
    module = BPF(text=text, cflags=[*flags, *_QUICKER])
    code = {}
    for function in names:
        size = lib.bpf_function_size(module.module, function.encode())
        code[function] = ctypes.string_at(lib.bpf_function_start(module.module, function.encode()), size)
    return code


def _hide_root() -> None:
    """Lets BCC see another effective uid, with every capability kept.

    As uid 0 BCC reads all of /proc/kallsyms (0.2 s) to learn whether the kernel has bpf_probe_read_kernel; as another
    it takes the answer to be no, which only matters to programs it rewrites. Ours call the helpers themselves.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0:
        os.seteuid(_UID_NOBODY)
