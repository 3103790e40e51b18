from __future__ import annotations

import contextlib
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.symbols.debug_files import read_debug_link
from bpfprof.elf.symbols.plt import read_plt
from bpfprof.elf.symbols.reader import read_symbols
from tests import pyenv

SOURCE = """
#include <stdlib.h>
static int hidden(int x) { return x * 3; }
int (*pointer)(int) = hidden;
int visible(int x) { return rand() + pointer(x); }
__attribute__((alias("visible"))) int visible_too(int);
__asm__(".text\\n bare:\\n nop\\n .Lx:\\n label_in_bare:\\n nop\\n .globl bare\\n .globl behind\\n behind:\\n nop\\n");
"""
READELF = re.compile(rb" *\d+: ([0-9a-f]+) +(\w+) +(FUNC|IFUNC|NOTYPE) +(\w+) +\w+ +(\w+) (\S+)")


def mapped(fragment: str) -> str:
    """The path of a library that this process has loaded."""
    with open("/proc/self/maps") as file:
        return next((line.split()[-1] for line in file if fragment in line), "")


def libpython() -> str:
    directory = sysconfig.get_config_var("LIBDIR") or ""
    found = [
        *pyenv.paths("3.12.*/lib/libpython3.*.so.1.0"),
        *Path(directory).glob("libpython3*.so.1.0"),
    ]
    return str(found[0]) if found else ""


def libstdcxx() -> str:
    return subprocess.run(["g++", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True).stdout.strip()


FILES = {"libc": mapped("/libc.so.6"), "libpython": libpython(), "libstdc++": libstdcxx(), "python": sys.executable}


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest) -> str:
    found = os.path.realpath(FILES[request.param]) if FILES[request.param] else ""
    if not os.path.isfile(found):
        pytest.skip(f"no {request.param}")
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("symbols")
    (folder / "a.c").write_text(SOURCE)
    out = folder / "liba.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wl,--build-id=sha1", "-o", str(out), str(folder / "a.c")]
    subprocess.run(command, check=True)
    return out


def sized_functions(path: str) -> dict[tuple[int, int], set[str]]:
    """(start, end) -> names, as readelf tells them; without versions."""
    text = subprocess.run(["readelf", "-sW", path], capture_output=True, check=True).stdout
    found: dict[tuple[int, int], set[str]] = {}
    for match in READELF.finditer(text):
        start, size, kind, _, section, name = match.groups()
        if int(size, 0) and section not in (b"UND", b"ABS", b"COM") and kind != b"NOTYPE":
            found.setdefault((int(start, 16), int(start, 16) + int(size, 0)), set()).add(
                name.decode().partition("@")[0]
            )
    return found


def test_random_addresses_agree_with_readelf(path: str) -> None:
    functions = sized_functions(path)
    starts = np.array([start for start, _ in functions], np.int64)
    ends = np.array([end for _, end in functions], np.int64)
    names = list(functions.values())
    addresses = np.random.default_rng(1).integers(starts.min() - 64, ends.max() + 64, 3000)
    with ElfImage.open(path) as image:
        table = read_symbols(image)
        found = table.find(addresses.astype(np.uint64))
        for address, index, name in zip(addresses.tolist(), found.tolist(), table.names(found)):
            covering = np.flatnonzero((starts <= address) & (address < ends))
            if len(covering):
                innermost = starts[covering].max()
                assert name in set().union(*(names[i] for i in covering if starts[i] == innermost)), hex(address)
            elif index >= 0:  # a symbol without a size reaches here
                assert int(table.starts[index]) <= address < int(table.ends[index])
                assert int(table.starts[index]) not in starts
    assert not table.problems


def test_every_function_of_nm_is_found_by_its_address(path: str) -> None:
    listed: dict[int, set[str]] = {}
    for option in ("-D", "--synthetic"):
        text = subprocess.run(["nm", option, "--defined-only", path], capture_output=True, text=True).stdout
        for address, kind, name in re.findall(r"^([0-9a-f]+) ([TtWi]) (\S+)$", text, re.M):
            if "@plt" not in name and kind in "TtWi":
                listed.setdefault(int(address, 16), set()).add(name.partition("@")[0])
    functions = {start for start, _ in sized_functions(path)}
    addresses = np.array(sorted(listed.keys() & functions), np.uint64)
    with ElfImage.open(path) as image:
        table = read_symbols(image)
        found = table.find(addresses)
        assert (found >= 0).all()
        assert (table.starts[found] == addresses).all()
        for address, name in zip(addresses.tolist(), table.names(found)):
            assert name in listed[address]


def test_random_addresses_agree_with_elfutils(path: str) -> None:
    if shutil.which("eu-addr2line") is None:
        pytest.skip("no eu-addr2line")
    functions = sized_functions(path)
    rng = random.Random(3)
    addresses = [rng.randrange(*extent) for extent in rng.choices(sorted(functions), k=300)]
    text = "\n".join(map(hex, addresses))
    command = ["eu-addr2line", "-S", "--debuginfo-path=/nonexistent", "-e", path]
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.split("\n")[::2]
    with ElfImage.open(path) as image:
        table = read_symbols(image)
        found = table.find(np.array(addresses, np.uint64))
        for address, index, said in zip(addresses, found.tolist(), out):
            match = re.match(r"(\S+?)(?:\+(0x[0-9a-f]+))?$", said)
            assert match, said
            assert address - int(table.starts[index]) == int(match[2] or "0", 16), said


def test_the_name_at_a_shared_address(library: Path) -> None:
    with ElfImage.open(str(library)) as image:
        table = read_symbols(image)
        symbol = image.find_symbol("visible")
        assert symbol is not None
        found = table.find(np.array([symbol.address], np.uint64))
        assert table.names(found) == ["visible"]


def test_labels_do_not_end_a_function_without_a_size(library: Path) -> None:
    with ElfImage.open(str(library)) as image:
        table = read_symbols(image)
        bare, behind = image.find_symbol("bare"), image.find_symbol("behind")
        assert bare is not None and behind is not None
        assert table.names(table.find(np.arange(bare.address, behind.address + 1, dtype=np.uint64))) == [
            "bare",
            "bare",
            "behind",
        ]


def with_debug_data(library: Path, out: Path, data: bytes) -> Path:
    """The library without its .symtab, and with that in .gnu_debugdata."""
    (out.parent / "data").write_bytes(data)
    section = [f"--add-section=.gnu_debugdata={out.parent / 'data'}", "--strip-all"]
    subprocess.run(["objcopy", *section, str(library), str(out)], check=True)
    return out


def debug_only(library: Path, out: Path) -> bytes:
    subprocess.run(["objcopy", "--only-keep-debug", str(library), str(out)], check=True)
    return out.read_bytes()


def names_of(path: Path, debug: Path | None = None) -> tuple[set[str], tuple[str, ...]]:
    with ElfImage.open(str(path)) as image:
        other = ElfImage.open(str(debug)) if debug else None
        table = read_symbols(image, other)
        names = set(table.names(np.arange(len(table))))
        if other:
            other.close()
        return names, table.problems


def test_embedded_symbols(library: Path, tmp_path: Path) -> None:
    whole, _ = names_of(library)
    assert "hidden" in whole
    content = debug_only(library, tmp_path / "debug")
    assert names_of(with_debug_data(library, tmp_path / "packed", lzma.compress(content))) == (whole, ())


@pytest.mark.second_tier
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "bomb", "zeros"])
def test_damaged_embedded_symbols(library: Path, tmp_path: Path, damage: str) -> None:
    packed = lzma.compress(debug_only(library, tmp_path / "debug"))
    data = {
        "cut": packed[:-40],
        "garbage": b"x" * 500,
        "empty": b"\0",
        "bomb": lzma.compress(bytes(64 << 20), preset=1),
        "zeros": lzma.compress(bytes(1000)),
    }[damage]
    before = time.process_time()
    names, problems = names_of(with_debug_data(library, tmp_path / "packed", data))
    assert time.process_time() - before < 1
    assert "visible" in names and "hidden" not in names
    assert (len(problems) == 1) == (damage != "zeros")


def test_symbols_of_a_separate_file(library: Path, tmp_path: Path) -> None:
    whole, _ = names_of(library)
    debug_only(library, tmp_path / "debug")
    subprocess.run(["strip", "-o", str(tmp_path / "bare"), str(library)], check=True)
    assert "hidden" not in names_of(tmp_path / "bare")[0]
    assert names_of(tmp_path / "bare", tmp_path / "debug")[0] == whole


@pytest.mark.parametrize("options", [[], ["-fcf-protection=full", "-Wl,-z,ibtplt"], ["-Wl,-z,now"], ["-fno-plt"]])
def test_stubs_agree_with_objdump(tmp_path: Path, options: list[str]) -> None:
    if shutil.which("gcc") is None or os.uname().machine != "x86_64":
        pytest.skip("no gcc for x86-64")
    calls = " + ".join(f"f{i}()" for i in range(20))
    declared = "".join(f"extern int f{i}(void); " for i in range(20))
    (tmp_path / "a.c").write_text(f"{declared} void *p(void) {{ return f3; }} int call(void) {{ return {calls}; }}")
    out = tmp_path / "a.so"
    subprocess.run(["gcc", "-shared", "-fPIC", *options, "-o", str(out), str(tmp_path / "a.c")], check=True)
    text = subprocess.run(["objdump", "-d", str(out)], capture_output=True, text=True, check=True).stdout
    stubs = re.findall(r"^([0-9a-f]+) <(\w+)@plt>:", text, re.M)
    # In lazy tables for IBT objdump gives the name to the second table only, as here.
    with ElfImage.open(str(out)) as image:
        table = read_plt(image)
        ours = dict(zip(table.starts.tolist(), table.names(np.arange(len(table)))))
    assert ours == {int(address, 16): name for address, name in stubs}
    assert (len(ours) >= 20) == ("-fno-plt" not in options)


@pytest.mark.second_tier
def test_damaged_files(library: Path, tmp_path: Path) -> None:
    """Only ElfError comes out, in time and within bounds."""
    debug_only(library, tmp_path / "debug")
    packed = with_debug_data(library, tmp_path / "packed", lzma.compress(debug_only(library, tmp_path / "debug")))
    originals = [library.read_bytes(), packed.read_bytes()]
    rng = random.Random(7)
    addresses = np.array([0, 1, 0x1000, 0x1100, 2**63, 2**64 - 1], np.uint64)
    opened = 0
    for round_number in range(3000):
        data = bytearray(originals[round_number % 2])
        section_headers = int.from_bytes(data[40:48], "little")
        for _ in range(rng.randrange(1, 8)):
            where = rng.choice([64, 0x300, 0x600, section_headers - 3000, section_headers])
            position = rng.randrange(min(where, len(data) - 8), min(where + 2048, len(data) - 7))
            data[position : position + 8] = rng.choice(
                [rng.randbytes(8), b"\xff" * 8, bytes(8), rng.randrange(len(data)).to_bytes(8, "little")]
            )
        fd = os.memfd_create("damaged")
        os.write(fd, data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
        before = time.process_time()
        with contextlib.suppress(ElfError), ElfImage(fd) as image:  # a refusal is an answer too
            opened += 1
            read_debug_link(image)
            for table in (read_symbols(image), read_plt(image)):
                assert ((table.find(addresses) >= -1) & (table.find(addresses) < len(table))).all()
                assert all(len(name) <= 16 << 10 for name in table.names(np.arange(len(table))))
                assert (table.starts <= table.ends).all()
        assert time.process_time() - before < 1
    assert opened > 1000
