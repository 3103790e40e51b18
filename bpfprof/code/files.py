"""Executable files of the targets, each once however many processes map it, and their unwind tables being made.

Tables are made in a thread of their own, the quickest first: a large library takes seconds, in which recording goes on.
Names are looked up in another: reading symbols takes tenths of a second, in which a stack may need a table.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from dataclasses import dataclass, field
from enum import Enum

from bpfprof import abi
from bpfprof.code.background import URGENT, Background
from bpfprof.code.jit_objects import JitObject
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.errors import TargetError
from bpfprof.kernel.unwind_memory import UnwindMemory, UnwindMemoryFull
from bpfprof.model.ids import Pid
from bpfprof.model.samples import TRAMPOLINES
from bpfprof.names.jitdump import IS_JITDUMP, JitDumps
from bpfprof.proc.maps import Mapping, open_mapped_file, read_maps
from bpfprof.proc.memory import ProcessMemory
from bpfprof.unwind.cache import decode_rows, load_rows

KERNEL_FILE = 0  # the number of what kernel addresses belong to
_VDSO_LIMIT_BYTES = 64 << 10
_QUICK_BYTES = 2 << 20  # of call frame information: some 0.3 s
_VDSO = "[vdso]"
_SHARED_MEMORY = ("/dev/zero", "/SYSV")  # mappings of nothing that have an inode: shmem_zero_setup(), ipc/shm.c


class FileKind(Enum):
    """What code is mapped from."""

    ELF = "elf"
    VDSO = "vdso"
    MEMORY = "memory"  # no file: code that was made at run time, of one process
    KERNEL = "kernel"


@dataclass
class CodeFile:
    """`number` is its index in the kernel side's table and in the recording. `note` says why it has no unwind table."""

    number: int
    kind: FileKind
    path: str
    pid: Pid  # of the process it was first seen in
    root: str = ""  # the directory that `path` begins at
    image: ElfImage | None = None
    note: str = ""
    is_ready: bool = False
    bias: int = 0  # of what has a place in memory: between the addresses in it and those by which it is named
    dumps: JitDumps = field(default_factory=JitDumps)  # of the process whose memory it is
    _status: os.stat_result | None = None


@dataclass
class CodeFiles:
    """All files by number; `new` are those the recording has not been told of."""

    memory: UnwindMemory
    background: Background = field(default_factory=Background)
    naming: Background = field(default_factory=Background)
    files: list[CodeFile] = field(default_factory=list)
    new: list[CodeFile] = field(default_factory=list)
    unmade_count: int = 0  # files beyond BP_MAX_FILES
    _number_of: dict[object, int] = field(default_factory=dict)
    _roots: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (mount namespace, device, inode): fd

    @classmethod
    def start(cls, memory: UnwindMemory) -> CodeFiles:
        """With the threads that make tables and names, before threads that begin are watched; `close()` ends them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every file stays open until it was named
        files = cls(memory)
        files._add("kernel", FileKind.KERNEL, "[kernel]", Pid(0), None)  # KERNEL_FILE
        return files

    def of_mapping(self, pid: Pid, mapping: Mapping) -> CodeFile | None:
        """The file of an executable mapping; None when there are too many."""
        if mapping.path == _VDSO:
            return self._known("vdso") or self._add_vdso(pid)
        if not mapping.is_file or mapping.path.startswith(_SHARED_MEMORY):
            return self._memory_of(pid)
        if IS_JITDUMP(mapping.path):
            return self._with_jitdump(pid, mapping)
        key = (mapping.device, mapping.inode, mapping.path)
        known = self._known(key)
        if known is not None and not self._has_changed(known):
            return known
        try:
            image, note = ElfImage(open_mapped_file(pid, mapping)), ""
        except ElfError:
            return self._memory_of(pid)  # code made at run time, in a file that is no program: some map it twice
        except OSError as error:
            image, note = None, f"it cannot be opened ({error.strerror or error})"
        return self._add(key, FileKind.ELF, mapping.path, pid, image, note)

    def of_jit_object(self, pid: Pid, content: bytes) -> CodeFile | None:
        """The ELF file made of an object (jit_objects.py) that a compiler put into memory."""
        key = ("jit", hashlib.sha256(content).digest())
        try:
            return self._known(key) or self._add(
                key, FileKind.MEMORY, "[jit]", pid, ElfImage.from_bytes(content, "jit")
            )
        except (OSError, ElfError):
            return None

    def of_trampolines(self, pid: Pid, arena: JitObject) -> CodeFile | None:
        """The ELF file made of code by which CPython runs its functions; names are those of the process's memory."""
        memory = self._memory_of(pid)
        if memory is None:
            return None
        key = (TRAMPOLINES, memory.number, arena.start, hashlib.sha256(arena.content).digest())
        try:
            file = self._known(key) or self._add(
                key, FileKind.MEMORY, TRAMPOLINES, pid, ElfImage.from_bytes(arena.content, "trampolines")
            )
        except (OSError, ElfError):
            return None
        if file is not None:
            file.bias, file.dumps = arena.bias, memory.dumps
        return file

    def forget_memory(self, pid: Pid) -> None:
        """A process is gone, or runs another program: code that is made from now on is not its."""
        self._number_of.pop(("memory", pid), None)

    def hurry(self, number: int) -> None:
        """A stack needed the table of this file: it is made next, and soon unless it takes long."""
        file = self.files[number]
        section = file.image.section(".eh_frame") if file.image else None
        if section is not None and section.size <= _QUICK_BYTES and not file.is_ready:
            self.background.hurry(lambda: self._make_table(file))
        elif not file.is_ready:
            self._make_later(file, URGENT)

    def is_inode(self, number: int, inode: int) -> bool:
        """Whether a file has this inode; one that could not be opened has any."""
        status = self.files[number]._status
        return status is None or status.st_ino == inode

    def take_new(self) -> list[CodeFile]:
        """Files that were added since the last call."""
        new, self.new = self.new, []
        return new

    def close(self) -> None:
        """Ends the threads and closes the files."""
        if all([self.background.close(), self.naming.close()]):  # else a large file is under way: they are daemons
            for file in self.files:
                if file.image is not None:
                    file.image.close()
                file.dumps.close()
            while self._roots:
                os.close(self._roots.popitem()[1])

    def _known(self, key: object) -> CodeFile | None:
        number = self._number_of.get(key)
        return None if number is None else self.files[number]

    def _has_changed(self, file: CodeFile) -> bool:
        """Whether another content is at the place now: the file was written over."""
        if file.image is None or file._status is None:
            return False
        now = file.image.status()
        return (now.st_mtime_ns, now.st_size) != (file._status.st_mtime_ns, file._status.st_size)

    def _memory_of(self, pid: Pid) -> CodeFile | None:
        key = ("memory", pid)
        return self._known(key) or self._add(key, FileKind.MEMORY, "[memory]", pid, None)

    def _with_jitdump(self, pid: Pid, mapping: Mapping) -> CodeFile | None:
        """The memory of a process, which has this file for its names."""
        file = self._memory_of(pid)
        if file is not None:
            with contextlib.suppress(OSError):
                file.dumps.add(open_mapped_file(pid, mapping))
        return file

    def _add_vdso(self, pid: Pid) -> CodeFile | None:
        """Read from bpfprof's own memory: all have the same, but a target may have written into its own."""
        image, note = None, "it cannot be read"
        own_pid = Pid(os.getpid())
        try:
            own = next((it for it in read_maps(own_pid) if it.path == _VDSO), None)
            with ProcessMemory(own_pid) as memory:
                content = memory.read(own.start, min(own.end - own.start, _VDSO_LIMIT_BYTES)) if own else None
            if content is not None:
                image, note = ElfImage.from_bytes(content, "vdso"), ""
        except (TargetError, OSError, ElfError) as error:
            note = f"it cannot be read ({error})"
        return self._add("vdso", FileKind.VDSO, _VDSO, pid, image, note)

    def _add(
        self, key: object, kind: FileKind, path: str, pid: Pid, image: ElfImage | None, note: str = ""
    ) -> CodeFile | None:
        if len(self.files) >= abi.CONSTANTS["BP_MAX_FILES"]:
            self.unmade_count += 1
            return None
        root = self._root_of(pid) if kind == FileKind.ELF else ""
        file = CodeFile(len(self.files), kind, path, pid, root, image, note)
        self.files.append(file)
        self.new.append(file)
        self._number_of[key] = file.number
        if image is None:
            self.memory.set_frame_pointers(file.number)
            file.is_ready = True
        else:
            file._status = image.status()
            section = image.section(".eh_frame")
            self._make_later(file, section.size if section else 0)
        return file

    def _root_of(self, pid: Pid) -> str:
        """Of a process, and kept open: its debug files are looked for when it may be gone."""
        path = f"/proc/{pid}/root"
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return path
        status = os.fstat(fd)
        kept = self._roots.setdefault((namespace, status.st_dev, status.st_ino), fd)
        if kept != fd:
            os.close(fd)
        return f"/proc/self/fd/{kept}"

    def _make_later(self, file: CodeFile, priority: int) -> None:
        self.background.add(priority, lambda: self._make_table(file))

    def _make_table(self, file: CodeFile) -> None:
        """Whatever a stranger's file does to the decoder costs that file its table, nothing else."""
        if file.is_ready or file.image is None or file._status is None:
            return
        try:
            is_kept = file.kind is not FileKind.MEMORY
            rows, rules = load_rows(file.image, file._status) if is_kept else decode_rows(file.image)
            if len(rows.pages) > 1:
                self.memory.set_file(file.number, rows, rules)
            else:
                file.note = "it has no call frame information"
        except (ElfError, UnwindMemoryFull, MemoryError) as error:
            file.note = str(error) or type(error).__name__
        except Exception as error:  # a bug in the decoder; the report shows the note
            file.note = f"internal error: {type(error).__name__}: {error}"
        for number in self.memory.take_evicted():
            self.files[number].is_ready = False  # made again when a stack needs it
        if file.note:
            self.memory.set_frame_pointers(file.number)
        file.is_ready = True
