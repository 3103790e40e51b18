"""Code objects and strings read back from this very process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bpfprof.cpython.code_objects import (
    IDENTITY_WORDS,
    CodeObject,
    Unresolved,
    read_code_identity,
    read_code_object,
    read_text,
)
from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.cpython.layout import NONE
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import CopiedMemory, ProcessMemory


@pytest.fixture(scope="module")
def here() -> Iterator[tuple[ProcessMemory, Interpreter]]:
    with ProcessMemory(Pid(os.getpid())) as memory:
        interpreter = find_interpreter(Pid(os.getpid()), memory)
        if not isinstance(interpreter, Interpreter):
            pytest.skip(f"these tests run on a supported CPython: {interpreter.reason}")
        yield memory, interpreter


Here = tuple[ProcessMemory, Interpreter]


def _compiled(source: str, filename: str = "f.py") -> CodeObject | Unresolved:
    code = compile(source, filename, "exec").co_consts[0]
    with ProcessMemory(Pid(os.getpid())) as memory:
        interpreter = find_interpreter(Pid(os.getpid()), memory)
        if not isinstance(interpreter, Interpreter):
            pytest.skip(f"these tests run on a supported CPython: {interpreter.reason}")
        return read_code_object(memory, interpreter.layout, id(code), interpreter.code_type_address)


def test_fields_of_a_function(here: Here) -> None:
    memory, interpreter = here
    code = test_fields_of_a_function.__code__
    found = read_code_object(memory, interpreter.layout, id(code), interpreter.code_type_address)
    assert isinstance(found, CodeObject)
    has_qualname = hasattr(code, "co_qualname")
    names = [code.co_filename, code.co_name, *([code.co_qualname] if has_qualname else [])]
    table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
    assert [found.filename, found.name, found.qualname] == (names if has_qualname else [*names, code.co_name])
    assert (found.first_line, found.linetable) == (code.co_firstlineno, table)
    assert found.identity[10 - len(names) : 10] == tuple(map(id, names))
    has_version = interpreter.layout.code_version != NONE
    assert found.identity[11] == (0 if has_version else hash(code.co_name) % (1 << 64))
    assert read_code_identity(memory, interpreter.layout, id(code)) == found.identity
    without_type = read_code_object(memory, interpreter.layout, id(code))
    assert without_type == found


@pytest.mark.parametrize(
    "text",
    ["", "a", "a" * 500, "é", "größe", "функция", "函数", "𐐀ñ", "a" * 300 + "é", "x" * 200 + "𐐀"],
)
def test_strings_of_every_width(here: Here, text: str) -> None:
    memory, interpreter = here
    assert read_text(memory, interpreter.layout, id(text), 1024) == text


def test_strings_that_are_cut_or_cleaned(here: Here) -> None:
    memory, interpreter = here
    for text, limit, expected in [
        ("a" * 2000, 1024, "a" * 1023 + "…"),
        ("函" * 2000, 1024, "函" * 1023 + "…"),
        ("𐐀" * 5, 4, "𐐀𐐀𐐀…"),
        ("a\nb\x1b", 10, "a\ufffdb\ufffd"),
        ("a\udc80b", 10, "a\ufffdb"),
        ("𐐀\ud800b", 10, "𐐀\ufffdb"),
    ]:
        assert read_text(memory, interpreter.layout, id(text), limit) == expected


def test_an_instance_of_a_subclass_of_str(here: Here) -> None:
    class Text(str):
        pass

    memory, interpreter = here
    for content in ("plain", "größe", "函数"):
        text = Text(content)
        assert read_text(memory, interpreter.layout, id(text), 100) == content


@pytest.mark.parametrize("name", ["f", "größe", "関数", "n" * 400])
@pytest.mark.parametrize("text_bytes", [16, 512])
def test_a_copy_is_read_like_the_process(here: Here, name: str, text_bytes: int) -> None:
    """Copies that end in the middle of a text are no copies of it."""
    memory, interpreter = here
    code = compile(f"def {name}(): return 1", "<copied>", "exec").co_consts[0]
    layout, found = interpreter.layout, read_code_object(memory, interpreter.layout, id(code))
    assert isinstance(found, CodeObject)
    texts = [code.co_filename, code.co_name, getattr(code, "co_qualname", code.co_name)]
    table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
    table_at = found.identity[IDENTITY_WORDS - 1]
    copies = [(id(code), layout.code_linetable + 8), (table_at, layout.bytes_data + len(table))]
    copies += [(id(text), text_bytes) for text in texts]
    copied = CopiedMemory([(at, memory.read_up_to(at, size)) for at, size in copies])
    again = read_code_object(copied, layout, id(code), interpreter.code_type_address)
    assert again == found if text_bytes > 400 else isinstance(again, Unresolved)


def test_long_tables_and_names() -> None:
    body = "\n".join(f"    x{i} = y[{i}]\n\n" for i in range(3000))
    found = _compiled(f"def {'n' * 3000}(y):\n{body}", "/" + "d" * 5000)
    assert isinstance(found, CodeObject)
    assert len(found.linetable) > 4096
    assert found.name == "n" * 1023 + "…" and found.filename == "/" + "d" * 4094 + "…"


def test_what_is_not_a_code_object(here: Here) -> None:
    memory, interpreter = here
    anything = [0, 1, 8, 2**47, 2**63, 2**64 - 8, id(None), id([]), id("text"), id(object())]
    for address in anything:
        found = read_code_object(memory, interpreter.layout, address, interpreter.code_type_address)
        assert isinstance(found, Unresolved) and found.reason
        read_code_object(memory, interpreter.layout, address)  # without the type it may be wrong, but must return
    for address in anything:
        read_text(memory, interpreter.layout, address, 100)
    assert read_code_identity(memory, interpreter.layout, 8) is None
