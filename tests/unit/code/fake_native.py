"""A `NativeCode` over files and unwind memory that only note what is asked, and mappings that a test decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest

from bpfprof import array_types as npt
from bpfprof.code import maps as native_code
from bpfprof.code.files import CodeFile, CodeFiles, FileKind
from bpfprof.code.maps import NativeCode
from bpfprof.elf.image import ElfImage
from bpfprof.errors import TargetError
from bpfprof.kernel.unwind_memory import UnwindMemory, UnwindMemoryFull
from bpfprof.model.ids import FileOffset, Pid, RuntimeAddress
from bpfprof.proc.maps import Mapping

PID, CHILD = Pid(100), Pid(101)


@dataclass
class FakeImage:
    """An ELF file that is `distance` further on in memory than it says, from the mapping's start minus its offset."""

    distance: int = 0
    code: bytes = b""  # at ELF address 0

    def bias_of(self, start: int, offset: int, permissions: str) -> int:
        return start - offset + self.distance

    def find_symbol(self, name: str) -> None:
        return None

    def read(self, address: int, size: int) -> bytes:
        return self.code[address : address + size]


@dataclass
class FakeFiles:
    """Files by path; number 0 is the kernel."""

    files: list[CodeFile] = field(default_factory=lambda: [CodeFile(0, FileKind.KERNEL, "[kernel]", Pid(0))])
    images: dict[str, FakeImage] = field(default_factory=dict)
    hurried: list[str] = field(default_factory=list)
    limit: int = 1 << 30

    @property
    def kernel(self) -> CodeFile:
        return self.files[0]

    def of_mapping(self, pid: Pid, mapping: Mapping) -> CodeFile | None:
        path = mapping.path if mapping.is_file else f"[memory of {pid}]"
        for file in self.files:
            if file.path == path:
                return file
        if len(self.files) >= self.limit:
            return None
        kind = FileKind.ELF if mapping.is_file else FileKind.MEMORY
        image = cast("ElfImage | None", self.images.get(path))
        self.files.append(CodeFile(len(self.files), kind, path, pid, "/", image))
        return self.files[-1]

    def forget_memory(self, pid: Pid) -> None:
        pass

    def is_inode(self, number: int, inode: int) -> bool:
        return inode == 7

    def hurry(self, number: int, address: int) -> None:
        self.hurried.append(self.files[number].path)


@dataclass
class FakeMemory:
    """The kernel side's mappings: word index -> rows. An index is never given again, so a use of an old one is seen."""

    mappings: dict[int, npt.NDArray[np.void]] = field(default_factory=dict)
    released: list[tuple[int, int]] = field(default_factory=list)
    is_full: bool = False
    _next: int = 64

    def add_mappings(self, mappings: npt.NDArray[np.void]) -> int:
        if self.is_full:
            raise UnwindMemoryFull("1 chunk is in use")
        self._next += 64
        self.mappings[self._next] = mappings.copy()
        return self._next

    def release_mappings(self, index: int, count: int) -> None:
        assert len(self.mappings.pop(index)) == count
        self.released.append((index, count))


@dataclass
class FakeTarget:
    """What is mapped where in which process."""

    code: NativeCode
    files: FakeFiles
    memory: FakeMemory
    maps: dict[Pid, list[Mapping]] = field(default_factory=dict)

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
        """In place of /proc/PID/maps."""
        files, memory = FakeFiles(), FakeMemory()
        target = cls(NativeCode(cast(CodeFiles, files), cast(UnwindMemory, memory)), files, memory)
        monkeypatch.setattr(native_code, "read_executable_maps", target.read_executable_maps)
        return target

    def read_executable_maps(self, pid: Pid, limit: int) -> tuple[list[Mapping], int]:
        if pid not in self.maps:
            raise TargetError(f"there is no process {pid}")
        found = [mapping for mapping in self.maps[pid] if mapping.is_executable]
        return found[:limit], len(found)

    def map(self, *mappings: Mapping, pid: Pid = PID) -> bool:
        """These are all mappings now; what look_at() says of it."""
        self.maps[pid] = list(mappings)
        return self.code.look_at(pid)

    def number_of(self, path: str) -> int:
        return next(file.number for file in self.files.files if file.path == path)


def mapping(start: int, end: int, path: str = "/lib/a.so", offset: int = 0, permissions: str = "r-xp") -> Mapping:
    """A line of /proc/PID/maps."""
    inode = 7 if path.startswith("/") else 0
    range_ = RuntimeAddress(start), RuntimeAddress(end)
    return Mapping(*range_, permissions, FileOffset(offset), "08:01", inode, path)
