"""Lines and inlined functions against addr2line (binutils)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bpfprof.elf.image import ElfImage
from bpfprof.elf.lines import LineReader, SourceLine
from bpfprof.elf.symbols.debug_files import find_debug_file

pytestmark = pytest.mark.usefixtures("pyelftools")
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("addr2line") is None, reason="no gcc or no binutils"
)
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

HEADER = """
#ifdef __cplusplus /* without a linkage name addr2line says what the symbol table says of the outer function */
#define INLINE inline __attribute__((always_inline))
#else
#define INLINE static inline __attribute__((always_inline))
#endif
INLINE int deepest(volatile int *p) { int sum = 0; for (int i = 0; i < *p; i++) sum += p[i] * i; return sum; }
INLINE int deep(volatile int *p)
{
    if (*p > 3)
        return deepest(p) + deepest(p + 7);
    return *p;
}
"""
C_SOURCE = """
#include <stdlib.h>
#include "deep.h"
INLINE int middle(volatile int *p) { { int n = p[1]; while (n--) p[n] = deep(p + n); } return deep(p); }
__attribute__((noinline)) int outer(volatile int *p) { return middle(p) * 5 + middle(p + 2); }
__attribute__((noinline)) static int rarely(volatile int *p)
{
    if (__builtin_expect(*p == 77, 0)) {
        p[3] = middle(p);
        abort();
    }
    return p[2];
}
__attribute__((noinline, section(".text.apart"))) int apart(volatile int *p) { return deep(p) - 1; }
__attribute__((noinline)) int nested(volatile int *p)
{
    __attribute__((noinline)) int within(int x) { return p[x] + deep(p); }
    return within(3) + within(p[4]);
}
int main(int argc, char **argv)
{
    volatile int values[64] = { argc };
    return outer(values) + rarely(values) + apart(values) + nested(values);
}
"""
CXX_SOURCE = """
#include "deep.h"
namespace outside {
template <typename T> struct Box {
    volatile T *p;
    ALWAYS T twice(int i) const { return p[i] * 2; }
    ALWAYS T get(int i) const { return twice(i) + more(i); }
    ALWAYS T more(int i) const { return deep(const_cast<volatile int *>((int *)p) + i); }
    __attribute__((noinline)) T far(int i) const;
};
template <typename T> __attribute__((noinline)) T Box<T>::far(int i) const { return get(i) + get(i + 1); }
struct Base { virtual int run(int) = 0; virtual ~Base() {} };
struct Derived : Base {
    Box<int> box;
    int run(int i) override { if (i > 90) throw i; return box.get(i) + box.far(i); }
};
}
int main(int argc, char **argv)
{
    volatile int values[64] = { argc };
    outside::Derived derived;
    derived.box.p = values;
    try { return derived.run(argc); } catch (int i) { return deep(values + i); }
}
""".replace("ALWAYS", "__attribute__((always_inline))")

VARIANTS = [
    pytest.param(language, flags, id=f"{language}-{'-'.join(flag.strip('-') for flag in flags)}", marks=marks)
    for language, marks in (("c", ()), ("c++", (needs_gxx, pytest.mark.second_tier)))
    for flags in (
        ("-gdwarf-2",),
        ("-gdwarf-3",),
        ("-gdwarf-4",),
        ("-gdwarf-5",),
        ("-gdwarf-4", "-gz"),
        ("-gdwarf-5", "-gz"),
        ("-gdwarf-4", "-flto", "-ffunction-sections"),
        ("-gdwarf-4", "-fdebug-types-section"),
        ("-gdwarf-5", "-gno-as-loc-support"),
        ("-g1",),
    )
]


def build(directory: Path, language: str, *flags: str) -> Path:
    (directory / "include").mkdir(exist_ok=True)
    (directory / "include" / "deep.h").write_text(HEADER)
    source = directory / ("program.cpp" if language == "c++" else "program.c")
    source.write_text(CXX_SOURCE if language == "c++" else C_SOURCE)
    path = directory / "program"
    compiler = "g++" if language == "c++" else "gcc"
    command = [compiler, "-g", "-O2", "-w", *flags, "-Iinclude", source.name, "-o", path.name, "-Wl,--build-id"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this compiler does not take {flags}: {done.stderr[:200]}")
    return path


def instructions(path: Path) -> list[int]:
    """Addresses of all instructions of the functions in our sources."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True).stdout
    found, wanted = [], False
    for line in text.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            wanted = (
                re.search("outer|rarely|apart|nested|within|main$|second|third|Box|Derived|Base", match[1]) is not None
            )
        elif wanted and (match := re.match(r" +([0-9a-f]+):\t(?!nop|cs nop|data16|xchg +%ax,%ax)", line)):
            found.append(int(match[1], 16))
    assert len(found) > 100
    return found


Words = list[tuple[str, str, int]]


def addr2line(path: Path, addresses: list[int]) -> list[Words]:
    command = ["addr2line", "-a", "-i", "-f", "-e", str(path), *map(hex, addresses)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    answers: list[Words] = []
    at = 0
    while at < len(lines):
        if lines[at].startswith("0x"):
            answers.append([])
            at += 1
            continue
        file, _, line = lines[at + 1].partition(" (")[0].rpartition(":")
        name = "" if file == "??" else os.path.basename(file)
        answers[-1].append((lines[at], name, int(line) if line.isdigit() else 0))
        at += 2
    return answers


def words(answer: tuple[SourceLine, ...]) -> Words:
    assert [line.is_inlined for line in answer] == [True] * (len(answer) - 1) + [False] * bool(answer)
    return [(line.function, os.path.basename(line.file), line.line) for line in answer]


def check(path: Path, reader: LineReader, oracle: Path | None = None) -> list[tuple[SourceLine, ...]]:
    addresses = instructions(path)
    answers = reader.look_up(addresses)
    expected = addr2line(oracle or path, addresses)
    different = [
        f"{address:#x}: we {words(answer)}, addr2line {theirs}"
        for address, answer, theirs in zip(addresses, answers, expected)
        if words(answer) != theirs
    ]
    assert not different[:5], f"{len(different)} of {len(addresses)}"
    assert reader.problems == set()
    return answers


@needs_gcc
@pytest.mark.parametrize(("language", "flags"), VARIANTS)
def test_all_instructions_are_as_addr2line_says(language: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    path = build(tmp_path, language, *flags)
    with ElfImage.open(str(path)) as image:
        answers = check(path, LineReader(image))
    depths = {len(answer) for answer in answers}
    assert {2, 3} <= depths if "-g1" not in flags else 1 in depths


@needs_gcc
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("removed", [".debug_aranges", "only in its own file"])
def test_debug_file_and_missing_tables(version: int, removed: str, tmp_path: Path) -> None:
    whole = build(tmp_path, "c", f"-gdwarf-{version}")
    path = tmp_path / "stripped"
    if removed == ".debug_aranges":
        subprocess.run(["objcopy", "-R", removed, whole, path], check=True)
        with ElfImage.open(str(path)) as image:
            check(path, LineReader(image), whole)
        return
    subprocess.run(["objcopy", "--only-keep-debug", whole, tmp_path / "stripped.debug"], check=True)
    subprocess.run(["strip", "-o", path, whole], check=True)
    subprocess.run(["objcopy", "--add-gnu-debuglink=stripped.debug", path], cwd=tmp_path, check=True)
    with ElfImage.open(str(path)) as image:
        debug = find_debug_file(image, str(path))
        assert debug is not None
        with debug:
            # A stripped file has no symbols, so the addresses are taken from the whole one.
            check(whole, LineReader(image, debug), whole)
        alone = LineReader(image)
        assert alone.look_up([image.segments[1].address]) == [()]
        assert alone.problems == {"no .debug_info section"}


@needs_gcc
def test_files_are_joined_with_their_directories(tmp_path: Path) -> None:
    for flag in ("-gdwarf-4", "-gdwarf-5"):
        path = build(tmp_path, "c", flag)
        with ElfImage.open(str(path)) as image:
            answers = LineReader(image).look_up(instructions(path))
        files = {line.file for answer in answers for line in answer if line.file}
        assert files == {str(tmp_path / "program.c"), str(tmp_path / "include" / "deep.h")}


@needs_gcc
def test_unknown_addresses_and_order(tmp_path: Path) -> None:
    path = build(tmp_path, "c")
    known = instructions(path)[:3]
    with ElfImage.open(str(path)) as image:
        reader = LineReader(image)
        first, second, third = reader.look_up(known)
        assert reader.look_up([known[2], 0, known[0], (1 << 64) - 1, known[0], 1 << 80, known[1]]) == [
            *(third, (), first, (), first, (), second)
        ]
        assert reader.look_up([]) == []
        assert reader.problems == set()


@needs_gcc
def test_code_without_functions(tmp_path: Path) -> None:
    """Assembly: a line but no function. Also with .debug_aranges and the ranges of the unit gone."""
    (tmp_path / "bare.s").write_text(".globl _start\n_start:\n nop\n\n nop\n mov $60, %eax\n syscall\n")
    subprocess.run(["gcc", "-g", "-nostdlib", "-static", "bare.s", "-o", "bare"], cwd=tmp_path, check=True)
    with ElfImage.open(str(tmp_path / "bare")) as image:
        start = image.section(".text")
        assert start is not None
        answers = LineReader(image).look_up([start.address, start.address + 1, start.address + 2])
    assert [len(answer) for answer in answers] == [1, 1, 1]
    assert [answer[0].line for answer in answers] == [3, 5, 6]
    assert {os.path.basename(answer[0].file) for answer in answers} == {"bare.s"}
    assert {answer[0].is_inlined for answer in answers} == {False}


@needs_gcc
def test_functions_in_other_files(tmp_path: Path) -> None:
    """-gsplit-dwarf leaves the lines, and what is inlined with -g1, in the program."""
    path = build(tmp_path, "c", "-gsplit-dwarf")
    with ElfImage.open(str(path)) as image:
        answers = LineReader(image).look_up(instructions(path))
    assert {len(answer) for answer in answers[1:]} == {1}
    assert {answer[0].function for answer in answers[1:]} == {""}
    assert {os.path.basename(answer[0].file) for answer in answers[1:]} == {"program.c", "deep.h"}


def test_a_file_without_debug_information() -> None:
    with ElfImage.open(sys.executable) as image:
        reader = LineReader(image, None)
        image.close()
        assert reader.look_up([0x1000]) == [()]
        assert len(reader.problems) == 1


@needs_gcc
def test_a_closed_file(tmp_path: Path) -> None:
    with ElfImage.open(str(build(tmp_path, "c"))) as image:
        reader = LineReader(image)
    assert reader.look_up([0x1000]) == [()]
    assert len(reader.problems) == 1
