"""ELF files: segments, symbols, debug files; and call frames, of which unwind tables are made."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from bpfprof.elf.image import ElfError
from tests.fuzz.engine import Fuzzer
from tests.fuzz.mutations import Sound
from tests.unit.elf import elf_mutants, frame_mutants


class ElfFiles(Fuzzer):
    """Through everything that reads them."""

    name = "elf"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._bench = elf_mutants.Bench(Path(self._folder.name))

    @staticmethod
    def is_possible() -> bool:
        return shutil.which("gcc") is not None and shutil.which("objcopy") is not None

    def seeds(self) -> list[bytes]:
        return [sound.data for sound in self._bench.files]

    def mutant(self, data: bytes, other: bytes, rng: random.Random) -> bytes:
        sound = next((sound for sound in self._bench.files if sound.data is data), None)
        return sound.mutant(rng) if isinstance(sound, Sound) else super().mutant(data, other, rng)

    def read(self, data: bytes, rng: random.Random) -> object:
        costs = elf_mutants.Costs()
        self._bench.read(data, rng, costs)
        return costs.refused, costs.debug_files, costs.rows.bit_length(), costs.symbols.bit_length()


class CallFrames(Fuzzer):
    """Files that hold call frames and little else."""

    name = "call-frames"

    def seeds(self) -> list[bytes]:
        rng = random.Random(7)
        return [frame_mutants.seed_file(rng, debug=index % 4 == 0) for index in range(50)]

    def read(self, data: bytes, rng: random.Random) -> object:
        try:
            frames = frame_mutants.decode_in_memory(data)
        except ElfError as error:
            return str(error)
        if frames is None:
            return None
        frame_mutants.check(frames)
        return len(frames.rules).bit_length(), frames.unsupported_count.bit_length(), frames.function_count
