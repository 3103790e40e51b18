"""What is kept of a file is told from what it was made from: the bytes, or that nobody changed the file meanwhile."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.elf import parts
from bpfprof.elf.image import ElfImage

READ = np.array([[0, 64], [4096, 8192]], np.uint64)


class Digests:
    """How often the bytes of a file are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._real = 0, parts.digest_of
        monkeypatch.setattr(parts, "digest_of", self._made)

    def _made(self, image: ElfImage, read: parts.Parts) -> bytes:
        self.count += 1
        return self._real(image, read)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file on a disk, which was changed long ago."""
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(os, "major", lambda device: 8)
    monkeypatch.setattr(parts, "_SETTLED_NS", 0)
    return Path(shutil.copyfile(os.path.realpath(sys.executable), tmp_path / "program"))


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Digests:
    return Digests(monkeypatch)


def has(path: Path, digest: bytes, name: str = "rows") -> bool:
    with ElfImage.open(str(path)) as image:
        return parts.has_digest(image, READ, digest, name)


def made(path: Path, name: str = "rows") -> bytes:
    with ElfImage.open(str(path)) as image:
        return parts.digest_for(image, READ, name)


def test_the_bytes_are_read_once(path: Path, digests: Digests) -> None:
    digest = made(path)
    assert digests.count == 1 and len(digest) == parts.DIGEST_BYTES
    assert has(path, digest) and has(path, digest) and digests.count == 1
    assert not has(path, bytes(len(digest))), "something else was kept"


def test_what_is_made_for_something_else_is_of_other_parts(path: Path, digests: Digests) -> None:
    digest = made(path, "names")
    assert has(path, digest, "rows") and digests.count == 2


@pytest.mark.parametrize("place", [5000, 9000])
def test_a_file_that_was_changed_is_read_again(path: Path, digests: Digests, place: int) -> None:
    """Also if its time of change was put back."""
    digest, before = made(path), path.stat()
    with open(path, "r+b") as file:
        file.seek(place)
        old = file.read(1)
        file.seek(place)
        file.write(bytes([old[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert has(path, digest) == (place == 9000) and digests.count == 2


def test_another_file_of_the_same_name_is_read(path: Path, digests: Digests) -> None:
    digest = made(path)
    shutil.copy2(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)
    assert has(path, digest) and digests.count == 2


def test_a_file_that_was_changed_just_now_may_be_changed_again(
    path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_SETTLED_NS", 10**12)
    digest = made(path)
    assert has(path, digest) and has(path, digest) and digests.count == 3


def test_a_file_system_that_is_on_no_disk_is_not_believed(
    path: Path, digests: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "major", lambda device: 0)
    digest = made(path)
    assert has(path, digest) and has(path, digest) and digests.count == 3
