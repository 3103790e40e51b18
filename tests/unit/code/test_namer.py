"""When names are looked up, and symbols that are kept meanwhile: of many files no more than their memory allows."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from bpfprof.code import namer as namer_module
from bpfprof.code.addresses import NativeTable
from bpfprof.code.files import CodeFile, FileKind
from bpfprof.code.maps import NativeCode
from bpfprof.code.namer import Namer
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid
from bpfprof.model.samples import MEMORY, NATIVE_DTYPE
from bpfprof.recording.contents import Recording


@pytest.fixture
def files() -> list[tuple[CodeFile, ElfImage]]:
    """The same file three times, as three files."""
    path = os.path.realpath(sys.executable)
    images = [ElfImage(os.open(path, os.O_RDONLY)) for _ in range(3)]
    return [(CodeFile(n, FileKind.ELF, path, Pid(0), "/", image), image) for n, image in enumerate(images, 1)]


def test_those_not_used_for_longest_make_room(
    files: list[tuple[CodeFile, ElfImage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namer_module, "find_debug_file", lambda *_: None)
    namer = Namer(cast(NativeCode, None), False, 1 << 30)
    first = namer._names_of(*files[0])
    namer._names_limit_bytes = int(2.5 * first.size_bytes)
    assert first.size_bytes > 1000
    second = namer._names_of(*files[1])
    assert namer._names_of(*files[0]) is first
    namer._names_of(*files[2])
    assert list(namer._names) == [1, 3], "the second was used longest ago"
    assert namer._names_of(*files[1]) is not second and list(namer._names) == [3, 2]
    namer._names_limit_bytes = 0
    assert namer._names_of(*files[0]).size_bytes == first.size_bytes, "one is always there"
    assert list(namer._names) == [1]


def test_those_not_used_for_a_time_go(files: list[tuple[CodeFile, ElfImage]], monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room there is."""
    monkeypatch.setattr(namer_module, "find_debug_file", lambda *_: None)
    namer = Namer(cast(NativeCode, None), False, 1 << 30)
    now_s = [1000.0]
    monkeypatch.setattr(namer_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    first = namer._names_of(*files[0])
    namer._names_of(*files[1])
    now_s[0] += 0.9 * namer_module._NAMES_KEPT_S
    assert namer._names_of(*files[0]) is first
    now_s[0] += 0.9 * namer_module._NAMES_KEPT_S
    namer._names_of(*files[2])
    assert list(namer._names) == [1, 3]


class Waiting:
    """A namer that is told of addresses in some files, and what it asks."""

    def __init__(self, *files: CodeFile) -> None:
        self.asked: list[tuple[str, int]] = []
        naming = SimpleNamespace(add=lambda _, look_up: self.asked.append((look_up.args[0].path, len(look_up.args[1]))))
        code = SimpleNamespace(files=SimpleNamespace(files=files, naming=naming, take_new=list))
        self.namer = Namer(cast(NativeCode, code), False, 1 << 30)

    def meet(self, file: CodeFile, count: int) -> None:
        rows = np.zeros(count, NATIVE_DTYPE)
        rows["file"] = file.number
        self.namer.natives = cast(NativeTable, SimpleNamespace(take_new=lambda: rows))
        self.namer.write_new(Recording())

    def ask(self, at_once: bool = False) -> list[tuple[str, int]]:
        self.asked.clear()
        self.namer.ask(at_once)
        return [*self.asked]


def test_addresses_in_files_wait_until_they_are_many_or_the_end(files: list[tuple[CodeFile, ElfImage]]) -> None:
    (first, _), (second, _), _ = files
    waiting = Waiting(first, second)
    waiting.meet(first, 3)
    assert waiting.ask() == []
    assert waiting.ask(at_once=True) == [(first.path, 3)]
    assert waiting.ask(at_once=True) == []
    waiting.meet(second, 2)
    waiting.meet(first, namer_module._MOST_WAITING)
    assert waiting.ask() == [(first.path, namer_module._MOST_WAITING), (second.path, 2)]


def test_they_wait_for_a_time_and_no_longer(
    files: list[tuple[CodeFile, ElfImage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(namer_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    ((file, _), *_) = files
    waiting = Waiting(file)
    for _ in range(2):
        now_s[0] += 1000
        waiting.meet(file, 1)
        now_s[0] += 0.6 * namer_module._LONGEST_S
        waiting.meet(file, 1)
        assert waiting.ask() == []
        now_s[0] += 0.6 * namer_module._LONGEST_S
        assert waiting.ask() == [(file.path, 2)]


def test_what_may_change_does_not_wait() -> None:
    """Code that a process makes, and what a list that it writes says of it."""
    made = CodeFile(1, FileKind.MEMORY, MEMORY, Pid(0), "", None)
    waiting = Waiting(made)
    waiting.meet(made, 3)
    assert waiting.ask() == [(MEMORY, 3)]
