"""Damaged ELF files through everything that reads ELF files, and what holds for every answer."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bpfprof.elf.cfi.tables import CallFrames, read_call_frames
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.symbols.debug_files import find_debug_file
from bpfprof.elf.symbols.plt import read_plt
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.unwind.cache import pack, unpack
from bpfprof.unwind.rows import RuleTable, compact, find
from tests.fuzz.mutations import Sound, damage, mutants
from tests.unit.elf.frame_mutants import check as check_frames
from tests.unit.elf.frame_mutants import peak_mebibytes
from tests.unit.elf.seed_files import NAMES, make_seed_files

_ADDRESSES = np.array([0, 1, 0x1000, 0x1100, 0x1139, 0x401000, 2**63, 2**64 - 1], np.uint64)
_MEMORY_LIMIT_BYTES = 256 << 20
_NAME_LIMIT = 16 << 10
_LIBRARY = "/lib/liba.so"


@dataclass
class Costs:
    """The worst of all inputs: CPU seconds of one, the peak of memory in MiB; and how many were refused."""

    seconds: float = 0.0
    worst: int = -1
    mebibytes: float = 0.0
    refused: int = 0
    rows: int = 0
    symbols: int = 0
    debug_files: int = 0


class Bench:
    """Sound files, and a root directory with the debug file of one of them. Limits the memory of this process."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "root"
        sound = make_seed_files(folder)
        self.files = [Sound.of(content) for content in sound.values()]
        self._linked = sound["embedded"]
        with ElfImage.from_bytes(self._linked, "linked") as image:
            build_id = image.build_id
        places = [f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug", "lib/debug", "lib/.debug/debug"]
        self._places = [self._root / place for place in places]
        for place in self._places:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "debug", place)
        self._debug = Sound.of((folder / "debug").read_bytes())
        with ElfImage.from_bytes(sound["by hand"], "rows") as image:
            frames = read_call_frames(image)
        self._rows = pack(compact(frames), frames.rules)

    def try_many(self, seed: int, count: int) -> Costs:
        """Any exception that is not an answer, and any answer that is none, is for the caller to see."""
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (in_use + _MEMORY_LIMIT_BYTES, limits[1]))
        try:
            return self._try_many(random.Random(seed), count)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    def _try_many(self, rng: random.Random, count: int) -> Costs:
        costs = Costs()
        source = mutants(rng, self.files)
        open_count = len(os.listdir("/proc/self/fd"))
        for number in range(count):
            content = next(source)
            as_debug_file = number % 8 == 0
            if as_debug_file:
                content = self._debug.mutant(rng)
                place = rng.choice(self._places)
                place.unlink()
                place.write_bytes(content)
            start_s = time.process_time()
            try:
                if as_debug_file:
                    self._read_debug_file(costs)
                else:
                    self.read(content, rng, costs)
                if number % 4 == 0:
                    self._unpack(rng)
            except Exception as error:
                raise AssertionError(f"input {number}") from error
            seconds = time.process_time() - start_s
            if seconds > costs.seconds:
                costs.seconds, costs.worst = seconds, number
        assert len(os.listdir("/proc/self/fd")) == open_count
        costs.mebibytes = peak_mebibytes()
        return costs

    def read(self, content: bytes, rng: random.Random, costs: Costs) -> None:
        """One of them, without bounds."""
        try:
            image = ElfImage.from_bytes(content, "mutant")
        except ElfError:
            costs.refused += 1
            return
        with image:
            _check_image(image, rng)
            try:
                frames = read_call_frames(image)
            except ElfError:
                costs.refused += 1
            else:
                costs.rows += len(frames.address)
                _check_rows(frames)
            with_debug = find_debug_file(image, _LIBRARY, str(self._root))
            costs.debug_files += with_debug is not None
            table = read_symbols(image, with_debug)
            costs.symbols += len(table)
            _check_symbols(table)
            _check_symbols(read_plt(image))
            if with_debug is not None:
                with_debug.close()

    def _read_debug_file(self, costs: Costs) -> None:
        with ElfImage.from_bytes(self._linked, "linked") as image:
            debug = find_debug_file(image, _LIBRARY, str(self._root))
            if debug is not None:
                costs.debug_files += 1
                with debug:
                    assert debug.build_id == image.build_id
                    _check_symbols(read_symbols(image, debug))

    def _unpack(self, rng: random.Random) -> None:
        data = bytearray(self._rows)
        for _ in range(rng.choice((1, 2, 8))):
            if rng.random() < 0.5:
                at = rng.randrange(0, 40, 4)  # the header
                data[at : at + 4] = rng.choice((0, 1, 2, 1 << 20, 1 << 31, rng.randrange(64))).to_bytes(4, "little")
            else:
                damage(rng, data)
        found = unpack(bytes(data))
        if found is not None:
            table, rules = found
            assert all(0 <= find(table, address) < len(rules) for address in _ADDRESSES.tolist())
            adopted = RuleTable().adopt(table, rules)
            assert len(adopted.rows) == len(table.rows)


def _check_image(image: ElfImage, rng: random.Random) -> None:
    assert len(image.build_id) <= 128
    for name in NAMES:
        symbol = image.find_symbol(name)
        assert symbol is None or 0 <= symbol.address < 1 << 64
    for name in (".text", ".symtab", ".no-such"):
        section = image.section(name)
        assert section is None or section.offset + section.size <= image.file_size
    for offset in (0, 0x1000, rng.randrange(1 << 20) & ~0xFFF):
        for permissions in ("", "r-xp", "rw-p", "r--p"):
            bias = image.bias_of(0x7F0000000000, offset, permissions)
            assert bias is None or isinstance(bias, int)
    size = rng.choice((0, 1, 8, 4096))
    for address in (*_ADDRESSES.tolist(), rng.randrange(1 << 64)):
        data = image.read(address, size)
        assert data is None or len(data) == size


def _check_rows(frames: CallFrames) -> None:
    check_frames(frames)
    table = compact(frames)
    assert all(0 <= find(table, address) < len(frames.rules) for address in _ADDRESSES.tolist())


def _check_symbols(table: SymbolTable) -> None:
    assert (table.starts <= table.ends).all() and (table.starts[1:] >= table.starts[:-1]).all()
    addresses = np.concatenate((_ADDRESSES, table.starts[:200], table.ends[:200]))
    found = table.find(addresses)
    assert ((found >= -1) & (found < len(table))).all()
    assert all(len(name) <= _NAME_LIMIT for name in table.names(found))
