"""Kept rows: the same when they come back, and never those of another file, owner or version."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.elf.cfi import tables
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.elf.parts import cache_name
from bpfprof.private_cache import PrivateCache
from bpfprof.unwind import cache
from bpfprof.unwind.cache import load_rows, pack, unpack
from tests.unit.elf.frame_builder import CODE, FrameBuilder
from tests.unit.measured import least_cpu_s

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "rows"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(50):
        builder.fde(cie, CODE + index * 0x100, 0x80, b"\x41\x0e\x10\x41\x0e\x18")
    path = tmp_path / "program"
    path.write_bytes(builder.elf())
    return path


def find_library() -> Path:
    """The C library that this process runs with: its assembly has functions without call frame information."""
    maps = Path("/proc/self/maps").read_text()
    return Path(next(word for word in maps.split() if word.endswith("/libc.so.6")))


def load(path: Path) -> tuple[list[int], list[int]]:
    with ElfImage.open(str(path)) as image:
        table, rules = load_rows(image, os.stat(path))
    return table.rows.tolist(), rules["cfa_offset"].tolist()


def test_the_second_time_nothing_is_decoded(folder: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(program)
    monkeypatch.setattr(tables, "read_call_frames", lambda *_arguments: pytest.fail("decoded again"))
    assert load(program) == first
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "link", "fifo", "writable"])
def test_a_damaged_file_is_made_again(damage: str, folder: Path, program: Path, tmp_path: Path) -> None:
    first = load(program)
    (kept,) = folder.iterdir()
    content = kept.read_bytes()
    if damage == "flip":
        kept.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    elif damage in ("cut", "grow", "empty"):
        kept.write_bytes({"cut": content[:-4], "grow": content + bytes(4), "empty": b""}[damage])
    elif damage == "writable":
        kept.chmod(0o666)
    else:
        kept.unlink()
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(content)
            kept.symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(kept)
    assert load(program) == first
    assert kept.is_file() and not kept.is_symlink() and kept.read_bytes() == content
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_others_can_write_is_not_used(folder: Path, program: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    load(program)
    assert not list(folder.iterdir())


def test_without_a_place_to_keep_it_works(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path / "file")
    assert load(program) == load(program)


def test_a_refused_file_is_not_kept(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "arm"
    path.write_bytes(FrameBuilder().elf()[:18] + b"\xb7\0" + FrameBuilder().elf()[20:])
    with pytest.raises(ElfError):
        load(path)
    assert not folder.exists()


def test_names(program: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(program.read_bytes())
    status = os.stat(program)
    values = list(status)
    values[4] += 1  # st_uid

    def name(path: Path, build_id: str, status: os.stat_result | None = None) -> str:
        with ElfImage.open(str(path)) as image:
            image.build_id = build_id
            return cache_name(image, status or os.stat(path), 1)

    assert name(program, BUILD_ID) == name(copy, BUILD_ID)
    names = {name(program, BUILD_ID), name(program, BUILD_ID, os.stat_result(values)), name(program, BUILD_ID[::-1])}
    names |= {name(program, ""), name(copy, ""), name(copy, "00" * 20)}
    assert len(names) == 5  # a build id of zeros is none
    os.utime(program, ns=(1, 1))
    assert name(program, "") != name(program, "", status)


@pytest.mark.parametrize("changed", ["frames", "address", "segment", "code", "nothing"])
def test_a_file_that_says_it_is_another_one_has_its_own_rows(
    changed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same build id, size and owner: neither is unwound by the rules of the other, whichever was there first."""
    library = find_library()
    content = bytearray(library.read_bytes())
    with ElfImage.open(str(library)) as image:
        assert len(image.build_id) == 40
        frames, parts = image.section(".eh_frame"), load_rows(image, os.stat(library))[0].parts
        first = image.segments[0]
    assert frames is not None
    if changed == "frames":
        content[frames.offset + frames.size // 2] ^= 1
    elif changed == "address":
        at = content.rindex(frames.address.to_bytes(8, "little") + frames.offset.to_bytes(8, "little"))
        content[at : at + 8] = (frames.address + 16).to_bytes(8, "little")
    elif changed == "segment":  # the program header's size in memory
        at = content.index(first.file_size.to_bytes(8, "little") + first.memory_size.to_bytes(8, "little"))
        content[at + 8] ^= 16
    elif changed == "code":  # which tells the rules of functions that have none
        begin = next(begin for begin, end in parts.tolist() if begin > 4096 and not frames.offset <= begin < end)
        content[begin] ^= 0xFF
    other = tmp_path / "other"
    other.write_bytes(content)
    os.chown(other, library.stat().st_uid, -1)
    decoded, decode_rows = list[str](), cache.decode_rows

    def count(image: ElfImage) -> tuple[cache.FileRows, cache.Rules]:
        decoded.append(os.readlink(f"/proc/self/fd/{image.fileno()}"))
        return decode_rows(image)

    monkeypatch.setattr(cache, "decode_rows", count)
    for path in (library, other, other, library):
        with ElfImage.open(str(path)) as image:
            load_rows(image, os.stat(path))
    assert decoded == ([] if changed == "nothing" else [str(other), str(library)])


def test_unpack_refuses_what_is_out_of_bounds(folder: Path, program: Path) -> None:
    with ElfImage.open(str(program)) as image:
        table, rules = load_rows(image, os.stat(program))
    content = pack(table, rules)
    again = unpack(content)
    assert again is not None and again[0].rows.tolist() == table.rows.tolist() and (again[1] == rules).all()
    header = 40
    pages_at = header + rules.nbytes
    rows_at = pages_at + table.pages.nbytes
    for at, value in (
        *(
            (0, 1),
            (8, 99),
            (12, 1),
            (12, 1 << 30),
            (16, 0),
            (20, 0),
            (24, 1 << 31),
            (28, 1 << 31),
            (32, 99),
            (header, 0xFF),
        ),
        *(
            (header + 1, 0xFF),
            (pages_at, 0),
            (pages_at + 4, 1 << 30),
            (rows_at - 4, 5),
            (rows_at, 2),
            (rows_at + 4, 999),
        ),
    ):
        damaged = bytearray(content)
        damaged[at : at + 4] = value.to_bytes(4, "little")
        assert at == 24 or unpack(bytes(damaged)) is None, (at, value)
    assert all(unpack(content[:size]) is None for size in range(0, len(content), 7))


def test_any_damage_gives_rows_that_can_be_searched(folder: Path, program: Path) -> None:
    with ElfImage.open(str(program)) as image:
        content = pack(*load_rows(image, os.stat(program)))
    rng = np.random.default_rng(3)
    for _ in range(2000):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(content)))] = int(rng.integers(256))
        found = unpack(bytes(damaged))
        if found is not None:
            table, rules = found
            assert table.pages[0] == 1 and int(table.pages.max()) == len(table.rows)
            assert int((table.rows & 0xFFFFF).max()) < len(rules)


def test_the_oldest_go_when_there_are_too_many(folder: Path) -> None:
    kept = PrivateCache("rows", file_limit_bytes=100, total_limit_bytes=300)
    for index in range(5):
        kept.store(f"{index}", bytes(75))
        os.utime(folder / f"{index}", ns=(index, index))
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3", "4"]
    kept.store("large", bytes(101))
    assert kept.load("large") is None and kept.load("3") == bytes(75)


@pytest.mark.second_tier
def test_a_large_file_is_quick(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as libtorch_cpu has."""
    rows = np.arange(2_600_000, dtype=np.uint32) % 1500
    pages = np.linspace(1, len(rows), 69_000).astype(np.uint32)
    rules = np.zeros(1500, cache.RULE)
    cache._CACHE.store("name", pack(cache.FileRows(0, pages, rows), rules))

    def load() -> None:
        content = cache._CACHE.load("name")
        assert content is not None and unpack(content) is not None

    assert least_cpu_s(load, 0.05) < 0.05
