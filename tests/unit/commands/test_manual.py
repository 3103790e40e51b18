"""Manual pages: what troff takes, and all that --help has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.commands.described import described_commands
from bpfprof.commands.manual import manual_pages
from tests.unit.commands.command import run

REQUESTS = {".TH", ".SH", ".SS", ".TP", ".PP", ".RS", ".RE", ".nf", ".fi", '.\\"'}
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS"]


def test_a_page_for_bpfprof_and_each_command() -> None:
    pages = manual_pages()
    assert set(pages) == {"bpfprof.1", *(f"bpfprof-{command.name}.1" for command in described_commands())}
    for name, page in pages.items():
        lines = page.splitlines()
        titles = [line.removeprefix(".SH ") for line in lines if line.startswith(".SH ")]
        assert titles == SECTIONS + ["SEE ALSO"] * (name != "bpfprof.1")
        assert {line.split()[0] for line in lines if line.startswith(".")} <= REQUESTS
        assert all(lines) and not any(line.startswith("'") for line in lines), "blank lines and ' are requests, too"


def test_a_page_has_every_option() -> None:
    pages = manual_pages()
    for command in described_commands():
        page = pages[f"bpfprof-{command.name}.1"].replace(r"\-", "-")
        for option in command.options():
            assert f".TP\n\\fB{option.shown}\\fR\n" in page
        assert all(line.replace("'", r"\(aq") in page for _, line in command.examples)


def test_man_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("no man")
    assert run("manual", "record") == 0
    page = tmp_path / "page.1"
    page.write_text(capsys.readouterr().out)
    done = subprocess.run(["groff", "-man", "-ww", "-Tascii", str(page)], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout
    shown = subprocess.run(["man", "-l", str(page)], capture_output=True, text=True, check=True).stdout
    assert "--pid PID" in shown
    assert "sudo bpfprof record --pid 1234 -d 30" in shown and "What is captured" in shown


def test_all_pages_into_a_folder(tmp_path: Path) -> None:
    assert run("manual", "--folder", tmp_path) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == manual_pages()
