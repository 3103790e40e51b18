from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from bpfprof.elf.image import ElfError, ElfImage
from tests.unit.measured import least_cpu_s, no_descriptor_more

SOURCE = """
int exported_data = 7;
int exported_function(int x) { return x + exported_data; }
static int hidden(int x) { return x * 3; }
int (*pointer)(int) = hidden;
__thread int thread_local_data = 1;
extern int undefined_elsewhere(int);
int caller(int x) { return undefined_elsewhere(x); }
int zeroes[100];
"""
LINKER_OPTIONS = {
    "gnu-hash": ["-Wl,--hash-style=gnu"],
    "sysv-hash": ["-Wl,--hash-style=sysv"],
    "stripped": ["-s"],
    "no-relro": ["-Wl,-z,norelro", "-Wl,-z,noseparate-code"],
    "big-pages": ["-Wl,-z,max-page-size=0x200000"],
}


@pytest.fixture(scope="module", params=LINKER_OPTIONS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.c").write_text(SOURCE)
    path = folder / "liba.so"
    options = ["-shared", "-fPIC", "-O1", "-Wl,--build-id=sha1", *LINKER_OPTIONS[request.param]]
    subprocess.run(["gcc", *options, "-o", str(path), str(folder / "a.c")], check=True)
    return path


def test_it_agrees_with_pyelftools(library: Path) -> None:
    with library.open("rb") as file, ElfImage.open(str(library)) as image:
        oracle = ELFFile(file)
        loads = [segment.header for segment in oracle.iter_segments() if segment["p_type"] == "PT_LOAD"]
        assert [(s.address, s.offset, s.file_size, s.memory_size, s.flags) for s in image.segments] == [
            (h.p_vaddr, h.p_offset, h.p_filesz, h.p_memsz, h.p_flags) for h in loads
        ]
        notes: Any = oracle.get_section_by_name(".note.gnu.build-id")
        assert image.build_id == next(notes.iter_notes())["n_desc"]
        for section in oracle.iter_sections():
            if section.name and section.header.sh_type != "SHT_NOBITS":
                assert image.section(section.name) == (
                    section.header.sh_addr,
                    section.header.sh_offset,
                    section.header.sh_size,
                )
        assert image.section(".bss") is None and image.section(".no-such") is None
        for name in (".dynsym", ".symtab"):
            table: Any = oracle.get_section_by_name(name)
            for symbol in table.iter_symbols() if table else ():
                info = symbol.entry
                if symbol.name and info.st_info.type in ("STT_FUNC", "STT_OBJECT") and info.st_shndx != "SHN_UNDEF":
                    found = image.find_symbol(symbol.name)
                    assert found is not None and (found.address, found.size) == (info.st_value, info.st_size)


def test_symbols_that_are_not_defined_here(library: Path) -> None:
    with ElfImage.open(str(library)) as image:
        assert image.find_symbol("undefined_elsewhere") is None
        assert image.find_symbol("thread_local_data") is None
        assert image.find_symbol("no_such") is None
        assert image.find_symbol("hidden", dynamic_only=True) is None


def test_reads_are_of_file_backed_addresses(library: Path) -> None:
    with ElfImage.open(str(library)) as image:
        data = image.find_symbol("exported_data")
        assert data is not None and image.read(data.address, 4) == b"\7\0\0\0"
        zeroes = image.find_symbol("zeroes")
        assert zeroes is not None and image.read(zeroes.address, 4) is None
        assert image.read(2**63, 8) is None and image.read_at(image.file_size - 1, 2) is None
        assert image.read_at(-1, 1) is None


def test_the_bias_is_that_of_the_running_library(library: Path) -> None:
    """A process that has it loaded prints where the symbols are; each of its mappings must give the same answer."""
    script = (
        "import ctypes, sys, os\n"
        "os.environ.pop('LD_PRELOAD', None)\n"
        f"lib = ctypes.CDLL({str(library)!r}, mode=os.RTLD_LAZY)\n"
        "print(ctypes.addressof(ctypes.c_int.in_dll(lib, 'exported_data')))\n"
        "print(''.join(line for line in open('/proc/self/maps') if 'liba.so' in line))\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    address, *lines = out.split("\n")
    with ElfImage.open(str(library)) as image:
        symbol = image.find_symbol("exported_data")
        assert symbol is not None
        for line in filter(None, lines):
            span, permissions, offset, *_ = line.split()
            start = int(span.split("-")[0], 16)
            bias = image.bias_of(start, int(offset, 16), permissions)
            assert bias is None or symbol.address + bias == int(address)
            assert bias is not None or "x" not in permissions  # read-only data and RELRO may share a page
        assert image.bias_of(0x1000, 1 << 40) is None


def test_what_is_not_elf(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "short": b"\x7fELF", "text": b"x" * 100, "zeros": bytes(4096)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ElfError):
            ElfImage.open(str(tmp_path / name))
    with pytest.raises(ElfError):
        ElfImage.open(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ElfError):
        ElfImage.open(str(tmp_path / "pipe"))
    with pytest.raises(OSError):
        ElfImage.open(str(tmp_path / "absent"))


def test_the_descriptor_is_closed_on_failure(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 100)
    with no_descriptor_more(), pytest.raises(ElfError):
        ElfImage.open(str(tmp_path / "text"))


def test_malformed_files_raise_only_elf_error(library: Path, tmp_path: Path) -> None:
    original = library.read_bytes()
    count = 1000 if len(original) < 100_000 else 50  # padded to large pages: the same structures, farther apart
    rng = random.Random(4711)
    path = tmp_path / "mutant"
    error_count = 0
    for _ in range(count):
        path.write_bytes(_damaged(original, rng))
        try:
            with ElfImage.open(str(path)) as image:
                for name in ("exported_function", "hidden", "no_such"):
                    image.find_symbol(name)
                image.section(".text")
                image.bias_of(0x7F0000000000, 0x1000, "r-xp")
                image.read(rng.randrange(1 << 64), rng.choice((1, 8, 1 << 20)))
        except ElfError:
            error_count += 1
    assert 0 < error_count < count


def _damaged(original: bytes, rng: random.Random) -> bytes:
    """Up to 64 bytes changed, often where it hurts: headers and dynamic tables at the start, section headers last."""
    mutant = bytearray(original)
    for _ in range(rng.choice((1, 2, 8, 64))):
        distance = rng.randrange(min(rng.choice((64, 0x400, 0x1000, len(mutant))), len(mutant)))
        position = rng.choice((distance, len(mutant) - 1 - distance))
        mutant[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.2:
        del mutant[rng.randrange(len(mutant)) :]
    return bytes(mutant)


@pytest.mark.second_tier
def test_notes_cost_little_however_many_segments_have_them(tmp_path: Path) -> None:
    """127 headers for the same 64 KiB of empty notes."""
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 128, 64, 0, 0)
    notes = struct.pack("<IIQQQQQQ", 4, 4, 1 << 16, 1 << 16, 0, 1 << 16, 1 << 16, 4)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 17, 1 << 17, 4096)
    path = tmp_path / "notes"
    path.write_bytes((head + load + notes * 127).ljust(1 << 17, b"\0"))

    def read() -> None:
        with ElfImage.open(str(path)) as image:
            assert image.build_id == "" and len(image.segments) == 1

    assert least_cpu_s(read, 0.05) < 0.05  # when each is read, 0.12 s


def test_a_file_of_more_segments_than_programs_have_is_not_read(tmp_path: Path) -> None:
    """Linkers make some 15; a process can map thousands of files, whose segments would all be kept."""
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 1 << 17, 1 << 17, 4096)
    for count, is_read in ((128, True), (129, False)):
        head = (
            b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
        )
        path = tmp_path / f"{count}"
        path.write_bytes((head + load * count).ljust(1 << 17, b"\0"))
        if is_read:
            with ElfImage.open(str(path)) as image:
                assert len(image.segments) == count
        else:
            with pytest.raises(ElfError, match="program headers"):
                ElfImage.open(str(path))


def test_sections_that_were_forgotten_are_read_again() -> None:
    with ElfImage.open(sys.executable) as image:
        found = image.section(".eh_frame")
        image.forget_sections()
        assert found is not None and image._sections is None and image.section(".eh_frame") == found
