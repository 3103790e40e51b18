"""100,000 damaged ELF files through everything that reads them (or as many as the first argument says).

Any exception but ElfError ends it with a trace and the number of the input, and so does more memory than 256 MiB above
what the interpreter has. The figures are the worst of all; `worst_input` takes `worst_cpu`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from figures import show

from tests.unit.elf.elf_mutants import Bench

SEED = 7


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        costs = Bench(Path(folder)).try_many(SEED, count)
    show("fuzz_elf_files.mutants", count, "files")
    show("fuzz_elf_files.refused", costs.refused, "times")
    show("fuzz_elf_files.rows", costs.rows, "rows")
    show("fuzz_elf_files.symbols", costs.symbols, "functions")
    show("fuzz_elf_files.debug_files", costs.debug_files, "files")
    show("fuzz_elf_files.worst_cpu", costs.seconds, "s")
    show("fuzz_elf_files.worst_input", costs.worst, "number")
    show("fuzz_elf_files.peak_memory", costs.mebibytes, "MiB")


if __name__ == "__main__":
    main()
