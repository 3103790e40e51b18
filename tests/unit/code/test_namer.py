"""Symbols that are kept while a recording runs: of many files no more than their memory allows."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from bpfprof.code import namer as namer_module
from bpfprof.code.files import CodeFile, FileKind
from bpfprof.code.maps import NativeCode
from bpfprof.code.namer import Namer
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid


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
