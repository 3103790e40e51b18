"""Lines of the program's files in the HTML page: only of what is a Python file, and as it was recorded."""

from __future__ import annotations

import os
import subprocess
import tempfile
import webbrowser
from pathlib import Path

import pytest

from bpfprof.commands.opening import open_picture
from bpfprof.commands.sources import read_sources, sources_now
from bpfprof.model.ids import Pid
from bpfprof.proc.reader import Reader
from tests.unit.commands.command import run, written
from tests.unit.profile.test_filters import mixed
from tests.unit.render.unpacked import unpacked

LATER_NS = 1 << 62


def test_only_python_files_that_are_as_recorded_are_read(tmp_path: Path) -> None:
    good, secret, fifo, large = (tmp_path / name for name in ("a.py", "shadow", "fifo.py", "large.py"))
    good.write_text("x = 1\n")
    secret.write_text("root:!:1\n")
    os.mkfifo(fifo)
    large.write_bytes(b"#" * ((1 << 20) + 1))
    paths = [str(it) for it in (good, secret, fifo, large, tmp_path / "gone.py")] + ["a.py", "<string>"]
    found = read_sources(paths, LATER_NS)
    assert found[str(good)] == ("x = 1\n", "")
    assert [path for path in paths if found[path][0]] == [str(good)]
    assert all(why for path, (_, why) in found.items() if path != str(good))
    assert read_sources([str(good)], 1)[str(good)] == ("", "it was changed after the recording began")


def test_of_a_process_only_files_that_it_began_with_are_read(tmp_path: Path, monkeypatch) -> None:
    good, fifo = tmp_path / "a.py", tmp_path / "fifo.py"
    good.write_text("x = 1\n")
    os.mkfifo(fifo)
    paths = [str(it) for it in (good, fifo, tmp_path / "gone.py", "<string>", "/etc/passwd")]
    os.utime(good, ns=(1, 1))
    assert sources_now(Pid(os.getpid()), paths) == {str(good): ("x = 1\n", "")}
    os.utime(good, ns=(LATER_NS, LATER_NS))
    assert sources_now(Pid(os.getpid()), paths)[str(good)] == ("", "it was changed after the process began")
    monkeypatch.setattr(Reader, "open_file", lambda *_: (_ for _ in ()).throw(TimeoutError()))
    assert sources_now(Pid(os.getpid()), paths) == {}, "its file system does not answer"
    assert sources_now(Pid(1 << 22), paths) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads what others may not")
def test_files_are_read_as_the_user_who_called_sudo(monkeypatch) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setenv("SUDO_GID", "65534")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        mine, others = Path(folder) / "mine.py", Path(folder) / "others.py"
        for path, mode in ((mine, 0o600), (others, 0o644)):
            path.write_text("x = 1\n")
            path.chmod(mode)
            os.utime(path, ns=(1, 1))
        found = sources_now(Pid(os.getpid()), [str(mine), str(others)])
        assert found[str(mine)][0] == "" and found[str(others)] == ("x = 1\n", "")


def test_of_a_process_with_folders_of_its_own_no_file_of_ours_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    os.utime(tmp_path / "a.py", ns=(1, 1))
    with subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.read(1)  # it has them
        assert sources_now(Pid(other.pid), [str(tmp_path / "a.py")]) == {}
        other.stdin.close()


def test_page_has_lines_unless_they_are_left_out(tmp_path: Path) -> None:
    recording = written(mixed(), tmp_path)
    for arguments, word in ((["--no-source"], "--no-source"), ([], "could not be read")):
        assert run("report", recording, "-o", tmp_path / "a.html", *arguments) == 0
        head, _ = unpacked((tmp_path / "a.html").read_text())
        assert head["files"] and all(word in file["why"] for file in head["files"])


def test_a_browser_never_runs_as_root(tmp_path: Path, monkeypatch, capsys) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    recording = written(mixed(), tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    open_picture(tmp_path / "a.html")
    address = (tmp_path / "a.html").as_uri()
    assert not opened and address in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run("report", recording, "-o", tmp_path / "a.html", "--open") == 0
    assert opened == [address]


@pytest.mark.parametrize("arguments", [["-f", "html"], ["-o", "a.json"], ["-o", "-", "-f", "html"]])
def test_only_a_picture_in_a_file_is_opened(arguments: list[str], tmp_path: Path, capsys) -> None:
    assert run("report", written(mixed(), tmp_path), *arguments, "--open") == 2
    assert "--open is for a picture in a file" in capsys.readouterr().err
