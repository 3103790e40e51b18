"""Source lines of one ELF file: ELF addresses in; file, line and inlined functions out, from DWARF 2 to 5.

The file is a stranger's and we may be root, so `lines_child` reads it in a process without rights. Not read: DWARF that
lies in other files (.dwo, dwz -m), and lines of 64-bit DWARF.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bpfprof.elf.image import ElfImage
from bpfprof.errors import UnsupportedError
from bpfprof.model.seccomp import COMPUTING, seccomp_filter

_PYELFTOOLS = (0, 29)  # DWARF 5, and ranges that are read as they are here
_CHILD = str(Path(__file__).with_name("lines_child.py"))
_WAIT_LIMIT_S = 20  # for a child that gets no CPU, or waits for a disk
_ALONE: dict[str, Any] = {"env": {}, "cwd": "/", "start_new_session": True, "stderr": subprocess.DEVNULL}


@functools.cache
def _filter() -> bytes:
    """Leaves the child what reads and answers."""
    return seccomp_filter(f"{COMPUTING} read write lseek pread64 close fcntl ioctl fstat newfstatat statx")


class SourceLine(NamedTuple):
    """`function` is the linkage name, mangled, if there is one, else the name; "" when only the line is known.

    `file` is joined with its directories as the compiler wrote them, "" when it is unknown. A line of 0 is unknown too,
    or that of code which no line of the source stands for.
    """

    function: str
    file: str
    line: int
    is_inlined: bool


def check_pyelftools() -> str:
    """The version of pyelftools. Raises UnsupportedError when it is missing or too old; nothing else here needs it."""
    try:
        import elftools
    except ImportError:
        version = "none"
    else:
        version = elftools.__version__
        if tuple(map(int, re.findall(r"\d+", version)[:2])) >= _PYELFTOOLS:
            return version
    message = f"lines of native functions need pyelftools {'.'.join(map(str, _PYELFTOOLS))} or newer; here is {version}"
    raise UnsupportedError(message, "leave out --native-lines, or install it with pip")


class LineReader:
    """Keep both files open while it is asked. `problems` say why there is nothing, or less than there could be."""

    def __init__(self, image: ElfImage, debug: ElfImage | None = None, cpu_limit_s: int = 5) -> None:
        """`debug` is the separate debug file of `image`; the limit is that of one look-up."""
        files = [file for file in (image, debug) if file is not None and file.section(".debug_info") is not None]
        self._file = files[0] if files else None
        self._cpu_limit_s = cpu_limit_s
        self.problems = set() if files else {"no .debug_info section"}

    def look_up(self, addresses: Sequence[int]) -> list[tuple[SourceLine, ...]]:
        """For each ELF address what is inlined there, innermost first, and the function last; () when unknown.

        Never fails: what is found before a limit is reached is there.
        """
        found: dict[int, tuple[SourceLine, ...]] = {}
        for line in self._ask(self._file.fileno(), sorted(set(addresses))) if self._file and addresses else ():
            address, content = json.loads(line)
            if address is None:
                self.problems.add(content)
            else:
                found[address] = tuple(SourceLine(*item) for item in content)
        return [found.get(address, ()) for address in addresses]

    def _ask(self, fd: int, addresses: list[int]) -> list[bytes]:
        """What the child could write before it ended, in whatever way."""
        import elftools

        command = [sys.executable, "-I", "-S", _CHILD, str(fd), str(self._cpu_limit_s), elftools.__path__[0]]
        asked = {"filter": _filter().hex(), "addresses": addresses}
        # A file instead of a pipe: a limit of the child bounds its size, and it outlives the child.
        with os.fdopen(os.memfd_create("lines"), "r+b") as output:
            request: dict[str, Any] = {"input": json.dumps(asked).encode(), "stdout": output, "pass_fds": [fd]}
            try:
                subprocess.run(command, check=True, timeout=_WAIT_LIMIT_S, **request, **_ALONE)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                status = getattr(error, "returncode", type(error).__name__)  # -9 where it had no more time
                self.problems.add(f"not all was read in {self._cpu_limit_s} s of CPU time: {status}")
            output.seek(0)
            return [line for line in output if line.endswith(b"\n")]
