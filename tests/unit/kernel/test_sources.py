"""The one text that BCC compiles, and the flags that go with it."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from bpfprof.abi import CONSTANTS, ebpf_directory
from bpfprof.kernel.compiler import PROGRAMS
from bpfprof.kernel.sources import (
    FIRST_FUNCTION,
    MAPS_BY_TYPE,
    NUMBERS,
    compiler_flags,
    function_names,
    join_includes,
    map_names,
    maps_header,
    number_flags,
    with_numbers,
)

KERNEL = CONSTANTS["BP_PSEUDO_KERNEL"]


def places(text: str) -> dict[str, tuple[str, int]]:
    """Each marker word `@name` of the joined text -> (file, line) a compiler would report for it."""
    found: dict[str, tuple[str, int]] = {}
    file, number = "", 0
    for line in text.splitlines():
        directive = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if directive:
            file, number = directive[2], int(directive[1])
            continue
        for word in re.findall(r"@\w+", line):
            assert word not in found, f"{word} is in the text twice"
            found[word] = (file, number)
        number += 1
    return found


@pytest.fixture
def joined(tmp_path: Path) -> str:
    (tmp_path / "main.bpf.c").write_text(
        '// @top\n#include <system.h>\n#include "a.h"\n// @middle\n#include "b.h"\n#include "a.h"\n// @bottom\n'
    )
    (tmp_path / "a.h").write_text('#pragma once\n#include "b.h"\n// @a\n')
    (tmp_path / "b.h").write_text('// @b\n#include "a.h"\n// @b_end\n')
    return join_includes(tmp_path / "main.bpf.c")


def test_each_file_is_in_the_text_once(joined: str) -> None:
    assert [joined.count(word) for word in ("@top", "@a\n", "@b\n", "@b_end", "@middle", "@bottom")] == [1] * 6
    assert '#include "' not in joined and "#include <system.h>" in joined


def test_messages_point_at_the_real_lines(joined: str) -> None:
    assert places(joined) == {
        "@top": ("main.bpf.c", 1),
        "@b": ("b.h", 1),
        "@b_end": ("b.h", 3),
        "@a": ("a.h", 3),
        "@middle": ("main.bpf.c", 4),
        "@bottom": ("main.bpf.c", 7),
    }


def test_every_map_is_listed() -> None:
    names = map_names()
    assert len(names) == len(set(names)) and {"events", "stacks", "threads", "processes"} <= set(names)
    lines = re.findall(r"^BP_MAP\(", maps_header(), re.MULTILINE)
    assert len(names) == len(lines) + len(MAPS_BY_TYPE)
    assert {f"{own}_{name}" for own in ("perf", "sched") for name in MAPS_BY_TYPE} <= set(names)


def test_the_readme_names_every_file() -> None:
    folder = ebpf_directory()
    table = re.findall(r"^\| `([\w./]+)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    files = {path.name + "/" * path.is_dir() for path in folder.iterdir()} - {"README.md"}
    assert files == {name for name in table if "." in name or name.endswith("/")}


def test_the_readme_s_tables_have_every_program_and_function() -> None:
    text = (ebpf_directory() / "README.md").read_text()
    functions = function_names(join_includes(ebpf_directory() / "profiler.bpf.c"))
    assert {*PROGRAMS, *functions} <= set(re.findall(r"`(\w+)`", text))
    budget = re.findall(r"^\| `(\w+)`", text[text.index("## Verifier budget") :], re.MULTILINE)
    assert sorted(budget) == sorted(PROGRAMS)


def test_a_compiler_agrees_on_the_lines(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    (tmp_path / "a.h").write_text("int a;\n")
    (tmp_path / "main.c").write_text('#include "a.h"\n#include "a.h"\nint b;\n#error here\n')
    (tmp_path / "joined.c").write_text(join_includes(tmp_path / "main.c"))
    done = subprocess.run([compiler, "-c", "joined.c"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "main.c:4:" in done.stderr


def test_every_kernel_side_file_is_joined() -> None:
    text = join_includes(ebpf_directory() / "profiler.bpf.c")
    joined = re.findall(r'^#line 1 "(.*)"$', text, re.MULTILINE)
    assert len(joined) == len(set(joined))
    assert {path.name for path in ebpf_directory().glob("*.[hc]")} == set(joined)


def test_flags_hold_numbers_of_maps_and_functions() -> None:
    flags = {*compiler_flags(["walk", "send"], takes_pointer=True), *number_flags()}
    assert {f"-DBP_FD_{name}={number}" for number, name in enumerate(map_names(), 1)} <= flags
    assert {f"-DBP_FUNCTION_walk={FIRST_FUNCTION}", f"-DBP_FUNCTION_send={FIRST_FUNCTION + 1}"} <= flags
    assert "-DBP_HAS_TASK_POINTERS=1" in flags and "-DBP_WITH_CALLS=1" not in flags
    with_calls = compiler_flags([], takes_pointer=False, with_calls=True, uses_links=True)
    assert {"-DBP_HAS_TASK_POINTERS=0", "-DBP_WITH_CALLS=1", "-DBP_HAS_UPROBE_LINKS=1"} <= {*with_calls}
    text = "".join(path.read_text() for path in ebpf_directory().rglob("*.[hc]"))
    wanted = set(re.findall(r"\bBP_(?:OFFSET_[A-Z0-9_]+|RQ_TO_[A-Z_]+)\b", text))
    assert wanted == {*NUMBERS}, "the kernel side wants other numbers than it is given"


def load(register: int, kind: int, low: int, high: int = 0) -> bytes:
    """The instruction that loads 64 bits."""
    return struct.pack("<BBhiBBhi", 0x18, kind << 4 | register, 0, low, 0, 0, 0, high)


def test_numbers_are_put_where_their_places_stand() -> None:
    other = load(3, 1, 7) + struct.pack("<BBhi", 0xB7, 0, 0, 0x18 | KERNEL << 12)  # a map, and a number like one
    code = load(2, KERNEL, 1) + other + load(9, KERNEL, 0) + load(2, 0, 5, KERNEL << 12 | 0x18)
    put = load(2, 0, 300) + other + load(9, 0, 0xFFFFFFF0 - (1 << 32), -1) + load(2, 0, 5, KERNEL << 12 | 0x18)
    assert with_numbers(code, [-16, 300]) == put
    assert with_numbers(put, []) == put
