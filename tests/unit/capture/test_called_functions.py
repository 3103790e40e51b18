"""The table of functions whose calls are counted, and finding them in a library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.capture.called_functions import call_table, exported, parse_calls
from bpfprof.elf.image import ElfImage

HEAD = "library  x  libx.so*\n"


def test_the_table_there_is() -> None:
    table = call_table()
    assert len(table.names) == len(set(table.names)) == sum(map(len, table.functions.values()))
    places = {each.name: each.place for functions in table.functions.values() for each in functions}
    assert all(table.names[place] == name for name, place in places.items())
    for name in ("libcudart.so.12", "libcudart-d0da41ae.so.11.0", "libcuda.so.1", "libnccl.so.2", "libamdhip64.so.6"):
        assert table.wanted_of(name), name
    assert not table.wanted_of("libcudart_static.a") and not table.wanted_of("libc.so.6")


@pytest.mark.parametrize(
    ("size", "direction", "bits"),
    [
        ("-", "", 0),
        ("a3", "", 3 << 10),
        ("a3", "a4", 3 << 10 | 4 << 20),
        ("a5*a6", "a7", 5 << 10 | 6 << 14 | 1 << 18 | 7 << 20),
        ("a3*type(a4)", "", 3 << 10 | 4 << 14 | 2 << 18),
        ("a3*4", "", 3 << 10 | 4 << 14 | 3 << 18),
    ],
)
def test_where_a_size_is(size: str, direction: str, bits: int) -> None:
    """As ebpf/calls.bpf.c takes it apart."""
    (function,) = parse_calls(f"{HEAD}function  x  f  {size}{'  ' * bool(direction)}{direction}\n").functions["x"]
    assert (function.name, function.number) == ("f", bits)


@pytest.mark.parametrize(
    "line",
    ["f", "function  y  f  -", "function  x  f", "function  x  f  a8", "function  x  f  3", "function  x  f  a1  4"],
)
def test_what_is_no_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"is neither|is no size"):
        parse_calls(f"{HEAD}{line}\n")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler (gcc)")
    path = tmp_path_factory.mktemp("library") / "libx.so.1"
    source = """
    int cuGet(void) { return 1; }
    int cuCopy_v2_ptds(void) { return 2; }
    int cuCopy(void) { return 3; }
    int cuAlias(void) __attribute__((alias("cuCopy")));
    static int cuHidden(void) { return 4; }
    int cuData = 5;
    extern int cuElsewhere(void);
    int other(void) { return cuHidden() + cuElsewhere(); }
    """
    command = ["gcc", "-shared", "-fPIC", "-O0", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_functions_that_a_library_exports(library: Path) -> None:
    """Variants of one are it, too; one code under two names is probed once; data, and what is elsewhere, are not."""
    names = ("cuCopy", "cuGet", "cuAlias", "cuHidden", "cuData", "cuElsewhere", "other")
    table = parse_calls(HEAD + "".join(f"function  x  {name}  -\n" for name in names))
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    address = {line.split()[-1]: int(line.split()[0], 16) for line in symbols.splitlines() if len(line.split()) == 3}
    with ElfImage.open(str(library)) as image:
        found = exported(image, table.wanted_of(library.name))
        expected = {image.offset_of(address[name]): name for name in ("cuCopy_v2_ptds", "cuCopy", "cuGet", "other")}
    assert {offset for _, offset in found} == set(expected)
    by_offset = {offset: function.name for function, offset in found}
    assert {by_offset[offset] for offset, name in expected.items() if name == "cuCopy_v2_ptds"} == {"cuCopy"}
    assert [function.place for function, _ in found] == sorted(function.place for function, _ in found)


def test_a_file_that_is_cut_has_none(library: Path, tmp_path: Path) -> None:
    content = library.read_bytes()
    table = parse_calls(f"{HEAD}function  x  cuGet  -\n")
    for size in range(64, len(content), 997):
        path = tmp_path / "libx.so.1"
        path.write_bytes(content[:size])
        try:
            image = ElfImage.open(str(path))
        except ValueError:
            continue
        with image:
            assert len(exported(image, table.functions["x"])) <= 1
