"""What reading a stranger's file costs: a command of bpfprof that only reads, in a process of its own, with bounds."""

from __future__ import annotations

import os
import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# What SECURITY.md promises: so many bytes, and so many times the size of the files.
MEMORY_BYTES, MEMORY_TIMES = 300 << 20, 20
_ADDRESS_SPACE = 6 << 30  # whatever goes wrong, the machine goes on
_ON_A_TERMINAL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
# To where each of these colours its own output.
_OWN = re.compile(rb"\x1b\[[0-9;]*[mK]")


@dataclass(frozen=True)
class Cost:
    """How a command ended, and what it took. text: of both of its outputs."""

    code: int  # of exit; -N: ended by signal N
    cpu_s: float
    peak_bytes: int
    text: bytes

    def complaints(self, file_bytes: int, cpu_s: float) -> list[str]:
        """What of it breaks a promise."""
        bound = MEMORY_BYTES + MEMORY_TIMES * file_bytes
        said = [f"exit {self.code}: {self.text[-300:].decode(errors='replace')}"] if self.code not in (0, 5) else []
        if self.cpu_s > cpu_s:
            said.append(f"{self.cpu_s:.1f} s of CPU time, not {cpu_s:.1f}")
        if self.peak_bytes > bound:
            said.append(f"{self.peak_bytes >> 20} MiB of memory, not {bound >> 20}")
        acts = _ON_A_TERMINAL.search(_OWN.sub(b"", self.text))
        if acts:
            said.append(f"{self.text[max(0, acts.start() - 40) : acts.end() + 20]!r} goes to a terminal")
        return said


def cost_of(*arguments: str | Path, cpu_s: float = 60) -> Cost:
    """Runs `bpfprof ARGUMENTS`. A warning counts as an error. Ended by a signal when it takes more CPU time."""

    def command() -> None:
        from bpfprof.cli import main

        sys.argv = ["bpfprof", *map(str, arguments)]
        main()

    return cost_of_call(command, cpu_s)


def cost_of_call(call: Callable[[], None], cpu_s: float = 60) -> Cost:
    """The same of a function, whose exceptions are for the caller to see in `text`."""
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if not pid:
            _child(call, cpu_s, output.fileno())
        _, status, used = os.wait4(pid, 0)
        output.seek(0)
        text, _, peak = output.read().rpartition(b"\n")
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    if not peak.isdigit():  # it was ended
        return Cost(code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, text + peak)
    return Cost(code, used.ru_utime + used.ru_stime, int(peak), text)


def _child(call: Callable[[], None], cpu_s: float, output: int) -> None:
    code = 120
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))
        begin_bytes = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        soft = int(time.process_time() + cpu_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
        warnings.simplefilter("error")
        try:
            call()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, b"\n%d" % (_memory("VmHWM") - begin_bytes + _INTERPRETER_BYTES))
    except BaseException:
        import traceback

        code = 121
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


_INTERPRETER_BYTES = 40 << 20  # with numpy, which the process that is forked has already


def _memory(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
