"""docs/recording-format.md names everything the code writes, with the right types."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bpfprof.capture.numbers import status_texts
from bpfprof.code.files import FileKind
from bpfprof.model import samples as model
from bpfprof.model.statuses import LastState, NativeFlag
from bpfprof.recording.fields import CODE_COLUMNS, FIELDS
from bpfprof.recording.format import MAGIC, MAX_CHUNK_BYTES, Chunk, encode
from tests.unit.recording.hand_made import chunk_of, small

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "recording-format.md").read_text()
SECTIONS = {kind: body for kind, body in re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)}
TABLES = {
    "samples": [model.SAMPLE_DTYPE],
    "waits": [model.WAIT_DTYPE],
    "totals": [model.TOTAL_DTYPE],
    "stacks": [model.STACK_DTYPE, model.PYTHON_FRAME_DTYPE, model.NATIVE_INDEX_DTYPE],
    "natives": [model.NATIVE_DTYPE],
    "names": [model.NAME_DTYPE],
    "marks": [model.MARK_DTYPE],
    "calls": [model.CALL_DTYPE],
    "task_waits": [model.TASK_WAIT_DTYPE],
    "events": [model.EVENT_DTYPE],
    "lock_holders": [model.LOCK_HOLDER_DTYPE],
}


def rows(section: str) -> dict[str, str]:
    """Name -> type of each row of the tables of a section."""
    found = {}
    for names, type_text in re.findall(r"^\| ((?:`\w+` ?)+)\| (.*?) \|", SECTIONS[section], re.MULTILINE):
        found.update({name: type_text for name in re.findall(r"\w+", names)})
    return found


def written_kinds() -> set[str]:
    """The kinds that any call of write() in the package names."""
    sources = "".join(path.read_text() for path in (ROOT / "bpfprof").rglob("*.py"))
    return set(re.findall(r'sink\.write\(\s*"(\w+)"', sources))


def test_every_kind_has_its_section() -> None:
    kinds = written_kinds()
    assert {"start", "samples", "end"} <= kinds
    assert set(SECTIONS) == kinds | {"marks"} == {chunk.kind for chunk in small().chunks()}


@pytest.mark.parametrize("kind", TABLES)
def test_every_column_is_named_with_its_type(kind: str) -> None:
    documented = rows(kind)
    for dtype in TABLES[kind]:
        for name in dtype.names or ():
            field = dtype[name]
            expected = f"`{field.base.str}`" if not field.shape else f"{field.shape[0]} x `{field.base.str}`"
            assert documented[name].replace("\\|", "|") == expected, name
    assert set(documented) == {name for dtype in TABLES[kind] for name in dtype.names or ()}


def test_every_json_field_is_named() -> None:
    for kind, fields in FIELDS.items():
        assert set(rows(kind)) == set(fields), kind
    assert set(rows("codes")) == {*CODE_COLUMNS, "linetable_ends", "linetables"}
    assert list(rows("codes"))[: len(CODE_COLUMNS)] == list(CODE_COLUMNS), "columns in their order"


def test_every_array_is_named() -> None:
    for chunk in small().chunks():
        for name in chunk.arrays:
            assert f"`{name}`" in SECTIONS[chunk.kind], (chunk.kind, name)


def test_the_fields_of_names_and_marks_are_named() -> None:
    for kind in ("names", "marks", "calls", "task_waits"):
        for name in chunk_of(small().chunks(), kind).fields:
            assert f"`{name}`" in SECTIONS[kind]


def test_the_kinds_of_files_are_listed() -> None:
    line = next(line for line in SECTIONS["files"].splitlines() if line.startswith("| `kind`"))
    assert set(re.findall(r"`(\w+)`", line)) - {"kind"} == {kind.value for kind in FileKind}


def test_flags_and_special_numbers_are_those_of_the_code() -> None:
    assert f"{model.NO_FILE}: in no known mapping" in SECTIONS["natives"]
    assert f"{model.NATIVE_EXACT}: of an instruction that ran" in SECTIONS["natives"]
    assert f"{model.NAME_INLINED}: inlined" in SECTIONS["names"] and f"{model.NAME_EVAL}: CPython" in SECTIONS["names"]
    flags = next(line for line in SECTIONS["stacks"].splitlines() if line.startswith("| `native_flags`"))
    assert [int(number) for number in re.findall(r"\b(\d+): ", flags)] == list(NativeFlag)


def test_every_status_is_listed_with_its_text() -> None:
    (section,) = re.findall(r"^## Statuses\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)
    listed = {int(number): text for number, text in re.findall(r"^\| (\d+) \| (.*?) \|", section, re.MULTILINE)}
    assert {str(number): text for number, text in listed.items()} == status_texts()


def test_the_states_of_a_thread_are_listed() -> None:
    states = next(line for line in SECTIONS["totals"].splitlines() if line.startswith("| `state`"))
    assert [int(number) for number in re.findall(r"\b(\d) ", states)] == list(LastState)


def test_the_example_is_right_to_the_byte() -> None:
    (block,) = re.findall(r"```\n(43 48 4e 4b.*?)```", TEXT, re.DOTALL)
    shown = [byte for line in block.splitlines() for byte in re.findall(r"\b[0-9a-f]{2}\b", line[:49])]
    data = encode(Chunk("end"))
    assert bytes.fromhex("".join(shown)) == data
    assert f"these {len(data)} bytes" in TEXT


def test_numbers_of_the_text() -> None:
    assert str(MAX_CHUNK_BYTES) in TEXT and f"version 0x{MAGIC[-1]:02x}" in TEXT and f"now {MAGIC[-1]}" in TEXT


def test_the_types_shown_are_those_allowed() -> None:
    for dtypes in TABLES.values():
        for dtype in dtypes:
            assert dtype.itemsize == sum(np.dtype(dtype[name]).itemsize for name in dtype.names or ()), "packed"
