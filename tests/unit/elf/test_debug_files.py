from __future__ import annotations

import os
import shutil
import stat
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.elf.image import ElfImage
from bpfprof.elf.symbols.debug_files import find_debug_file, open_inside, read_debug_link
from tests.unit.measured import no_descriptor_more

PLACES = ("lib/{}", "lib/.debug/{}", "usr/lib/debug/lib/{}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with /lib/liba.so, stripped, with a debug link; its debug file is at /debug."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.c").write_text("static int f(int x) { return x; } int (*p)(int) = f;")
    library, debug = tmp_path / "lib/liba.so", tmp_path / "liba.so.debug"
    command = ["gcc", "-g", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", str(library), str(tmp_path / "lib/a.c")]
    subprocess.run(command, check=True)
    subprocess.run(["objcopy", "--only-keep-debug", str(library), str(debug)], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", str(library)], check=True)
    debug.rename(tmp_path / "debug")
    return tmp_path


@pytest.fixture
def image(root: Path) -> Iterator[ElfImage]:
    with ElfImage.open(str(root / "lib/liba.so")) as image:
        yield image


def is_found(image: ElfImage, root: Path) -> bool:
    debug = find_debug_file(image, "/lib/liba.so", str(root))
    if debug is None:
        return False
    with debug:
        assert debug.build_id == image.build_id
        assert debug.section(".symtab") is not None
    return True


def place(root: Path, path: str) -> Path:
    where = root / path
    where.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "debug", where)
    return where


def by_build_id(image: ElfImage) -> str:
    return f"usr/lib/debug/.build-id/{image.build_id[:2]}/{image.build_id[2:]}.debug"


def test_none_anywhere(image: ElfImage, root: Path) -> None:
    assert not is_found(image, root)


def test_by_build_id(image: ElfImage, root: Path) -> None:
    place(root, by_build_id(image))
    assert is_found(image, root)


@pytest.mark.parametrize("pattern", PLACES)
def test_by_debug_link(image: ElfImage, root: Path, pattern: str) -> None:
    where = place(root, pattern.format("liba.so.debug"))
    assert read_debug_link(image) == ("liba.so.debug", zlib.crc32(where.read_bytes()))
    assert is_found(image, root)
    with where.open("ab") as file:
        file.write(b"\0")
    assert not is_found(image, root)


def test_a_debug_file_of_another_build(image: ElfImage, root: Path) -> None:
    where = place(root, by_build_id(image))
    data = where.read_bytes()
    position = data.index(bytes.fromhex(image.build_id))
    where.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    assert not is_found(image, root)


def test_nothing_but_a_regular_file_is_opened(image: ElfImage, root: Path) -> None:
    where = place(root, by_build_id(image))
    where.unlink()
    os.mkfifo(where)
    assert not is_found(image, root)
    where.unlink()
    where.mkdir()
    assert not is_found(image, root)


def test_symbolic_links_stay_inside(image: ElfImage, root: Path) -> None:
    where = place(root, by_build_id(image))
    for target in ("/debug", "../../../../../../../../../../../debug"):
        where.unlink()
        where.symlink_to(target)
        assert is_found(image, root)
    where.unlink()
    where.symlink_to(root / "debug")  # there is no such path below the root
    assert not is_found(image, root)
    where.unlink()
    where.symlink_to(where.name)
    assert not is_found(image, root)


@pytest.mark.parametrize("name", [b"../debug", b"/debug", b"..", b".", b"", b"a/b", b"x" * 300])
def test_a_link_that_is_more_than_a_name(image: ElfImage, root: Path, name: bytes, tmp_path: Path) -> None:
    raw = name + b"\0" * (4 - len(name) % 4) + zlib.crc32((root / "debug").read_bytes()).to_bytes(4, "little")
    (tmp_path / "link").write_bytes(raw)
    library = str(root / "lib/liba.so")
    subprocess.run(["objcopy", "--remove-section=.gnu_debuglink", library], check=True)
    subprocess.run(["objcopy", f"--add-section=.gnu_debuglink={tmp_path / 'link'}", library], check=True)
    with ElfImage.open(library) as image:
        assert read_debug_link(image) is None
        assert find_debug_file(image, "/lib/liba.so", str(root)) is None


def test_open_inside(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    (tmp_path / "link").symlink_to("a/b/file")
    for path in ("a/b/file", "/a/./b/../b//file", "../../a/b/file", "link"):
        fd = open_inside(str(tmp_path), path)
        assert stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, 2) == b"x"
        os.close(fd)
    with no_descriptor_more():
        for path in ("a/b", "", "a/b/file/x", "/etc/passwd", "a/" * 300 + "b"):
            with pytest.raises(OSError):
                open_inside(str(tmp_path), path)
        with pytest.raises(OSError):
            open_inside(str(tmp_path), "link", follow_last=False)
        with pytest.raises(OSError):
            open_inside("/dev", "null")
