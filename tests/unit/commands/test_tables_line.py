"""What is said while unwind tables are made."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from bpfprof.capture.watch import TablesWait
from bpfprof.code.files import CodeFile, FileKind
from bpfprof.commands import tables_line
from bpfprof.commands.tables_line import TablesLine
from bpfprof.commands.terminal import CLEAR_LINE
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid


def file(path: str, size: int, is_ready: bool) -> CodeFile:
    image = ElfImage.__new__(ElfImage)
    image._fd, image.file_size = -1, size
    return CodeFile(1, FileKind.ELF, path, Pid(1), image=image, is_ready=is_ready)


NOW_S = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still."""
    monkeypatch.setattr(tables_line, "time", SimpleNamespace(monotonic=lambda: NOW_S))


def told(capfd: pytest.CaptureFixture[str], files: list[CodeFile], waited_s: float) -> str:
    """In a pipe, where nothing is said before the end."""
    line, begin_s = TablesLine(), NOW_S - waited_s
    line.update(TablesWait(begin_s, files))
    assert capfd.readouterr() == ("", "")
    line.update(TablesWait(begin_s, files, is_over=True))
    out, err = capfd.readouterr()
    assert not out
    return err


def test_no_word_in_a_pipe_where_all_is_ready(capfd: pytest.CaptureFixture[str]) -> None:
    assert told(capfd, [file("/lib/a.so", 412_000_000, True)], 1.5) == ""


def test_a_line_that_is_rewritten_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    line, files = TablesLine(), [file("/lib/a.so", 300_000_000, True), file("/lib/b.so", 100_000_000, False)]
    line.update(TablesWait(NOW_S, files))
    assert terminal.getvalue() == "", "short waits are not spoken of"
    line.update(TablesWait(NOW_S - 1, files))
    assert terminal.getvalue() == "reading 400 MB of libraries ... 75%"
    files[1].is_ready = True
    line.update(TablesWait(NOW_S - 1, files, is_over=True))
    assert terminal.getvalue().endswith("75%" + CLEAR_LINE)


def test_what_was_not_ready_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    files = [file(f"/lib/{name}", size * 10**6, False) for size, name in enumerate(("a", "b", "c", "d\x1b[m", "e"), 1)]
    err = told(capfd, [*files, file("/lib/done", 90_000_000, True)], 2.0)
    assert err == "read 90 MB of libraries in 2.0 s; stacks through e, d[m, c and 2 more are cut until it is read\n"
