"""The one text that BCC compiles, and the flags that go with it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.abi import ebpf_directory
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import sources
from bpfprof.kernel.compiler import PROGRAMS
from bpfprof.kernel.sources import (
    FIRST_FUNCTION,
    MAPS_BY_TYPE,
    compiler_flags,
    function_names,
    join_includes,
    kernel_version_code,
    map_names,
    maps_header,
)


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


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.18.44-cloud-amd64", (6, 18, 44)),
        ("6.1.0-18-amd64", (6, 1, 0)),
        ("5.10.300", (5, 10, 255)),
        ("6.8.0-45-generic", (6, 8, 0)),
        ("7.0.0-rc3+", (7, 0, 0)),
        ("6.6", (6, 6, 0)),
    ],
)
def test_version_code(release: str, version: tuple[int, int, int]) -> None:
    major, minor, patch = version
    assert kernel_version_code(release) == (major << 16) + (minor << 8) + patch


def test_the_running_kernel_has_a_version() -> None:
    assert kernel_version_code() > 4 << 16


def test_flags_hold_offsets_and_map_numbers() -> None:
    class Types:
        """Every member is at the length of its name."""

        def offset(self, _struct_name: str, member: str) -> int:
            return len(member)

        def percpu_distance(self, first: str, second: str) -> int:
            return len(second) - len(first)

        def has_name(self, _name: str) -> bool:
            return True

    flags = compiler_flags(Types(), True, ["walk", "send"])  # type: ignore[arg-type]
    assert {"-DBP_OFFSET_TASK_PID=3", "-DBP_OFFSET_TASK_TGID=4"} <= set(flags)
    assert {f"-DBP_FD_{name}={number}" for number, name in enumerate(map_names(), 1)} <= set(flags)
    assert f"-DBP_OFFSET_TASK_EXEC={len('se') + len('sum_exec_runtime')}" in flags
    assert f"-DBP_OFFSET_TASK_RUN_DELAY={len('sched_info') + len('run_delay')}" in flags
    assert {f"-DBP_FUNCTION_walk={FIRST_FUNCTION}", f"-DBP_FUNCTION_send={FIRST_FUNCTION + 1}"} <= set(flags)
    without = compiler_flags(Types(), False, [])  # type: ignore[arg-type]
    assert "-DBP_OFFSET_TASK_RUN_DELAY=0" in without
    sources = "".join(path.read_text() for path in ebpf_directory().rglob("*.[hc]"))
    wanted = set(re.findall(r"\bBP_(?:OFFSET_\w+|RQ_TO_\w+|KERNEL_VERSION_CODE)\b", sources))
    assert wanted <= {flag[2:].split("=")[0] for flag in flags}, "the kernel side wants a number it is not given"


def test_a_kernel_without_ring_buffers_is_too_old() -> None:
    class Types:
        def has_name(self, name: str) -> bool:
            return name != "BPF_FUNC_ringbuf_output"

    with pytest.raises(UnsupportedError, match=r"no BPF ring buffer, which Linux 5\.8 brought"):
        compiler_flags(Types(), True, [])  # type: ignore[arg-type]


def test_what_older_kernels_lack_is_asked_of_their_types() -> None:
    """No helper bpf_task_pt_regs, and a tracepoint sched_switch without the state, whose member has its old name."""

    class Types:
        def offset(self, _struct_name: str, member: str) -> int:
            return {"state": 24, "stack": 32}.get(member, 8)

        def percpu_distance(self, _first: str, second: str) -> int:
            return 64 if second == "pcpu_hot" else 0

        def has_name(self, name: str) -> bool:
            return name not in ("BPF_FUNC_task_pt_regs", "__state")

        def parameters(self, _function: str) -> int:
            return 4

    def flags() -> set[str]:
        return set(compiler_flags(Types(), True, []))  # type: ignore[arg-type]

    assert {"-DBP_HAS_TASK_POINTERS=0", "-DBP_OFFSET_TASK_STACK=32", "-DBP_RQ_TO_PREEMPT_COUNT=72"} <= flags()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "kernel_version_code", lambda: 5 << 16 | 10 << 8)
        assert "-DBP_OFFSET_TASK_STATE=24" in flags()
