"""Files of targets, as long as they are needed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.code import files as files_module
from bpfprof.code.files import CodeFiles
from bpfprof.elf.cfi.lookup import FrameLookup
from bpfprof.elf.cfi.rules import Rules
from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.debug_files import open_inside
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_maps
from bpfprof.unwind import on_demand
from bpfprof.unwind.rows import UNREAD_FIELDS, FileRows, find
from tests.integration.recorded import running


class FakeMemory:
    def __init__(self) -> None:
        self.tables: dict[int, tuple[FileRows, Rules]] = {}

    def set_frame_pointers(self, number: int) -> None:
        pass

    def set_file(self, number: int, rows: FileRows, rules: Rules) -> None:
        self.tables[number] = rows, rules

    def take_evicted(self) -> list[int]:
        return []


def test_the_root_directory_of_a_process_that_is_gone() -> None:
    """Debug files are looked for below it, when names are asked for: a short command has ended by then."""
    files = CodeFiles.start(cast(UnwindMemory, FakeMemory()))
    with running(sys.executable, "-c", "print(flush=True); input()") as process:
        mappings = [mapping for mapping in read_maps(Pid(process.pid)) if mapping.is_executable and mapping.is_file]
        found = [files.of_mapping(Pid(process.pid), mapping) for mapping in mappings]
    roots = {file.root for file in found if file is not None}
    assert len(mappings) > 1 and len(roots) == 1, "one descriptor for all that have the same"
    (root,) = roots
    os.close(open_inside(root, sys.executable))
    files.close()
    assert not os.path.exists(root)


def test_a_vdso_is_bpfprofs_own_whatever_a_target_has_in_its_place() -> None:
    """The first process that is met counts for all, and may have written into its own."""
    files = CodeFiles.start(cast(UnwindMemory, FakeMemory()))
    own = next(mapping for mapping in read_maps(Pid(os.getpid())) if mapping.path == "[vdso]")
    of_another = replace(own, start=own.start + (1 << 20), end=own.end + (1 << 20))
    found = files.of_mapping(Pid(1 << 22), of_another)
    assert found is not None and found.image is not None and not found.note
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(own.start)
        assert ElfImage.from_bytes(memory.read(own.end - own.start), "own").build_id == found.image.build_id
    assert files.of_mapping(Pid(os.getpid()), own) is found
    files.close()


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_file_is_left_until_a_stack_leads_through_it(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_SMALL_BYTES", 0 if is_large else 1 << 20)
    memory = FakeMemory()
    files = CodeFiles.start(cast(UnwindMemory, memory))
    files.leaves_unmet = True
    with running(sys.executable, "-c", "print(flush=True); input()") as process:
        mappings = [mapping for mapping in read_maps(Pid(process.pid)) if "/libc" in mapping.path]
        file = files.of_mapping(Pid(process.pid), next(each for each in mappings if each.is_executable))
    assert file is not None
    files.wait(20)
    assert (file.is_ready, file.is_left, files.unmade()) == (not is_large, is_large, [])
    files.meet(file.number)
    files.wait(20)
    assert file.is_ready and not file.is_left and file.number in memory.tables
    files.close()


def test_of_a_large_file_functions_are_read_where_stacks_lead_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(files_module, "_FEW_NEW", 0)
    monkeypatch.setattr(on_demand, "_BLOCK_FUNCTIONS", 16)
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path)
    memory = FakeMemory()
    files = CodeFiles.start(cast(UnwindMemory, memory))
    own = next(each for each in read_maps(Pid(os.getpid())) if each.is_executable and each.is_file)
    file = files.of_mapping(Pid(os.getpid()), own)
    assert file is not None and file.image is not None and files.has_large()
    assert files.background.wait(30)

    def rule_at(address: int) -> tuple[int, ...]:
        rows, rules = memory.tables[file.number]
        fields: tuple[int, ...] = rules.tolist()[find(rows, address)]
        return fields

    lookup = FrameLookup.of(file.image)
    assert lookup is not None
    near, far = lookup.starts[[len(lookup.starts) // 3, len(lookup.starts) // 2]].tolist()
    assert rule_at(near) == rule_at(far) == UNREAD_FIELDS
    files.hurry(file.number, near)
    files.read_wanted()
    assert rule_at(near) != UNREAD_FIELDS and rule_at(far) == UNREAD_FIELDS
    assert files.want(file.number, np.array([near, far])) == 1
    files.read_wanted()
    assert rule_at(far) != UNREAD_FIELDS
    files.close()
    again = CodeFiles.start(cast(UnwindMemory, memory))
    memory.tables.clear()
    file = again.of_mapping(Pid(os.getpid()), own)
    assert file is not None and again.background.wait(30)
    assert UNREAD_FIELDS not in (rule_at(near), rule_at(far)), "the next run knows them"
    again.close()


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_neighbours_of_few_new_functions_are_only_read_before_a_recording(
    is_before: bool, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path)
    files = CodeFiles.start(cast(UnwindMemory, FakeMemory()))
    own = next(each for each in read_maps(Pid(os.getpid())) if each.is_executable and each.is_file)
    file = files.of_mapping(Pid(os.getpid()), own)
    assert file is not None and file.image is not None and files.background.wait(30)
    lookup = FrameLookup.of(file.image)
    assert lookup is not None and file.on_demand is not None
    functions = lookup.starts[len(lookup.starts) // 3 :][:count]
    files.want(file.number, functions)
    files.leaves_unmet = is_before
    files.read_wanted()
    assert files.background.wait(30)
    assert (file.on_demand.new_count > 100) == (is_before or count > 1)
    files.close()
