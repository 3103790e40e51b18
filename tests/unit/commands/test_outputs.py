"""Files written for the user: what is refused, whose they are, what is left after a failure."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bpfprof.commands.outputs import open_output, open_temporary, remove_output, tell, write_output
from bpfprof.errors import OutputError, UsageError
from tests.unit.measured import no_descriptor_more
from tests.unit.recording.hand_made import file_bytes, small

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")
SOMEBODY, SOMEBODY_ELSE = (1234, 1235), (4321, 4322)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp."""
    with tempfile.TemporaryDirectory(prefix="bpfprof-test-") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def owner(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


def test_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    before = os.umask(0o022)
    try:
        write_output(path, "größe\n", None)
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8") == "größe\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    path.write_text("something longer than what comes")
    write_output(path, "short\n", None)
    assert path.read_bytes() == b"short\n"


def test_text_that_is_not_utf8_is_written_all_the_same(tmp_path: Path) -> None:
    write_output(tmp_path / "out.txt", "a\udc80b", None)
    assert (tmp_path / "out.txt").read_bytes() == b"a?b"


def test_the_descriptor_can_be_read_and_is_not_inherited(tmp_path: Path) -> None:
    fd = open_output(tmp_path / "out", None)
    os.write(fd, b"abc")
    assert os.pread(fd, 3, 0) == b"abc" and not os.get_inheritable(fd)
    os.close(fd)


def refused(path: Path, *words: str, caller: tuple[int, int] | None = None) -> None:
    """Opening says no in a sentence that names the file, and leaks no descriptor."""
    with no_descriptor_more(), pytest.raises(UsageError) as caught:
        open_output(path, caller)
    assert str(path) in str(caught.value) and caught.value.exit_code == 2
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_refused(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "precious", tmp_path / "out.svg"
    if exists:
        target.write_text("kept")
    link.symlink_to(target)
    refused(link, "symbolic link")
    assert (target.read_text() == "kept") if exists else not target.exists()


@pytest.mark.parametrize("with_reader", [True, False])
def test_a_fifo_is_refused_without_waiting(tmp_path: Path, with_reader: bool) -> None:
    os.mkfifo(tmp_path / "out")
    reader = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK) if with_reader else None
    refused(tmp_path / "out", "not a regular file")
    if reader is not None:
        os.close(reader)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "directory")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full", "/dev/zero"])
def test_a_device_is_refused(device: str) -> None:
    refused(Path(device), "not a regular file")


@pytest.mark.parametrize("path", ["/proc/self/comm", "/proc/self/oom_score_adj", "/sys/kernel/mm/ksm/run"])
def test_what_the_kernel_makes_of_a_file_is_no_output(path: str) -> None:
    """It looks like a regular file, and takes part of what is written."""
    if not os.access(path, os.W_OK):
        pytest.skip(f"{path} is not there, or not to be written")
    before = Path(path).read_bytes()
    with pytest.raises(UsageError, match="not a regular file"):
        open_output(Path(path), None)
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("write", [open_output, lambda path, caller: write_output(path, "a report", caller)])
def test_two_do_not_write_one_file(write: Callable[[Path, None], object], tmp_path: Path) -> None:
    """A report does not replace a recording that is being made, either."""
    fd = open_output(tmp_path / "file", None)
    os.write(fd, b"recorded")
    with pytest.raises(UsageError, match="is being written by another process"):
        write(tmp_path / "file", None)
    assert (tmp_path / "file").read_bytes() == b"recorded"
    os.close(fd)
    write(tmp_path / "file", None)


def test_a_recording_onto_a_file_that_all_may_read(tmp_path: Path) -> None:
    for name, mode in (("new", 0o600), ("recording", 0o600), ("report", 0o644)):
        path = tmp_path / name
        if name != "new":
            path.write_text("before")
            path.chmod(0o664)
        os.close(open_output(path, None, mode=mode))
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if mode == 0o600 else 0o664)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "missing" / "out", "No such file")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "out", "Not a directory")


@needs_root
def test_the_file_is_the_callers(shared: Path) -> None:
    before = os.geteuid(), os.getegid(), os.getgroups()
    write_output(shared / "new", "a", SOMEBODY)
    assert owner(shared / "new") == SOMEBODY
    write_output(shared / "roots", "a", None)
    assert owner(shared / "roots") == (os.geteuid(), os.getegid())
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before


@needs_root
def test_what_the_caller_may_not_write_is_refused(shared: Path, tmp_path: Path) -> None:
    """Who may run bpfprof by sudo, and nothing else, does not get root's files by -o."""
    shared.chmod(0o755)
    theirs = shared / "roots"
    theirs.write_text("root's")
    theirs.chmod(0o600)
    refused(theirs, "Permission denied", caller=SOMEBODY)
    refused(shared / "new", "Permission denied", caller=SOMEBODY)
    assert theirs.read_text() == "root's" and owner(theirs) == (0, 0)
    (shared / "open").write_text("b")
    (shared / "open").chmod(0o666)
    write_output(shared / "open", "a", SOMEBODY)
    assert owner(shared / "open") == (0, 0), "it may write it, and gets it no more than that"


def test_a_recording_is_private(tmp_path: Path) -> None:
    fd = open_output(tmp_path / "x.bpfprof", None, mode=0o600)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    (tmp_path / "x.bpfprof").rename(tmp_path / "y.bpfprof")
    (tmp_path / "x.bpfprof").write_text("another file of this name")
    remove_output(tmp_path / "x.bpfprof", fd, None)
    assert (tmp_path / "x.bpfprof").exists(), "only the file that was opened is removed"
    remove_output(tmp_path / "y.bpfprof", fd, None)
    assert not (tmp_path / "y.bpfprof").exists()
    os.close(fd)


@needs_root
@pytest.mark.parametrize("folder_mode", [0o1777, 0o777, 0o775, 0o1770])
@pytest.mark.parametrize("caller", [None, SOMEBODY])
def test_another_users_file_in_a_shared_folder_is_refused(
    shared: Path, caller: tuple[int, int] | None, folder_mode: int
) -> None:
    """Also where it is open to all, and whoever may write there could have put it there."""
    path = shared / "out.svg"
    path.write_text("theirs")
    path.chmod(0o666)
    os.chown(path, *SOMEBODY_ELSE)
    shared.chmod(folder_mode)
    refused(path, caller=caller)
    assert path.read_text() == "theirs" and owner(path) == SOMEBODY_ELSE


@needs_root
def test_nor_is_one_written_that_is_in_its_owners_folder(tmp_path: Path) -> None:
    """One that all may write: who asked for the output may have seen it empty."""
    os.chown(tmp_path, *SOMEBODY)
    path = tmp_path / "out.bpfprof"
    path.write_text("theirs")
    os.chown(path, *SOMEBODY)
    for mode in (0o777, 0o1777, 0o775, 0o757):
        tmp_path.chmod(mode)
        for file_mode in (0o600, 0o666):
            path.chmod(file_mode)
            refused(path)
    assert path.read_text() == "theirs"


def test_what_is_told_does_not_act_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    tell("wrote x\x1b]0;title\a\x1b[31m\u202e\u200f\u061cz.svg\nand more")
    assert capfd.readouterr().err == "wrote x\ufffd]0;title\ufffd\ufffd[31m\ufffd\ufffd\ufffdz.svg\nand more\n"


@needs_root
def test_a_recording_does_not_go_into_a_file_that_others_read(tmp_path: Path) -> None:
    """In the folder of its owner it is what root asks for, but open to its owner only."""
    os.chown(tmp_path, *SOMEBODY)
    for mode in (0o644, 0o640, 0o604, 0o666):
        path = tmp_path / f"{mode:o}.bpfprof"
        path.write_text("theirs")
        path.chmod(mode)
        os.chown(path, *SOMEBODY)
        with pytest.raises(UsageError, match="open to more than its owner"):
            open_output(path, None, mode=0o600)
        assert path.read_text() == "theirs"
        write_output(path, "a picture", None)
        path.chmod(0o600)
        os.close(open_output(path, None, mode=0o600))


@needs_root
def test_the_callers_own_file_in_a_shared_folder_is_written(shared: Path) -> None:
    path = shared / "out.svg"
    path.write_text("old")
    os.chown(path, *SOMEBODY)
    if Path("/proc/sys/fs/protected_regular").read_text().strip() != "0":
        pytest.skip("fs.protected_regular: this kernel lets not even root open it")
    write_output(path, "new", SOMEBODY)
    assert path.read_text() == "new" and owner(path) == SOMEBODY


def test_no_half_report_is_left_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError, match="could not be written") as caught:
            write_output(path, "x" * 100_000, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not path.exists() and caught.value.exit_code == 5 and caught.value.hint


@pytest.mark.parametrize("folder", [None, "/does/not/exist", "/proc"])
def test_a_temporary_file_has_no_name(monkeypatch: pytest.MonkeyPatch, folder: str | None) -> None:
    if folder is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", folder)
    fd = open_temporary()
    os.write(fd, b"abc")
    assert os.pread(fd, 3, 0) == b"abc" and os.fstat(fd).st_nlink == 0
    assert not os.get_inheritable(fd)
    os.close(fd)


# What a command does: text of its own, and lines by click.
SHOWING = """
import click
from bpfprof.commands.outputs import guard_standard_output, show
guard_standard_output()
for _ in range(9):
    show('größe\\n' * 100_000)
    click.echo('ende')
"""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_reader_that_has_had_enough(encoding: str) -> None:
    command = [sys.executable, "-c", SHOWING]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() in ("größe\n".encode(), b"gr??e\n")
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0


@pytest.mark.parametrize(
    ("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("arguments", ["--help", "record --help", "report {}", "offcpu {} -f collapsed"])
def test_standard_output_that_cannot_be_written(arguments: str, redirection: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.bpfprof").write_bytes(file_bytes(small().chunks()))
    command = f"exec {sys.executable} -m bpfprof {arguments.format('a.bpfprof')} {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (5, f"bpfprof: standard output could not be written: {why}\n")


def test_a_closed_standard_error_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "a.bpfprof").write_bytes(file_bytes(small().chunks()))
    command = f"exec {sys.executable} -m bpfprof report a.bpfprof --check 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0 and "quality:" in done.stdout and "within 1%" not in done.stdout
