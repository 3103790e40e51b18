"""Compiled programs come back as they were stored; what a compiler says when it fails is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.errors import UnsupportedError
from bpfprof.kernel import compiler
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
    monkeypatch.setattr(Compilation, "_fork", None)
    assert Compilation.start().result() == compiled
    monkeypatch.setattr(compiler, "compiler_flags", lambda *_: ["-O1"])
    with pytest.raises(TypeError):  # it would be compiled again
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
    assert Compilation("key", takes_pointer=True)._programs is None


def test_the_files_are_private(folder: Path, compiled: dict[str, bytes]) -> None:
    Compilation.start().result()
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    folder.chmod(0o722)
    assert Compilation(file.name, takes_pointer=True)._programs is None
