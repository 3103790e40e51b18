"""What decoding call frames costs, file by file, and reading them again from the cache: CPU seconds, peak of memory.

Files are libc, the newest pyenv libpython, numpy's OpenBLAS and those named as arguments (libtorch_cpu.so, say).
Each is decoded in processes of their own; the figure is the best of five, for the machine may be busy. Then the same
for large sections that are made to cost as much as they can, the best of two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from figures import ROOT, show

from tests.unit.elf.hostile_frames import KINDS, cost_of, write_hostile

_CHILD = """
import json, os, sys, time
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from bpfprof import private_cache
private_cache.cache_directory = lambda: Path(sys.argv[2])
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
from bpfprof.unwind.cache import load_rows
from bpfprof.unwind.rows import RuleTable
with ElfImage.open(sys.argv[1]) as image:
    start = time.process_time()
    frames = read_call_frames(image)
    decode = time.process_time() - start
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    load_rows(image, os.stat(sys.argv[1]))
    start = time.process_time()
    table = RuleTable()
    found = load_rows(image, os.stat(sys.argv[1]))
    read = time.process_time() - start
    start = time.process_time()
    table.adopt(*found)
    adopt = time.process_time() - start
print(json.dumps({
    "decode": decode, "cached": read, "adopt": adopt, "peak_mib": int(peak) / 1024, "functions": frames.function_count,
    "unsupported": frames.unsupported_count, "rows": len(frames.address), "rules": len(frames.rules),
}))
"""
_UNITS = {"decode": "s", "cached": "s", "adopt": "s", "peak_mib": "MiB"}


def files() -> list[str]:
    found = [*Path("/lib/x86_64-linux-gnu").glob("libc.so.6")]
    found += sorted(Path.home().glob(".pyenv/versions/3.1*/lib/libpython3.1*.so.1.0"))[-1:]
    found += sorted(Path(np.__file__).parents[1].glob("numpy.libs/lib*openblas*"))[:1]
    return [*map(str, found), *sys.argv[1:]]


def main() -> None:
    for path in files():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _CHILD, path, folder, str(ROOT)]
            runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(5)]
        for key in runs[0]:
            name = f"decode_cost.{os.path.basename(path).split('.')[0].split('-')[0]}.{key}"
            show(name, min(run[key] for run in runs), _UNITS.get(key, "count"))
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            write_hostile(kind, Path(folder) / "hostile")
            costs = [cost_of(Path(folder) / "hostile") for _ in range(2)]
        name = f"decode_cost.hostile_{kind.replace(' ', '_')}"
        show(f"{name}.decode", min(cost.seconds for cost in costs), "s")
        show(f"{name}.peak_mib", min(cost.peak_mib for cost in costs), "MiB")


if __name__ == "__main__":
    main()
