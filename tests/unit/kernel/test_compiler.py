"""Compiled programs come back as they were stored; what a compiler says when it fails is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import btf, compiler
from bpfprof.kernel.btf import kernel_identity
from bpfprof.kernel.compiler import Compilation


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What is compiled, whatever the text."""
    programs = {"on_cpu": bytes(range(256)), "empty": b""}
    monkeypatch.setattr(compiler, "_compile", lambda _text, _flags, _names: programs)
    return programs


def test_what_was_compiled_is_kept(compiled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Compilation.start().result() == compiled
    monkeypatch.setattr(compiler, "_Child", None)
    assert Compilation.start().result() == compiled
    for name, other in (
        ("kernel_identity", b"another"),
        ("keeps_run_delay", not compiler.keeps_run_delay()),
        ("join_includes", "int other;"),
    ):
        with monkeypatch.context() as patch, pytest.raises(TypeError):  # it would be compiled again
            patch.setattr(compiler, name, lambda *_, other=other: other)
            Compilation.start()
    with pytest.raises(TypeError):
        Compilation.start(with_calls=True)


def test_what_the_kernel_can_is_kept_too(compiled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "has_task_pointers", lambda _types: True)
    monkeypatch.setattr(compiler, "has_uprobe_links", lambda _types: True)
    Compilation.start(with_calls=True).result()
    monkeypatch.setattr(compiler, "KernelTypes", None)  # it is not asked again
    again = Compilation.start(with_calls=True)
    assert again.takes_pointer and again.uses_links and again.result() == compiled


def test_a_kernel_without_a_build_id_is_known_by_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < len(kernel_identity()) < 65536
    types, notes = tmp_path / "vmlinux", tmp_path / "notes"
    types.write_bytes(b"types")
    monkeypatch.setattr(btf, "BTF_PATH", types)
    monkeypatch.setattr(btf, "_NOTES_PATH", notes)
    assert kernel_identity() == b"types"
    notes.write_bytes(b"other notes")
    assert kernel_identity() == b"types"
    types.unlink()
    with pytest.raises(UnsupportedError, match="no type information"):
        kernel_identity()


def test_without_types_nothing_that_was_compiled_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(btf, "BTF_PATH", tmp_path / "missing")
    with pytest.raises(UnsupportedError, match="no type information"):
        Compilation.start()


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


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[1]", b'{"a": 5}', b'{"a": "xyz"}'])
def test_what_another_version_kept_is_no_error(content: bytes) -> None:
    private_cache.PrivateCache("", 1 << 20).store("key", content)
    assert Compilation("key")._programs is None


def test_the_files_are_private(folder: Path, compiled: dict[str, bytes]) -> None:
    Compilation.start().result()
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    folder.chmod(0o722)
    assert Compilation(file.name)._programs is None
