"""Compiled programs come back as they were stored, under the key of what they were made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.kernel import program_cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_what_is_stored_comes_back() -> None:
    programs = {"on_cpu": bytes(range(256)), "empty": b""}
    key = program_cache.cache_key("text", ["-O2"])
    assert program_cache.load(key) is None
    program_cache.store(key, programs)
    assert program_cache.load(key) == programs
    assert program_cache.load(program_cache.cache_key("text", ["-O1"])) is None


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[1]", b'{"a": 5}', b'{"a": "xyz"}'])
def test_what_another_version_kept_is_no_error(content: bytes) -> None:
    private_cache.PrivateCache("", 1 << 20).store("key", content)
    assert program_cache.load("key") is None


def test_the_files_are_private(folder: Path) -> None:
    program_cache.store("key", {"a": b"1"})
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "key").stat().st_mode & 0o777 == 0o600
    folder.chmod(0o722)
    assert program_cache.load("key") is None
