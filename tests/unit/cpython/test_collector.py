"""Where real interpreters collect garbage, as their symbols say and as it is found without."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.cpython.collector import collector
from bpfprof.elf.image import ElfImage
from tests import pyenv

LIBRARIES = pyenv.paths("3.*/lib/libpython3.[0-9]*.so.1.0")
FOUND = ("3.9", "3.10", "3.11", "3.12", "3.13")  # before that it may be another call that looks like it


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_what_begins_a_collection(path: Path) -> None:
    listed = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    begins = {
        (int(start, 16), int(size, 16))
        for start, size in re.findall(r"^(\w+) (\w+) t (?:gc_collect_main|collect)(?:\.\w+\.0)?$", listed, re.M)
    }
    with ElfImage.open(str(path)) as image:
        found = collector(image, lambda address: False)
        assert not collector(image, lambda address: True)
    if re.search(r"libpython3\.\d+", path.name)[0].removeprefix("libpython") in FOUND:  # type: ignore[index]
        ((start, size),) = begins
        assert found.start == start and size <= len(found) < size + 16
    else:
        assert not found


@pytest.mark.skipif(not Path("/usr/bin/python3.11").is_file(), reason="not there")
def test_a_stripped_program_of_a_distribution() -> None:
    """What its allocations call, too, which a debugger's disassembly of _PyObject_GC_New() shows."""
    with ElfImage.open("/usr/bin/python3.11") as image:
        found = collector(image, lambda address: False)
        allocates = image.find_symbol("_PyObject_GC_New")
        assert found and allocates
        code = image.read(allocates.address, allocates.size) or b""
    distances = (int.from_bytes(code[place + 1 : place + 5], "little", signed=True) for place in range(len(code) - 5))
    called = {allocates.address + place + 5 + distance for place, distance in enumerate(distances)}
    assert found.start in called
