"""Where the evaluation function is, kept between runs: read once, and the same from the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfprof import private_cache
from bpfprof.cpython.eval_ranges import EvalRanges, eval_ranges
from bpfprof.elf.image import ElfImage
from bpfprof.names import elf_names
from bpfprof.names.elf_names import ElfNames, kept_eval_ranges


def test_a_stripped_interpreter_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path)
    read: list[ElfImage] = []

    def count(image: ElfImage) -> EvalRanges:
        read.append(image)
        return eval_ranges(image)

    monkeypatch.setattr(elf_names, "eval_ranges", count)
    with ElfImage.open("/usr/bin/python3.11") as image:
        first, second = kept_eval_ranges(image), kept_eval_ranges(image)
    assert len(read) == 1 and len(first.starts)
    for name in ("starts", "ends", "is_handler"):
        kept = getattr(second, name)
        assert kept.dtype == getattr(first, name).dtype and (kept == getattr(first, name)).all()
    (file,) = (tmp_path / "eval").iterdir()
    file.write_bytes(b"damaged")
    with ElfImage.open("/usr/bin/python3.11") as image:
        assert (kept_eval_ranges(image).starts == first.starts).all()
    assert len(read) == 2


@pytest.mark.parametrize(("large_bytes", "searches"), [(1, 0), (1 << 30, 1)])
def test_that_a_large_file_has_none_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, large_bytes: int, searches: int
) -> None:
    monkeypatch.setattr(private_cache, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(elf_names, "_LARGE_BYTES", large_bytes)
    path = np.linalg._umath_linalg.__file__
    with ElfImage.open(path) as image:
        assert not len(kept_eval_ranges(image).starts)
    found: list[str] = []
    monkeypatch.setattr(ElfImage, "find_symbol", lambda _, name: found.append(name))
    with ElfImage.open(path) as image:
        assert not len(kept_eval_ranges(image).starts)
    assert len(found) == searches


def test_stubs_are_read_for_addresses_of_stubs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with ElfImage.open("/usr/bin/python3.11") as image:
        section = image.section(".plt")
        assert section is not None
        names = ElfNames(image)
        stub = section.address + 0x21  # the second, behind the first that all share
        around = np.array([section.address - 1, section.address + section.size, 1], np.uint64)
        monkeypatch.setattr(elf_names, "read_plt", lambda _: pytest.fail("nothing is asked of them"))
        assert not any(name.endswith("@plt") for name in names.functions(around))
        monkeypatch.undo()
        assert names.functions(np.append(around, np.uint64(stub)))[-1].endswith("@plt")
