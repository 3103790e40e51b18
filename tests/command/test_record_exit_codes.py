"""How `record` and `report` end when something is missing or wrong: a sentence and the contract's exit code."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.kernel.compiler import READY_MADE
from bpfprof.recording.reader import read_recording
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import (
    AS_NOBODY,
    BPFPROF,
    COLLAPSED_LINE,
    PYTHON,
    Done,
    assert_told,
    bpfprof,
    checked,
    collapsed,
    completed,
    let_run,
    needs_root,
    program,
    recording,
    running,
    skip_unless_nobody_can_run,
)
from tests.recordings.kept import unpacked
from tests.tiers import first_in_gate

pytestmark = needs_root
LATE_US = 5e6  # for the end that was asked for, where others have the CPUs
TRUE = str(shutil.which("true"))
RECORD_TRUE = [*BPFPROF, "record", "-d", "1", "-o", "x.bpfprof", "--", TRUE]


@pytest.fixture(scope="module")
def whole_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("many", tmp_path_factory.mktemp("whole"))


# --- something is missing


# Then it has to compile.
NOTHING_IS_READY = (
    f'for folder in /var/cache "{READY_MADE}"; do [ ! -d "$folder" ] || mount -t tmpfs tmpfs "$folder"; done'
)


def in_private_mounts(mounts: str, folder: Path, environment: dict[str, str] | None = None) -> Done:
    """`record` where these mounts have been made, seen by it alone."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare (util-linux)")
    script = f'set -e; {mounts}\nexec "$@"'
    return completed(["unshare", "-m", "sh", "-c", script, "sh", *RECORD_TRUE], None, cwd=folder, env=environment)


def test_an_ordinary_user_is_told_what_it_needs() -> None:
    skip_unless_nobody_can_run()
    done = completed(RECORD_TRUE, None, **AS_NOBODY)
    assert_told(done, 3, "root", "sudo")


def test_bcc_is_hidden(tmp_path: Path) -> None:
    found = importlib.util.find_spec("bcc")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the Python of the tests has no bcc that could be hidden")
    (tmp_path / "empty").mkdir()
    hidden = f"mount --bind empty '{found.submodule_search_locations[0]}'"
    done = in_private_mounts(f"{NOTHING_IS_READY}\n{hidden}", tmp_path)
    assert_told(done, 3, "BCC", "install")
    assert not (tmp_path / "x.bpfprof").exists()


@pytest.mark.parametrize("fault", ["raise ImportError('no libbcc.so.0')", "raise RuntimeError('broken')", "BPF = None"])
def test_bcc_is_broken(fault: str, tmp_path: Path) -> None:
    (tmp_path / "shadow" / "bcc").mkdir(parents=True)
    (tmp_path / "shadow" / "bcc" / "__init__.py").write_text(fault)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "shadow")}
    assert_told(in_private_mounts(NOTHING_IS_READY, tmp_path, environment), 3, "BCC")


def test_the_kernel_has_no_type_information(tmp_path: Path) -> None:
    done = in_private_mounts("mount -t tmpfs none /sys/kernel/btf", tmp_path)
    assert_told(done, 3, "BTF")


# --- targets that are not there, or not for long


def reaped_pid() -> int:
    process = subprocess.Popen([TRUE])
    process.wait()
    return process.pid


def test_no_such_process(tmp_path: Path) -> None:
    pid = reaped_pid()
    assert_told(bpfprof("record", "-p", pid, check=None, cwd=tmp_path), 4, f"no process {pid}")
    assert list(tmp_path.iterdir()) == []


ENDS = """import select, sys, time
def burn():
    while not select.select([sys.stdin], [], [], 0)[0]:
        sum(range(1000))
def rest():
    time.sleep(0.5)
print("ready", flush=True)
burn()
rest()"""


def test_a_process_that_ends_while_it_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, "-c", ENDS) as target, recording("-p", target.pid, "-o", path) as recorder:
        let_run(target.pid, 0.5)
        target.tell("")
        done = recorder.end(None)
    assert_told(done, 0)
    assert "quality:" in done.stdout
    assert {"burn", "rest"} <= collapsed(path).functions()


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6])
def test_a_process_that_ends_while_bpfprof_starts(seconds: float, tmp_path: Path) -> None:
    with running(PYTHON, program("short_lived.py"), "--seconds", str(seconds)) as target:
        done = bpfprof("record", "-p", target.pid, "-o", tmp_path / "x.bpfprof", check=None)
    assert_told(done, 0 if done.returncode == 0 else 4)
    assert (tmp_path / "x.bpfprof").exists() == (done.returncode == 0)


def test_a_zombie(tmp_path: Path) -> None:
    process = subprocess.Popen([TRUE])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    done = bpfprof("record", "-p", process.pid, "-d", "1", "-o", tmp_path / "x.bpfprof", check=None)
    process.wait()
    assert_told(done, 4, "zombie", str(os.getpid()))


def test_a_kernel_thread(tmp_path: Path) -> None:
    done = bpfprof("record", "-p", 2, "-d", "1", "-o", tmp_path / "x.bpfprof", check=None)
    if Path("/proc/2/cmdline").read_bytes():
        pytest.skip("kthreadd is not in this pid namespace")
    assert_told(done, 4, "kernel thread")


def test_a_command_that_ends_at_once(tmp_path: Path) -> None:
    done = completed(RECORD_TRUE, None, cwd=tmp_path)
    assert_told(done, 0 if done.returncode == 0 else 4)
    assert (tmp_path / "x.bpfprof").exists() == (done.returncode == 0)


def test_a_process_without_python(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    process = subprocess.Popen(["sleep", "100"])
    try:
        wait_until_asleep(process.pid)
        done = bpfprof("record", "-p", process.pid, "-d", "3", "-o", path)
    finally:
        process.kill()
        process.wait()
    assert_told(done, 0, "sleep", "without Python frames")
    folded = collapsed(path)
    with open(path, "rb") as file:
        read = read_recording(file)
    length_us = (read.end["end_ns"] - read.start["start_ns"]) / 1000
    assert 3e6 <= length_us < 3e6 + LATE_US
    # It sleeps all of the time from when it is watched, which is some tenths late on a busy machine.
    assert 0.5 * length_us < folded.total_us() == folded.total_us(kind="off")
    assert all(frames[-1] == "[off-cpu: sleep]" for _, _, frames, _ in folded.lines)


# --- outputs that cannot be written


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    completed(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], 0)
    yield folder
    completed(["umount", "-l", str(folder)], 0)


def test_the_disk_is_full(tiny_disk: Path) -> None:
    path = tiny_disk / "x.bpfprof"
    with running(PYTHON, program("switcher.py")) as target:  # thousands of waits a second
        done = bpfprof("record", "-p", target.pid, "-d", "10", "-o", path, check=None)
    assert_told(done, 5, "could not be written", "No space left")
    assert "quality:" in done.stdout
    shown = bpfprof("report", path, "-f", "collapsed", check=None)
    assert_told(shown, 5, "not whole")
    assert "ping (switcher.py" in shown.stdout


def test_the_disk_is_full_for_a_report(tiny_disk: Path, whole_recording: Path) -> None:
    (tiny_disk / "filler").write_bytes(bytes(60 << 10))
    done = bpfprof("report", whole_recording, "-o", tiny_disk / "x.svg", check=None)
    assert_told(done, 5, "could not be written", "No space left")
    assert not (tiny_disk / "x.svg").exists()


@pytest.mark.parametrize("name", first_in_gate(1, ["x.bpfprof", "x.svg"]))
@pytest.mark.parametrize("kind", ["link", "FIFO", "folder", "no folder"])
def test_an_output_that_may_not_be_written(kind: str, name: str, tmp_path: Path, whole_recording: Path) -> None:
    """Refused before anything is recorded: nobody should wait for a recording that cannot be kept."""
    path, precious = tmp_path / name, tmp_path / "precious"
    precious.write_text("precious")
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "missing" / name
    done = bpfprof("record", "-p", os.getpid(), "-d", "1", "-o", path, check=None)
    assert_told(done, 2, str(path))
    assert precious.read_text() == "precious"
    if name != "x.bpfprof":
        assert_told(bpfprof("report", whole_recording, "-o", path, check=None), 2, str(path))
        assert precious.read_text() == "precious"
    assert not re.search("^recording ", done.stderr, re.MULTILINE), "it recorded first, and refused then"


@pytest.mark.parametrize("name", ["/dev/stdout", None])
def test_standard_output(name: str | None, tmp_path: Path) -> None:
    """Text goes there without being told to."""
    output = [] if name is None else ["-o", name]
    with running("sh", "-c", "echo ready; exec sleep 100") as target:
        wait_until_asleep(target.pid)  # it is all that it does
        text = bpfprof("record", "-p", target.pid, "-d", "0.5", "-f", "collapsed", *output, cwd=tmp_path)
        with open(tmp_path / "x.bpfprof", "wb") as file:
            command = [*BPFPROF, "record", "-p", str(target.pid), "-d", "0.5", "-o", name or "-"]
            subprocess.run(command, cwd=tmp_path, stdout=file, stderr=subprocess.DEVNULL, check=True)
    assert len(text.stdout.splitlines()) == 1 and "[off-cpu: sleep]" in text.stdout
    assert "quality:" in text.stderr, "what a terminal shows"
    again = bpfprof("report", tmp_path / "x.bpfprof", "-f", "collapsed", *output, cwd=tmp_path)
    assert "[off-cpu: sleep]" in again.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["x.bpfprof"]


def test_a_pipe_of_the_shell(tmp_path: Path) -> None:
    """Who reads it sees its end with bpfprof, not with what the command has left running."""
    left = "sleep 1000 >/dev/null 2>&1 & echo $! >pid; exit 3"
    command = f"exec {BPFPROF[0]} record -S -f collapsed -o >(cat >whole) -- sh -c '{left}'"
    done = completed(["/bin/bash", "-c", command], 3, cwd=tmp_path)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it was still there
    assert "quality:" in done.stderr
    assert all(COLLAPSED_LINE.fullmatch(line) for line in (tmp_path / "whole").read_text().splitlines())


def test_what_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    """A recording may have taken an hour."""
    with running("sh", "-c", "echo ready; exec sleep 100") as target, open("/dev/full", "wb") as full:
        command = [*BPFPROF, "record", "-p", str(target.pid), "-d", "0.3", "-f", "collapsed"]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    (path,) = tmp_path.iterdir()
    assert_told(done, 5, "No space left", f"the recording so far is in {path.name}")
    checked(path)


# Pictures are never done.
ENDLESS = """
import sys, time
from bpfprof.render import formats
def endless(*_):
    print("converting", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)
formats.Format.render = endless
from bpfprof.cli import main
sys.argv[0] = "bpfprof"
main()
"""


@pytest.mark.parametrize("is_second", [False, True])
def test_a_picture_that_takes_too_long_leaves_the_recording(is_second: bool, tmp_path: Path) -> None:
    """After a signal it has a limit of time; where the recording ended by itself a signal ends it."""
    with running("sh", "-c", "echo ready; exec sleep 100") as target:
        command = [PYTHON, "-c", ENDLESS, "record", "-p", str(target.pid), "-o", "x.svg"]
        command += ["-d", "0.3"] if is_second else []
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        until = "converting" if is_second else "recording "
        heard = next(line for line in process.stderr if line.startswith(until))
        process.send_signal(signal.SIGTERM)
        heard += process.communicate(timeout=100)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["x.bpfprof"]
    assert "the recording so far is in x.bpfprof" in heard and "Traceback" not in heard
    assert process.returncode == (128 + signal.SIGTERM if is_second else 5)
    assert is_second or "bpfprof report x.bpfprof -f flamegraph -o x.svg" in heard
    checked(tmp_path / "x.bpfprof")


# --- wrong use


WRONG = [
    (["record", "--no-such-option"], "--no-such-option"),
    (["no-such-command"], "no-such-command"),
    (["record"], "--pid"),
    (["record", "-p", "1", "--", TRUE], "--pid"),
    (["record", "-p", "0"], "--pid"),
    (["record", "-p", "x"], "--pid"),
    (["record", "-p", "1", "-d", "0"], "--duration"),
    (["record", "-p", "1", "-d", "-1"], "--duration"),
    (["record", "-p", "1", "-d", "nan"], "--duration"),
    (["record", "-p", "1", "-d", "inf"], "--duration"),
    (["record", "-p", "1", "-r", "0"], "--rate"),
    (["record", "-p", "1", "--mode", "x"], "--mode"),
    (["record", "-p", "1", "-e", "x"], "--event"),
    (["record", "-p", "1", "-f", "x"], "format x"),
    (["record", "-f", "collapsed", "--", TRUE], "--output"),
    (["record", "-o", "/dev/stdout", "--", TRUE], "--output"),
    (["record", "-p", "1", "-o", "/dev/fd/99"], "/dev/fd/99"),
    (["record", "-p", "1", "-o", "x.xyz"], "x.xyz"),
    (["report"], "RECORDING"),
    (["report", "x.bpfprof", "-f", "x"], "format x"),
    (["report", "x.bpfprof", "-o", "x.xyz"], "x.xyz"),
]


# For each kind one by the command line; `unit/commands/test_usage_errors.py` asks for all.
@pytest.mark.parametrize(
    ("arguments", "word"),
    first_in_gate(4, WRONG),
)
def test_wrong_use(arguments: list[str], word: str, tmp_path: Path) -> None:
    assert_told(bpfprof(*arguments, check=None, cwd=tmp_path), 2, word)
    assert list(tmp_path.iterdir()) == []


def test_a_report_does_not_replace_its_recording(whole_recording: Path) -> None:
    before = whole_recording.read_bytes()
    assert_told(bpfprof("report", whole_recording, "-f", "collapsed", "-o", whole_recording, check=None), 2)
    assert whole_recording.read_bytes() == before


def test_a_report_is_not_written_as_if_it_were_a_recording(whole_recording: Path, tmp_path: Path) -> None:
    assert_told(bpfprof("report", whole_recording, "-o", tmp_path / "y.bpfprof", check=None), 2, "recording")
    assert list(tmp_path.iterdir()) == []


# --- recordings that are missing, cut or no recordings


def test_a_recording_that_is_cut(whole_recording: Path, tmp_path: Path) -> None:
    whole, path = whole_recording.read_bytes(), tmp_path / "cut.bpfprof"
    for length in (100, len(whole) // 2, len(whole) * 9 // 10, len(whole) - 1):
        path.write_bytes(whole[:length])
        done = bpfprof("report", path, check=None)
        assert_told(done, 5, "recording")
        assert length == 100 or "quality:" in done.stdout  # what could be read is shown
    assert "oracle.py" in done.stdout


def test_a_recording_with_damage_in_it(whole_recording: Path, tmp_path: Path) -> None:
    whole, path = bytearray(whole_recording.read_bytes()), tmp_path / "damaged.bpfprof"
    whole[len(whole) * 3 // 4] ^= 0xFF
    path.write_bytes(whole)
    done = bpfprof("report", path, check=None)
    assert_told(done, 5, "not whole")
    assert "quality:" in done.stdout


@pytest.mark.parametrize(
    "content", [b"", b"garbage\n" * 1000, b"\x7fELF", b"BPFPROF\x01", b"BPFPROF\x01" + bytes(4096)]
)
def test_a_file_that_is_no_recording(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "garbage.bpfprof"
    path.write_bytes(content)
    done = bpfprof("report", path, check=None)
    assert_told(done, 5)
    assert done.stderr.startswith("bpfprof: ")


def test_a_recording_that_cannot_be_opened(tmp_path: Path) -> None:
    assert_told(bpfprof("report", tmp_path / "missing.bpfprof", check=None), 5, "missing.bpfprof")
    assert_told(bpfprof("report", tmp_path, check=None), 5, str(tmp_path))


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    done = bpfprof("report", tmp_path / "missing.bpfprof", "--debug", check=5)
    assert "Traceback" in done.stderr


def test_the_terminal_has_no_progress_without_a_recording(tmp_path: Path) -> None:
    """A recording that is refused says one thing only."""
    done = bpfprof("record", "-p", reaped_pid(), check=4, cwd=tmp_path)
    assert done.stdout == "" and "recording " not in done.stderr
