"""Object files in the memory of a process, as LLVM's compilers list them, and what hostile ones do."""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from bpfprof.code import jit_objects
from bpfprof.code.jit_code import _cut
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.symbols.reader import read_symbols

TEXT, FRAMES, OBJECT = 0x7F0000001000, 0x7F0000201040, 0x55550000
SOURCE = "int leaf(int x) { return x + 1; } int (*volatile go)(int) = leaf; int caller(int x) { return go(x) * 2; }"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


class Memory:
    """Of a process: address -> bytes."""

    def __init__(self, regions: dict[int, bytes]) -> None:
        self.regions = regions

    def read(self, address: int, size: int) -> bytes | None:
        for start, data in self.regions.items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        return None


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    """An object file as a compiler keeps it, its code, and its call frames relocated."""
    folder: Path = tmp_path_factory.mktemp("object")
    (folder / "a.c").write_text(SOURCE)
    command = ["gcc", "-c", "-O1", "-fcf-protection=none", "-fasynchronous-unwind-tables", "-o", "a.o", "a.c"]
    subprocess.run(command, cwd=folder, check=True)
    content = bytearray((folder / "a.o").read_bytes())
    table, count = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<H", content, 60)[0]
    by_name = {}
    for number, section in enumerate(jit_objects._sections(bytes(content))):
        by_name[section.name] = section
        address = {b".text": TEXT, b".eh_frame": FRAMES}.get(section.name)
        if address:
            struct.pack_into("<Q", content, table + 64 * number + 16, address)
    assert count == number + 1
    frames, relocations = by_name[b".eh_frame"], by_name[b".rela.eh_frame"]
    relocated = bytearray(content[frames.offset :][: frames.size])
    for offset, _, addend in struct.iter_unpack("<QQq", content[relocations.offset :][: relocations.size]):
        struct.pack_into("<i", relocated, offset, TEXT + addend - FRAMES - offset)  # R_X86_64_PC32
    text = by_name[b".text"]
    code = bytes(content[text.offset :][: text.size])
    return Memory({TEXT: code, FRAMES: bytes(relocated), OBJECT: bytes(content)})


def size_of(memory: Memory) -> int:
    return len(memory.regions[OBJECT])


@needs_gcc
def test_an_object_becomes_a_file(loaded: Memory) -> None:
    found = jit_objects.read_object(loaded, OBJECT, size_of(loaded))  # type: ignore[arg-type]
    assert found is not None and (found.start, found.bias) == (TEXT, TEXT)
    with ElfImage.from_bytes(found.content, "made") as image:
        frames = read_call_frames(image)
        assert frames.function_count == 2 and int(frames.address[0]) == 0
        symbols = read_symbols(image)
        assert not symbols.problems
        assert image.read(0, 16) == loaded.regions[TEXT][:16]


@needs_gcc
def test_hostile_objects_cost_themselves_only(loaded: Memory) -> None:
    rng = random.Random(11)
    content, made = loaded.regions[OBJECT], 0
    for _ in range(600):
        mutant = bytearray(content[: rng.choice([len(content), rng.randrange(len(content))])])
        for _ in range(rng.randint(1, 6)):
            if mutant:
                places = [rng.randrange(len(mutant)), rng.randrange(max(0, len(mutant) - 900), len(mutant))]
                mutant[rng.choice(places)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        memory = Memory({**loaded.regions, OBJECT: bytes(mutant)})
        found = jit_objects.read_object(memory, OBJECT, len(mutant))  # type: ignore[arg-type]
        if found is None:
            continue
        made += 1
        with ElfImage.from_bytes(found.content, "mutant") as image:
            read_symbols(image)
            with contextlib.suppress(ElfError):
                read_call_frames(image)
    assert 50 < made < 600


@needs_gcc
def test_a_symbol_table_that_is_cut(loaded: Memory) -> None:
    content = bytearray(loaded.regions[OBJECT])
    table = struct.unpack_from("<Q", content, 40)[0]
    for number, section in enumerate(jit_objects._sections(bytes(content))):
        if section.name == b".symtab":
            struct.pack_into("<Q", content, table + 64 * number + 24, len(content) - 30)
    memory = Memory({**loaded.regions, OBJECT: bytes(content)})
    assert jit_objects.read_object(memory, OBJECT, len(content)) is not None  # type: ignore[arg-type]


def test_lists_end() -> None:
    """Also those that lead back, and those that lead nowhere."""
    entry = struct.Struct("<QQQQ").pack
    memory = Memory({0x100: entry(0x200, 0, 1, 2), 0x200: entry(0x100, 0, 3, 4), 0x300: entry(0x900, 0, 5, 6)})
    assert list(jit_objects.list_entries(memory, 0x100)) == [(0x100, 1, 2), (0x200, 3, 4)]  # type: ignore[arg-type]
    assert list(jit_objects.list_entries(memory, 0x300)) == [(0x300, 5, 6)]  # type: ignore[arg-type]
    descriptor = struct.Struct("<IIQQ").pack
    for version, first in ((1, 0x100), (2, 0)):
        assert jit_objects.first_entry(Memory({0: descriptor(version, 0, 0, 0x100)}), 0) == first  # type: ignore[arg-type]


def test_a_mapping_is_cut_into_objects_and_the_rest() -> None:
    row, first, second = (0x1000, 0x5000, 0, 7), (0x2000, 0x2100, 0x2000, 8), (0x2100, 0x5000, 0x2100, 9)
    outside, overlapping = (0x4000, 0x6000, 0, 10), (0x2080, 0x2180, 0, 11)
    assert _cut(row, []) == [row]
    rest = (0x1000, 0x2000, 0, 7)
    assert _cut(row, [first, overlapping, outside]) == [rest, first, (0x2100, 0x5000, 0, 7)]
    assert _cut(row, [first, second]) == [rest, first, second]
