"""Executable files of the targets, each once however many processes map it, and their unwind tables being made.

Tables are made in a thread of their own, the quickest first. Those of large files hold the functions that stacks lead
through (unwind/on_demand.py). Names are looked up in another thread: reading symbols takes tenths of a second, in which
a stack may need a table.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import field
from enum import Enum
from functools import partial

import numpy as np

from bpfprof import abi
from bpfprof.code.background import URGENT, Background
from bpfprof.code.jit_objects import JitObject
from bpfprof.dataclass import dataclass
from bpfprof.elf.image import PF_X, ElfError, ElfImage
from bpfprof.elf.leb128 import Ints
from bpfprof.errors import TargetError
from bpfprof.kernel.unwind_memory import UnwindMemory, UnwindMemoryFull
from bpfprof.model.ids import Pid
from bpfprof.model.samples import MEMORY
from bpfprof.names.jitdump import IS_JITDUMP, JitDumps
from bpfprof.names.symbols import demangled
from bpfprof.proc.living import living
from bpfprof.proc.maps import Mapping, open_mapped_file, read_maps
from bpfprof.proc.reader import reader
from bpfprof.unwind.cache import decode_rows, keep, load_rows, rows_on_demand
from bpfprof.unwind.on_demand import RowsOnDemand

KERNEL_FILE = 0  # the number of what kernel addresses belong to
# Of descriptors: perf events of each CPU, programs, and what is opened for a moment.
_RESERVED_FDS = 48 + 5 * (os.cpu_count() or 1)
_VDSO_LIMIT_BYTES = 64 << 10
_SMALL_BYTES, _SMALL_CODE_BYTES = 1 << 20, 16 << 20  # call frame information, and code: more takes 0.1 s and longer
_NOT_FOLLOWED = "instructions that were made at run time could not be followed"
FIRST_S = 3.0  # of read_s, in which neighbours are read, too
_NEIGHBOURS = 0  # a priority
_SEVERAL = 3  # addresses in new functions
_FEW_NEW = 64  # functions that were read: they are not worth that a table is kept anew
_ORDER_SHIFT = 40  # of a priority: files of a process that was looked at sooner come first, whatever their size
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
    problem: str = ""  # with its table
    is_ready: bool = False
    is_met: bool = False  # stacks lead through it
    is_left: bool = False  # its table is made when they do
    bias: int = 0  # of what has a place in memory: between the addresses in it and those by which it is named
    dumps: JitDumps = field(default_factory=JitDumps)  # of the process whose memory it is
    inode: int = 0  # of what is mapped; the image may be a copy
    is_large: bool = False
    on_demand: RowsOnDemand | None = None  # of a large file, unless it does not say well where its functions are
    _status: os.stat_result | None = None

    @property
    def byte_count(self) -> int:
        """How long it is."""
        return self.image.file_size if self.image is not None else 0


@dataclass
class CodeFiles:
    """All files by number; `new` are those the recording has not been told of."""

    memory: UnwindMemory
    background: Background = field(default_factory=Background)
    naming: Background = field(default_factory=Background)
    files: list[CodeFile] = field(default_factory=list)
    new: list[CodeFile] = field(default_factory=list)
    read_s: float = 0.0  # CPU time that functions of large files have taken
    unmade_count: int = 0  # files beyond BP_MAX_FILES
    leaves_unmet: bool = False  # whether tables of large files are left until a stack leads through them
    _number_of: dict[object, int] = field(default_factory=dict)
    _order_of: dict[Pid, int] = field(default_factory=dict)  # which process was looked at first
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
            image, note = ElfImage(self._open(pid, mapping)), ""
        except ElfError:
            return self._memory_of(pid)  # code made at run time, in a file that is no program: some map it twice
        except OSError as error:
            image, note = None, f"it cannot be opened ({error.strerror or error})"
        file = self._add(key, FileKind.ELF, mapping.path, pid, image, note)
        if file is not None:
            file.inode = mapping.inode
        return file

    def of_jit_object(self, pid: Pid, content: bytes) -> CodeFile | None:
        """The ELF file made of an object (jit_objects.py) that a compiler put into memory."""
        key = ("jit", hashlib.sha256(content).digest())
        try:
            return self._known(key) or self._add(
                key, FileKind.MEMORY, "[jit]", pid, ElfImage.from_bytes(content, "jit")
            )
        except (OSError, ElfError):
            return None

    def of_made_code(self, pid: Pid, made: JitObject, path: str) -> CodeFile | None:
        """The ELF file made of code in memory that is on no list; names are those of the process's memory.

        path: TRAMPOLINES, or MEMORY for a function.
        """
        memory = self._memory_of(pid)
        if memory is None:
            return None
        key = (path, memory.number, made.start, hashlib.sha256(made.content).digest())
        try:
            file = self._known(key) or self._add(
                key, FileKind.MEMORY, path, pid, ElfImage.from_bytes(made.content, path.strip("[]"))
            )
        except (OSError, ElfError):
            return None
        if file is not None:
            file.bias, file.dumps = made.bias, memory.dumps
        return file

    def forget_memory(self, pid: Pid) -> None:
        """A process is gone, or runs another program: code that is made from now on is not its."""
        number = self._number_of.pop(("memory", pid), None)
        if number is not None:
            self.files[number].dumps.end()

    def hurry(self, number: int, address: int) -> None:
        """A stack ended at this address because the table of its file does not have it: it is made next, and soon."""
        file = self.files[number]
        if not file.is_ready:
            self._make_next(file)
        elif file.on_demand is not None:
            file.on_demand.want(np.array([address]))

    def meet(self, number: int) -> None:
        """Stacks lead through a file: its table is made, if it is not, and soon."""
        if not self.files[number].is_met:
            self._make_next(self.files[number])

    def _make_next(self, file: CodeFile) -> None:
        file.is_met, file.is_left = True, False
        self.background.add(URGENT, lambda: self._make_table(file))

    def want(self, number: int, addresses: Ints) -> int:
        """Stacks lead through these addresses of a file; how many of them have no rules yet."""
        on_demand = self.files[number].on_demand
        return on_demand.want(addresses) if on_demand is not None else 0

    def has_large(self) -> bool:
        """Whether the functions of some files are read on demand, or will be."""
        return any(file.on_demand is not None or (file.is_large and not file.is_ready) for file in self.files)

    def read_wanted(self) -> None:
        """Adds functions that stacks lead through to large files' tables, and neighbours, later of several only."""
        begin_s = time.thread_time()
        count = sum(file.on_demand.wanted_count for file in self.files if file.on_demand is not None)
        for file in self.files:
            self._read_more(file, _read_wanted)
        self.read_s += time.thread_time() - begin_s
        if count >= (1 if self.leaves_unmet else _SEVERAL) and self.read_s < FIRST_S:
            self.background.add(_NEIGHBOURS, self._read_neighbours)

    def _read_neighbours(self) -> None:
        """Of some functions, and then of others when nothing else is to be done."""
        begin_s = time.thread_time()
        goes_on = any(self._read_more(file, RowsOnDemand.read_neighbours) for file in self.files)
        self.read_s += time.thread_time() - begin_s
        if goes_on and self.read_s < FIRST_S:
            self.background.add(_NEIGHBOURS, self._read_neighbours)

    def _read_more(self, file: CodeFile, read: Callable[[RowsOnDemand], bool]) -> bool:
        """Whether anything was read; then the file's table has it."""
        if file.on_demand is None or not file.is_ready:
            return False
        try:
            is_new = read(file.on_demand)
            if is_new:
                file.on_demand.table(partial(self.memory.set_file, file.number))
        except Exception as error:  # the table stays what it was
            file.problem = f"functions were not read: {error or type(error).__name__}"
            file.on_demand = None
            return False
        self._note_evicted()
        return is_new

    @property
    def threads(self) -> list[Background]:
        """All that work for it."""
        return [self.background, self.naming]

    def unmade(self) -> list[CodeFile]:
        """Those whose tables are being made, or will be."""
        return [file for file in self.files if not file.is_ready and not file.is_left]

    def wait(self, timeout_s: float) -> None:
        """Until all tables are made, at most so long."""
        self.background.wait(timeout_s)

    def is_inode(self, number: int, inode: int) -> bool:
        """Whether a file has this inode; one that could not be opened has any."""
        file = self.files[number]
        return file._status is None or inode in (file.inode, file._status.st_ino)

    def take_new(self) -> list[CodeFile]:
        """Files that were added since the last call."""
        new, self.new = self.new, []
        return new

    def close(self) -> None:
        """Ends the threads and closes the files."""
        if all([thread.close() for thread in self.threads]):  # else one is slow: daemons
            demangled.keep()
            for file in self.files:
                if file.on_demand is not None and file.image is not None and file._status is not None:
                    if file.on_demand.new_count > _FEW_NEW:
                        keep(file.on_demand, file.image, file._status)
                    file.on_demand.close()
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
        return self._known(key) or self._add(key, FileKind.MEMORY, MEMORY, pid, None)

    def _with_jitdump(self, pid: Pid, mapping: Mapping) -> CodeFile | None:
        """The memory of a process, which has this file for its names."""
        file = self._memory_of(pid)
        if file is not None:
            with contextlib.suppress(OSError):
                file.dumps.add(open_mapped_file(pid, mapping))
        return file

    def _open(self, pid: Pid, mapping: Mapping) -> int:
        """A descriptor, unless only those are left that the rest of a recording takes. The kernel gives the lowest."""
        fd = open_mapped_file(pid, mapping)
        if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FDS:
            os.close(fd)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fd

    def _add_vdso(self, pid: Pid) -> CodeFile | None:
        """Read from bpfprof's own memory: all have the same, but a target may have written into its own."""
        image, note = None, "it cannot be read"
        own_pid = Pid(os.getpid())
        try:
            own = next((mapping for mapping in read_maps(own_pid) if mapping.path == _VDSO), None)
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(own.start if own else 0)
                content = memory.read(min(own.end - own.start, _VDSO_LIMIT_BYTES)) if own else None
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
            order = self._order_of.setdefault(pid, len(self._order_of))
            file.is_large = _is_large(image)
            priority = (order + 1 << _ORDER_SHIFT) + (section.size if section and not file.is_large else 0)
            self.background.add(priority, lambda: self._make_table(file))
        return file

    def _root_of(self, pid: Pid) -> str:
        """Of a process, and kept open: its debug files are looked for when it may be gone."""
        folder = f"/proc/{living(pid)}"
        try:
            namespace = os.readlink(f"{folder}/ns/mnt")
            fd, status = reader().open_path(pid, f"{folder}/root")
        except OSError:
            return f"{folder}/root"
        kept = self._roots.setdefault((namespace, status.device, status.inode), fd)
        if kept != fd:
            os.close(fd)
        return f"/proc/self/fd/{kept}"

    def _make_table(self, file: CodeFile) -> None:
        """Whatever a stranger's file does to the decoder costs that file its table, nothing else."""
        if file.is_ready or file.image is None or file._status is None:
            return
        file.is_left = self.leaves_unmet and file.is_large and not file.is_met
        if file.is_left:
            return
        try:
            if file.on_demand is None and file.is_large:
                file.on_demand = rows_on_demand(file.image, file._status)
            if file.on_demand is not None:
                file.on_demand.table(partial(self.memory.set_file, file.number))
            else:
                load = decode_rows if file.kind is FileKind.MEMORY else partial(load_rows, status=file._status)
                rows, rules = load(file.image)
                if len(rows.pages) > 1:
                    self.memory.set_file(file.number, rows, rules)
                else:
                    file.note = _NOT_FOLLOWED if file.path == MEMORY else "it has no call frame information"
        except (ElfError, UnwindMemoryFull, MemoryError) as error:
            file.note = str(error) or type(error).__name__
        except Exception as error:  # a bug in the decoder; the report shows the note
            file.note = f"internal error: {type(error).__name__}: {error}"
        self._note_evicted()
        if file.note:
            self.memory.set_frame_pointers(file.number)
        file.image.forget_sections()
        file.is_ready = True

    def _note_evicted(self) -> None:
        for number in self.memory.take_evicted():
            self.files[number].is_ready = False  # made again when a stack needs it


def _read_wanted(on_demand: RowsOnDemand) -> bool:
    is_asked = on_demand.wanted_count > 0
    while on_demand.wanted_count:
        on_demand.read()
    return is_asked


def _is_large(image: ElfImage) -> bool:
    section = image.section(".eh_frame")
    code_bytes = sum(segment.file_size for segment in image.segments if segment.flags & PF_X)
    return (section is not None and section.size > _SMALL_BYTES) or code_bytes > _SMALL_CODE_BYTES
