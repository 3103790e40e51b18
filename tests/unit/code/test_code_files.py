"""Files of targets, as long as they are needed."""

from __future__ import annotations

import os
import sys
from typing import cast

from bpfprof.code.files import CodeFiles
from bpfprof.elf.symbols.debug_files import open_inside
from bpfprof.kernel.unwind_memory import UnwindMemory
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import read_maps
from tests.integration.recorded import running


class FakeMemory:
    def set_frame_pointers(self, number: int) -> None:
        pass

    def set_file(self, number: int, rows: object, rules: object) -> None:
        pass

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
