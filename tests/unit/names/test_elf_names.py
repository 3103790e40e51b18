from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.debug_files import find_debug_file
from bpfprof.names.demangled import can_demangle
from bpfprof.names.elf_names import ElfNames

pytestmark = pytest.mark.skipif(not can_demangle(), reason="no demangler for this Python")

SOURCE = """
#include <cstdlib>
#include <string>
namespace space {
template <class T> struct Box { T value; __attribute__((noinline)) T twice() const { return value + value; } };
static __attribute__((noinline)) int hidden(int x) { return std::rand() + x; }
std::string text(const std::string &s) { return Box<std::string>{s}.twice() + std::to_string(hidden(1)); }
}
int main(int argc, char **argv) { return space::text(argv[0]).size() + space::Box<int>{argc}.twice(); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C++ program with debug information, at /bin/a below a root directory of its own."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    root = tmp_path_factory.mktemp("root")
    (root / "bin").mkdir()
    (root / "a.cc").write_text(SOURCE)
    command = ["g++", "-g", "-O1", "-Wl,--build-id=sha1", "-o", str(root / "bin/a"), str(root / "a.cc")]
    subprocess.run(command, check=True)
    return root / "bin/a"


@pytest.fixture(scope="module")
def functions(program: Path) -> dict[int, tuple[int, str]]:
    """address -> (size, name) as nm tells them, of what has a size and no second name at its address."""
    listed = subprocess.run(["nm", "-CS", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [TtWw] (.+)$", listed, re.M)
    addresses = [int(address, 16) for address, _, _ in found]
    return {
        int(address, 16): (int(size, 16), name)
        for address, size, name in found
        if addresses.count(int(address, 16)) == 1
    }


def check(source: ElfNames, functions: dict[int, tuple[int, str]]) -> None:
    for address, (size, name) in functions.items():
        asked = np.array([address, address + size - 1, address], np.uint64)
        assert source.functions(asked) == [name] * 3


def stripped(program: Path, out: Path, *options: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["objcopy", "--strip-all", *options, str(program), str(out)], check=True)
    return out


def test_names(program: Path, functions: dict[int, tuple[int, str]]) -> None:
    assert {"space::hidden(int)", "space::Box<int>::twice() const", "main"} <= {name for _, name in functions.values()}
    with ElfImage.open(str(program)) as image:
        source = ElfNames(image)
        check(source, functions)


def test_it_agrees_with_addr2line(program: Path, functions: dict[int, tuple[int, str]], tmp_path: Path) -> None:
    # With debug information addr2line gives the innermost inlined function, without it the symbol.
    bare = tmp_path / "bare"
    subprocess.run(["objcopy", "--strip-debug", str(program), str(bare)], check=True)
    addresses = [start + size // 2 for start, (size, _) in functions.items()]
    command = ["addr2line", "-Cfe", str(bare), *map(hex, addresses)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[::2]
    with ElfImage.open(str(program)) as image:
        source = ElfNames(image)
        answers = source.functions(np.array(addresses, np.uint64))
    assert answers == said


def test_a_stripped_program_by_its_debug_link(
    program: Path, functions: dict[int, tuple[int, str]], tmp_path: Path
) -> None:
    debug = tmp_path / "usr/lib/debug/bin/a.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", str(program), str(debug)], check=True)
    path = stripped(program, tmp_path / "bin/a", f"--add-gnu-debuglink={debug}")
    with ElfImage.open(str(path)) as image, find_debug_file(image, "/bin/a", str(tmp_path)) as found:
        check(ElfNames(image, found), functions)
    with ElfImage.open(str(path)) as image:
        source = ElfNames(image)
        main = next(address for address, (_, name) in functions.items() if name == "main")
        assert source.functions(np.array([main], np.uint64)) == [""]


def test_embedded_symbols(program: Path, functions: dict[int, tuple[int, str]], tmp_path: Path) -> None:
    if shutil.which("xz") is None:
        pytest.skip("no xz")
    debug = tmp_path / "debug"
    subprocess.run(["objcopy", "--only-keep-debug", "--strip-debug", str(program), str(debug)], check=True)
    subprocess.run(["xz", "-9", str(debug)], check=True)
    path = stripped(program, tmp_path / "a", f"--add-section=.gnu_debugdata={debug}.xz")
    with ElfImage.open(str(path)) as image:
        source = ElfNames(image)
        check(source, functions)


def test_stubs(program: Path) -> None:
    listed = subprocess.run(["objdump", "-d", str(program)], capture_output=True, text=True, check=True).stdout
    stubs = {int(address, 16): name for address, name in re.findall(r"^([0-9a-f]+) <(\w+@plt)>:", listed, re.M)}
    assert "rand@plt" in stubs.values()
    with ElfImage.open(str(program)) as image:
        source = ElfNames(image)
        answers = source.functions(np.array([*stubs], np.uint64) + np.uint64(4))
        mangled = next(address for address, name in stubs.items() if name.startswith("_ZN"))
        name = source.functions(np.array([mangled], np.uint64))[0]
    assert all(answers) and "rand@plt" in answers
    assert name.startswith("std::") and name.endswith("@plt")


def test_addresses_of_nothing(program: Path) -> None:
    with ElfImage.open(str(program)) as image:
        source = ElfNames(image)
        answers = source.functions(np.array([0, 2**64 - 1], np.uint64))
        assert answers == ["", ""]
        assert source.functions(np.zeros(0, np.uint64)) == []


def test_the_file_is_closed_before_names_are_read(program: Path, functions: dict[int, tuple[int, str]]) -> None:
    image = ElfImage.open(str(program))
    source = ElfNames(image)
    main = next(address for address, (_, name) in functions.items() if name == "main")
    other = next(address for address in functions if address != main)
    first = source.functions(np.array([main], np.uint64))
    image.close()
    assert source.functions(np.array([main, other], np.uint64)) == [*first, ""]
