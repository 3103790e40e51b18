"""The mappings of a process: /proc/PID/maps in, `Mapping`s and file descriptors of the mapped files out."""

from __future__ import annotations

import os
import re

from bpfprof.dataclass import dataclass
from bpfprof.errors import TargetError
from bpfprof.model.ids import FileOffset, Pid, RuntimeAddress
from bpfprof.proc.living import living
from bpfprof.proc.reader import reader

# vm.max_map_count allows 65530 mappings by default and far more when raised; this bounds what one target can cost.
_MAPS_LIMIT_BYTES = 64 << 20
_EXECUTABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ..x. .*$", re.MULTILINE)
# Memory of no file behind a page that nobody may touch, as allocate_stack() makes it (nptl/allocatestack.c of glibc
# 2.36), and the stack of the first thread. Some of what is found is none.
_STACK = re.compile(
    rb"^[0-9a-f]+-([0-9a-f]+) ---p .*\n\1-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[.*)?$"
    rb"|^([0-9a-f]+)-([0-9a-f]+) rw-p .* \[stack\]$",
    re.MULTILINE,
)
_DELETED = " (deleted)"  # appended by d_path(), fs/d_path.c (Linux 6.1)


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/PID/maps. `path` is without the kernel's " (deleted)"; "" or "[name]" when no file is mapped.

    A path may hold surrogates (bytes that are not UTF-8), so that it can be opened again.
    """

    start: RuntimeAddress
    end: RuntimeAddress
    permissions: str
    offset: FileOffset
    device: str
    inode: int
    path: str
    is_deleted: bool = False

    @property
    def is_file(self) -> bool:
        """Whether a file is mapped, deleted or not; not the heap, a stack, the vdso or anonymous memory."""
        return self.inode != 0 and self.path.startswith("/")

    @property
    def is_executable(self) -> bool:
        return "x" in self.permissions


def read_maps(pid: Pid) -> list[Mapping]:
    """All mappings, by address. Empty for a kernel thread or a zombie; TargetError when the process is gone."""
    mappings = (_parse_line(line) for line in _read(pid).split(b"\n"))
    return [mapping for mapping in mappings if mapping is not None]


def read_executable_maps(pid: Pid, limit: int) -> tuple[list[Mapping], int]:
    """The first `limit` mappings of code, by address, and how many there are. Errors are as for read_maps()."""
    lines = _EXECUTABLE.findall(_read(pid))
    mappings = (_parse_line(line) for line in lines[:limit])
    return [mapping for mapping in mappings if mapping is not None], len(lines)


def read_stack_ranges(pid: Pid) -> list[tuple[int, int]]:
    """Where stacks of threads may be, as (start, end), the first thread's first. Errors are as for read_maps()."""
    found = [(int(a or c, 16), int(b or d, 16)) for a, b, c, d in _STACK.findall(_read(pid))]
    return found[-1:] + found[:-1]


def _read(pid: Pid) -> bytes:
    path = f"/proc/{living(pid)}/maps"
    try:
        # They are of the memory at the opening, and none where that is gone: a process that executed a program since
        # then has others, see m_start() in fs/proc/task_mmu.c (Linux 6.1).
        return reader().read_file(pid, path, _MAPS_LIMIT_BYTES) or reader().read_file(pid, path, _MAPS_LIMIT_BYTES)
    except OSError as error:
        raise TargetError(f"the mappings of process {pid} cannot be read: {error.strerror}") from error


def _parse_line(line: bytes) -> Mapping | None:
    """`start-end perms offset major:minor inode path`, proc(5); None for a line that is not of this form."""
    fields = line.split(None, 5)
    if len(fields) < 5:
        return None
    start, _, end = fields[0].partition(b"-")
    # show_map_vma() escapes newlines, and nothing else, as \012 (fs/proc/task_mmu.c, Linux 6.1).
    path = os.fsdecode(fields[5].replace(b"\\012", b"\n")) if len(fields) == 6 else ""
    is_deleted = path.endswith(_DELETED)
    try:
        return Mapping(
            RuntimeAddress(int(start, 16)),
            RuntimeAddress(int(end, 16)),
            fields[1].decode("ascii", "replace"),
            FileOffset(int(fields[2], 16)),
            fields[3].decode("ascii", "replace"),
            int(fields[4]),
            path.removesuffix(_DELETED),
            is_deleted,
        )
    except ValueError:
        return None


def open_mapped_file(pid: Pid, mapping: Mapping) -> int:
    """A read-only descriptor of the very file that is mapped, also if it was deleted; the caller closes it.

    OSError when it cannot be had, is not a regular file, or the path now names another file.
    """
    if not mapping.is_file:
        raise FileNotFoundError(f"no file is mapped at {mapping.start:#x}")
    try:
        return reader().open_file(pid, f"/proc/{living(pid)}/map_files/{mapping.start:x}-{mapping.end:x}")
    except TimeoutError:
        raise
    except OSError:
        if mapping.is_deleted:
            raise
    # map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. The path is as the target's mount namespace has it, which
    # chroot() leaves as it was: such a target's path is ours, too (d_path(), fs/d_path.c, Linux 6.1).
    try:
        return open_below(pid, f"/proc/{living(pid)}/root", mapping.path, mapping.inode)
    except TimeoutError:
        raise
    except OSError as error:
        try:
            return open_below(pid, "/", mapping.path, mapping.inode)
        except FileNotFoundError:
            raise error from None


def open_below(pid: Pid, root: str, path: str, inode: int = 0, follow_last: bool = True) -> int:
    """A read-only descriptor of the regular file `path` below the directory `root`, which links do not lead out of.

    inode: the number it must have; of devices /proc/PID/maps and stat(2) tell different ones on btrfs. The caller has
    to close it; OSError when there is none.
    """
    directory, _ = reader().open_path(pid, root)
    try:
        return reader().open_file(pid, path, directory, follow_last=follow_last, inode=inode)
    finally:
        os.close(directory)
