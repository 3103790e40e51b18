"""Readable names are kept between runs, and only those that this library made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.names import demangled
from bpfprof.names.demangled import Demangled, can_demangle

pytestmark = pytest.mark.skipif(not can_demangle(), reason="no demangler for this Python")

NAMES = {
    "_ZN2at6Tensor3addEv": "at::Tensor::add()",
    "_Z3foov": "foo()",
    "_Z9short": "_Z9short",
    "_Z\udc80": "_Z\udc80",
}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the library is asked for; what is kept is below a folder of the test's own."""
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    asked, library = list[str](), demangled._demangler()

    def count(name: str) -> str:
        asked.append(name)
        return library(name)

    monkeypatch.setattr(demangled, "_demangler", lambda: count)
    return asked


def run(names: dict[str, str]) -> None:
    """What one run does, and what it finds."""
    made = Demangled()
    for _ in range(2):
        assert {name: made(name) for name in names} == names
    made.keep()


def kept(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "cache" / "names").glob("*")]


def test_a_later_run_asks_for_new_names_only(asked: list[str]) -> None:
    run(NAMES)
    assert asked == [*NAMES]
    run(NAMES)
    run({**NAMES, "_Z3barv": "bar()"})
    run({"_Z3barv": "bar()"})
    run(NAMES)  # what the run before did not need is still there
    assert asked == [*NAMES, "_Z3barv"]


@pytest.mark.parametrize("content", [b"", b"damaged", b"\xff\0x"])
def test_what_is_damaged_is_asked_for_again(asked: list[str], tmp_path: Path, content: bytes) -> None:
    run(NAMES)
    (file,) = kept(tmp_path)
    file.write_bytes(content)
    run(NAMES)
    file.write_bytes(private_cache._checksum(content) + content)
    run(NAMES)
    assert asked == [*NAMES] * 3


def test_another_library_has_names_of_its_own(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(NAMES)
    other = tmp_path / "__init__.py"
    other.write_text("x")
    os.utime(other, (1, 1))
    monkeypatch.setattr(demangled, "_library", lambda: str(other))
    run(NAMES)
    assert asked == [*NAMES] * 2 and len(kept(tmp_path)) == 2
    monkeypatch.setattr(demangled, "_library", lambda: "/nowhere")
    run(NAMES)
    assert asked == [*NAMES] * 3 and len(kept(tmp_path)) == 2


def test_there_is_no_more_than_a_file_may_have(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = (dict([item]) for item in [*NAMES.items()][:2])
    limit = len("\0".join([*first, *first.values()]))
    monkeypatch.setattr(demangled, "_CACHE", private_cache.PrivateCache("names", limit))
    run(first)
    run(second)  # both are too much: those of the last run stay
    run(second)
    run(first)
    assert asked == [*first, *second, *first]
    run(NAMES)  # all of it is
    assert all(file.stat().st_size < limit + 100 for file in kept(tmp_path))


def test_no_more_is_in_memory_than_may_be(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demangled, "_MOST_CHARACTERS", 60)
    made = Demangled()
    for _ in range(2):
        for name, readable in NAMES.items():
            assert made(name) == readable
            assert sum(map(len, [*made._used, *made._used.values()])) <= 60
    assert len(asked) > len(NAMES)
