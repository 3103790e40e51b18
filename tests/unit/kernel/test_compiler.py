"""Compiled programs come back as they were stored; what a compiler says when it fails is told."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.abi import CONSTANTS
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import compiler
from bpfprof.kernel.compiler import Compilation
from bpfprof.kernel.kernel_facts import KernelFacts
from bpfprof.kernel.sources import NUMBERS

FACTS = KernelFacts(takes_pointer=True, uses_links=True, numbers=(8,) * len(NUMBERS))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(compiler, "READY_MADE", tmp_path / "ready made")
    monkeypatch.setattr(compiler, "kernel_facts", lambda: FACTS)
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What is compiled, whatever the text."""
    programs = {"on_cpu": bytes(range(256)), "empty": b""}
    monkeypatch.setattr(compiler, "_compile", lambda _text, _flags, _names: programs)
    return programs


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_text: str, _flags: list[str], _names: list[str]) -> dict[str, bytes]:
        raise ValueError("no such thing")

    monkeypatch.setattr(compiler, "_compile", fail)
    with pytest.raises(UnsupportedError, match="could not be compiled: ValueError: no such thing"):
        Compilation.start().result()
    compilation = Compilation.start()
    compilation.interrupt()
    with pytest.raises(UnsupportedError, match="could not be compiled"):
        compilation.result()
    Compilation.start().cancel()


def test_what_was_compiled_is_kept(compiled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Compilation.start().result() == compiled
    monkeypatch.setattr(compiler, "_Child", None)
    assert Compilation.start().result() == compiled
    with monkeypatch.context() as patch, pytest.raises(TypeError):  # it would be compiled again
        patch.setattr(compiler, "join_includes", lambda _: "int other;")
        Compilation.start()
    with pytest.raises(TypeError):
        Compilation.start(with_calls=True)


def test_programs_are_of_what_a_kernel_can_and_have_the_numbers_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    code = struct.pack("<BBhiQ", 0x18, CONSTANTS["BP_PSEUDO_KERNEL"] << 4 | 1, 0, 2, 0)
    monkeypatch.setattr(compiler, "_compile", lambda _text, _flags, _names: {"on_cpu": code})
    assert Compilation.start().result() == {"on_cpu": struct.pack("<BBhiQ", 0x18, 1, 0, 8, 0)}
    monkeypatch.setattr(compiler, "_Child", None)
    numbers = dataclasses.replace(FACTS, numbers=tuple(range(100, 100 + len(NUMBERS))))
    assert Compilation.of(numbers, False).result() == {"on_cpu": struct.pack("<BBhiQ", 0x18, 1, 0, 102, 0)}
    assert Compilation.of(dataclasses.replace(FACTS, uses_links=False), False).result()  # only calls use them
    with pytest.raises(TypeError):
        Compilation.of(dataclasses.replace(FACTS, takes_pointer=False), False)


def test_ready_made_programs_need_no_compiler(compiled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = Compilation.start()
    content = compilation.content()
    compiler.READY_MADE.mkdir()
    (compiler.READY_MADE / compilation.file_name).write_bytes(content)

    def no_bcc() -> str:
        raise UnsupportedError("there is no BCC")

    monkeypatch.setattr(compiler, "check_bcc", no_bcc)
    assert Compilation.start().result() == compiled
    with pytest.raises(UnsupportedError, match="there is no BCC"):
        Compilation.start(with_calls=True)


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[1]", b'{"a": 5}', b'{"a": "xyz"}'])
def test_what_another_version_kept_is_no_error(content: bytes) -> None:
    private_cache.PrivateCache("", 1 << 20).store("key", content)
    assert Compilation("key", FACTS)._programs is None


def test_the_files_are_private(folder: Path, compiled: dict[str, bytes]) -> None:
    Compilation.start().result()
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    folder.chmod(0o722)
    assert Compilation(file.name, FACTS)._programs is None
