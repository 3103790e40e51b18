"""What names cost, in CPU seconds: getting the symbols of a file ready, 100,000 look-ups, their names, demangling.

Files to look at are the arguments; without any, those of this interpreter. libtorch_cpu.so of torch 2.13.0 is the
one that the targets are set for: ready in 0.5 s, 100,000 look-ups in 0.1 s.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from bpfprof import array_types as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.plt import read_plt
from bpfprof.elf.symbols.reader import read_symbols
from bpfprof.elf.symbols.table import SymbolTable
from bpfprof.names.kernel_symbols import read_kernel_symbols
from bpfprof.names.symbols import SymbolNames, demangle

LOOKUP_COUNT = 100_000
DEMANGLED_COUNT = 10_000


def show(name: str, value: float, unit: str) -> None:
    """One figure a line."""
    print(f"{name} {value:.4g} {unit}", flush=True)


def peak_mib() -> float:
    """Most memory that this process has had since it was last reset."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def reset_peak() -> float:
    """The peak starts again from what is in use now, which is returned."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)
    return peak_mib()


def addresses_in(table: SymbolTable) -> npt.NDArray[np.uint64]:
    rng = np.random.default_rng(1)
    chosen = rng.integers(0, len(table), LOOKUP_COUNT)
    return table.starts[chosen] + rng.integers(0, table.ends[chosen] - table.starts[chosen], dtype=np.uint64)


def measure_lookups(label: str, table: SymbolTable) -> list[str]:
    addresses = addresses_in(table)
    before = time.process_time()
    found = table.find(addresses)
    show(f"{label}_100k_lookups", time.process_time() - before, "s")
    before = time.process_time()
    names = table.names(found)
    show(f"{label}_their_names", time.process_time() - before, "s")
    show(f"{label}_different_names", len(set(names)), "names")
    return names


def measure_file(path: str) -> None:
    label = os.path.basename(path).partition(".so")[0]
    base = reset_peak()
    with ElfImage.open(path) as image:
        before = time.process_time()
        table = read_symbols(image)
        show(f"{label}_symbols_ready", time.process_time() - before, "s")
        show(f"{label}_symbols_peak", peak_mib() - base, "MiB")
        show(f"{label}_functions", len(table), "functions")
        names = measure_lookups(label, table)
        before = time.process_time()
        stubs = read_plt(image)
        show(f"{label}_plt_ready", time.process_time() - before, "s")
        show(f"{label}_plt_stubs", len(stubs), "stubs")
    mangled = [name for name in dict.fromkeys(names) if name.startswith("_Z")][:DEMANGLED_COUNT]
    if mangled:
        demangle(mangled[0])
        before = time.process_time()
        changed = sum(demangle(name) != name for name in mangled)
        show(f"{label}_demangle", (time.process_time() - before) / len(mangled) * 1e6, "us/name")
        show(f"{label}_demangled", 100 * changed / len(mangled), "%")


def measure_kernel() -> None:
    before = time.process_time()
    source = SymbolNames(read_kernel_symbols())
    show("kernel_symbols_ready", time.process_time() - before, "s")
    if not len(source.table):
        print("# there are no kernel symbols")
        return
    with open("/proc/kallsyms") as file:
        lines = [line.split() for line in file]
    starts = np.array([int(line[0], 16) for line in lines if line[1] in "tTwW"], np.uint64)
    addresses = np.random.default_rng(1).choice(starts, LOOKUP_COUNT)
    before = time.process_time()
    source.resolve(addresses)
    show("kernel_100k_resolved_first", time.process_time() - before, "s")
    before = time.process_time()
    source.resolve(addresses)
    show("kernel_100k_resolved_again", time.process_time() - before, "s")


def files_of_this_process() -> list[str]:
    with open("/proc/self/maps") as file:
        mapped = {line.split()[-1] for line in file if " r-xp " in line and "/" in line}
    wanted = ("libc.so", "libstdc++", "libpython", "bin/python", "openblas")
    return sorted(path for path in mapped if any(part in path for part in wanted) and os.path.isfile(path))


if __name__ == "__main__":
    for file_path in sys.argv[1:] or files_of_this_process():
        measure_file(file_path)
    measure_kernel()
