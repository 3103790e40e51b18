"""abi.h as numpy sees it and as a C compiler sees it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof import abi
from bpfprof.abi import dtypes, ebpf_directory

HEADER = ebpf_directory() / "abi.h"


def total_bytes(dtype: np.dtype[np.void]) -> int:
    """The sum of the fields of a struct."""
    assert dtype.fields is not None
    return sum(field[0].itemsize for field in dtype.fields.values())


@pytest.mark.parametrize("name", dtypes.STRUCTS)
def test_no_padding_is_implied(name: str) -> None:
    assert dtypes.STRUCTS[name].itemsize == total_bytes(dtypes.STRUCTS[name])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """C expression -> its value, for every size, offset and enumerator the parser found."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    fields = [(name, field) for name, dtype in dtypes.STRUCTS.items() for field in dtype.names or ()]
    asked = [f"sizeof(struct {name})" for name in dtypes.STRUCTS]
    asked += [f"offsetof(struct {name}, {field})" for name, field in fields]
    asked += [f"sizeof(((struct {name} *)0)->{field})" for name, field in fields]
    asked += list(abi.CONSTANTS)
    lines = "\n".join(f'    printf("%lld\\n", (long long)({expression}));' for expression in asked)
    folder = tmp_path_factory.mktemp("abi")
    (folder / "ask.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include <linux/types.h>\n#include "{HEADER}"\n'
        f"int main(void)\n{{\n{lines}\n    return 0;\n}}\n"
    )
    subprocess.run([compiler, "-o", folder / "ask", folder / "ask.c"], check=True)
    answer = subprocess.run([folder / "ask"], check=True, capture_output=True, text=True).stdout
    return dict(zip(asked, map(int, answer.split())))


def test_structs_are_as_the_compiler_lays_them_out(compiled: dict[str, int]) -> None:
    for name, dtype in dtypes.STRUCTS.items():
        assert dtype.itemsize == compiled[f"sizeof(struct {name})"], name
        assert dtype.fields is not None
        for field, (field_type, offset, *_) in dtype.fields.items():
            assert offset == compiled[f"offsetof(struct {name}, {field})"], (name, field)
            assert field_type.itemsize == compiled[f"sizeof(((struct {name} *)0)->{field})"], (name, field)


def test_numbers_are_as_the_compiler_has_them(compiled: dict[str, int]) -> None:
    assert {name: compiled[name] for name in abi.CONSTANTS} == abi.CONSTANTS
    assert abi.CONSTANTS["BP_THREAD_BLOCKED"] == abi.ThreadState["BP_THREAD_BLOCKED"]


def test_everything_in_the_header_was_found() -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    assert set(re.findall(r"^struct (\w+)", text, re.MULTILINE)) == set(dtypes.STRUCTS)
    assert set(re.findall(r"^enum (\w+)", text, re.MULTILINE)) == set(abi.ENUMS)
    assert set(re.findall(r"\b(BP_\w+)\b", text)) <= set(abi.CONSTANTS)


@pytest.mark.parametrize(
    "body",
    [
        "__u32 flags : 3;",
        "int number;",
        "__u64 *pointer;",
        "union { __u32 a; __u32 b; } either;",
        "__u8 name[16][2];",
        "__u32 a, b;",
        "struct bp_later later;",
        "__u8 name[BP_NOT_DEFINED];",
        "#ifdef X\n__u32 a;\n#endif",
    ],
)
def test_a_construct_the_parser_does_not_know_is_refused(body: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        abi._parse_structs(f"struct bp_other {{\n    __u32 known;\n    {body}\n}};\n", {})


@pytest.mark.parametrize("enumerator", ["B,", "B = -1,", "B = 1 << 4,", "B = A,", "B = 0x10,", "B = 2"])
def test_an_enumerator_the_parser_does_not_know_is_refused(enumerator: str) -> None:
    with pytest.raises(ValueError):
        abi._parse_enums(f"enum bp_other {{\n    A = 1, /* first */\n    {enumerator}\n}};\n")


def test_every_status_has_its_own_sentence() -> None:
    statuses = [status for status in abi.Status if status.name != "BP_STATUS_COUNT"]
    sentences = [abi.status_text(status) for status in statuses]
    for status, sentence in zip(statuses, sentences):
        assert sentence and sentence != status.name, f"{status.name} has no comment"
        assert ";" not in sentence and "\n" not in sentence, "it stands in a line of the text contract"
    assert len(set(sentences)) == len(sentences)


def test_statuses_fit_their_fields_and_counters() -> None:
    assert all(status <= abi.Status["BP_STATUS_COUNT"] <= 256 for status in abi.Status)
    assert abi.Status["BP_OK"] == 0


def test_a_native_frame_s_address_leaves_room_for_its_mark() -> None:
    """User addresses of x86-64 have 47 bits; the mark is above them and inside the word."""
    assert 47 <= abi.CONSTANTS["BP_EXACT_BIT"] < 64


def test_a_stack_has_room_for_all_its_frames() -> None:
    words = {name: abi.CONSTANTS[f"BP_MAX_{name}_FRAMES"] for name in ("PYTHON", "NATIVE", "KERNEL")}
    words["PYTHON"] *= dtypes.PYTHON_FRAME_DTYPE.itemsize // 8
    assert sum(words.values()) == abi.CONSTANTS["BP_MAX_STACK_WORDS"]
    for field, kind in (("python_count", "PYTHON"), ("native_count", "NATIVE"), ("kernel_count", "KERNEL")):
        assert abi.CONSTANTS[f"BP_MAX_{kind}_FRAMES"] <= np.iinfo(dtypes.STACK_DTYPE[field]).max


def test_the_header_is_found_in_the_checkout() -> None:
    assert (Path(__file__).resolve().parents[2] / "ebpf" / "abi.h").samefile(HEADER)
