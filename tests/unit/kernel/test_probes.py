"""Uprobes where the kernel has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.errors import UnsupportedError
from bpfprof.kernel import probes


@pytest.mark.parametrize("content", [None, "", "x"])
def test_a_kernel_without_them(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if content is not None:
        (tmp_path / "format").mkdir()
        (tmp_path / "type").write_text(content)
        (tmp_path / "format" / "retprobe").write_text("config:0\n")
    monkeypatch.setattr(probes, "_PMU", tmp_path)
    with pytest.raises(UnsupportedError, match="no uprobes") as told:
        probes.check_probes()
    assert told.value.exit_code == 3
