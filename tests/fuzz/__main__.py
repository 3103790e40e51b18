"""`python -m tests.fuzz [NAME ...] [--seconds S] [--count N] [--seed N]`: each for S seconds of CPU time.

Prints what each found; an input that broke a bound is kept, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.elf_files import CallFrames, ElfFiles
from tests.fuzz.engine import run
from tests.fuzz.interpreter import InterpreterMemory
from tests.fuzz.jit_names import JitNames
from tests.fuzz.recordings import Recordings

FUZZERS = {kind.name: kind for kind in (Recordings, ElfFiles, CallFrames, JitNames, InterpreterMemory)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", default=[*FUZZERS])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given, worst = parser.parse_args(), 0
    for name in given.names:
        found = run(FUZZERS[name](), given.seed, given.seconds, given.count)
        print(
            f"{name}: {found.count:,} inputs, seed {given.seed}, {found.seeds} seeds, most {found.cpu_s:.2f} s and"
            f" {found.memory_bytes >> 20} MiB",
            flush=True,
        )
        if found.problem:
            with tempfile.NamedTemporaryFile(prefix=f"fuzz-{name}-", delete=False) as file:
                file.write(found.data)
            print(f"input {found.count} broke a bound; it is {Path(file.name)}\n{found.problem}", flush=True)
            worst = 1
    return worst


if __name__ == "__main__":
    sys.exit(main())
