"""100,000 damaged files through the decoder of call frames (or as many as the first argument says).

Any exception but ElfError ends it with the seed's trace; the figures are the worst of all.
"""

from __future__ import annotations

import sys

from figures import show

from tests.unit.elf.frame_mutants import try_many

SEED = 7


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    cost = try_many(SEED, count)
    show("fuzz_call_frames.mutants", count, "files")
    show("fuzz_call_frames.refused", cost.refused, "files")
    show("fuzz_call_frames.worst_cpu", cost.seconds, "s")
    show("fuzz_call_frames.peak_memory", cost.mebibytes, "MiB")


if __name__ == "__main__":
    main()
