from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof.names.kernel_symbols import read_kernel_symbols
from bpfprof.names.symbols import SymbolNames

LINES = """\
0000000000000000 A fixed_percpu_data
0000000000001000 D cpu_tss_rw
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 t local_one
ffffffff81000100 T global_one
ffffffff81000200 D some_data
ffffffff81000300 W weak_one
ffffffff81000400 B __bss_start
ffffffffc0000000 t module_function\t[nf_tables]
ffffffffc0100000 t bpf_prog_1234_name\t[bpf]
"""


@pytest.fixture
def source(tmp_path: Path) -> SymbolNames:
    (tmp_path / "kallsyms").write_text(LINES)
    return SymbolNames(read_kernel_symbols(str(tmp_path / "kallsyms")))


def names(source: SymbolNames, *addresses: int) -> list[str]:
    return source.resolve(np.array(addresses, np.uint64))


def test_functions(source: SymbolNames) -> None:
    base = 0xFFFFFFFF81000000
    assert names(source, base, base + 0xFF, base + 0x100, base + 0x1FF) == [
        *("startup_64", "startup_64", "global_one", "global_one"),
    ]
    assert names(source, base + 0x200, base + 0x300, base + 0x3FF, base + 0x400) == ["", "weak_one", "weak_one", ""]


def test_modules(source: SymbolNames) -> None:
    module = 0xFFFFFFFFC0000000
    assert names(source, module + 5, module + 0x100000) == ["module_function [nf_tables]", "bpf_prog_1234_name [bpf]"]


def test_what_no_function_covers(source: SymbolNames) -> None:
    # The file has no sizes, so the last function of a module ends somewhere.
    assert names(source, 0, 0x1000, 0xFFFFFFFF80000000, 0xFFFFFFFFC0080000, 2**64 - 1) == [""] * 5
    assert names(source) == []


@pytest.mark.parametrize("text", ["0000000000000000 T _text\n0000000000000000 t f\n", "", None])
def test_no_addresses(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "kallsyms").write_text(text)
    assert len(read_kernel_symbols(str(tmp_path / "kallsyms"))) == 0


def test_this_kernel() -> None:
    before = Path("/proc/kallsyms").read_text()
    source = SymbolNames(read_kernel_symbols())
    # What is made while the kernel runs comes and goes meanwhile: BPF programs of other tests, and what leads to them.
    is_same = Path("/proc/kallsyms").read_text() == before
    functions: dict[int, set[str]] = {}
    for line in before.splitlines():
        address, kind, name = line.split(" ", 2)
        if kind in "tTwW" and (is_same or not name.endswith(("[bpf]", "[__builtin__ftrace]", "[__builtin__kprobes]"))):
            functions.setdefault(int(address, 16), set()).add(name.replace("\t", " "))
    if not any(functions):
        pytest.skip("kernel addresses are hidden from this user")
    addresses = sorted(address for address in functions if address >= 1 << 63)
    for address, name in zip(addresses, names(source, *addresses)):
        assert name in functions[address]
