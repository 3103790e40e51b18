"""Where the evaluation function is, kept between runs: read once, and the same from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof import private_cache
from bpfprof.cpython.eval_ranges import EvalRanges, eval_ranges
from bpfprof.elf.image import ElfImage
from bpfprof.names import elf_names
from bpfprof.names.elf_names import kept_eval_ranges


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
