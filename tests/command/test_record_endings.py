"""However a recording begins and ends: a whole file that belongs to the caller, and nothing unfit on the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    BPFPROF,
    COLLAPSED_LINE,
    NOBODY,
    PYTHON,
    Recorder,
    assert_told,
    bpfprof,
    checked,
    collapsed,
    completed,
    needs_root,
    open_folder,
    program,
    recording,
    running,
    started,
    user_with_groups,
)

pytestmark = needs_root
SHORT_LIVED = (PYTHON, program("short_lived.py"), "--seconds", "1")
KALLSYMS = Path("/proc/kallsyms")
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # all but the line feed


def without_tables(said: str) -> str:
    """What bpfprof said, but for its lines of libraries that a busy machine does not read at once, or not in time."""
    said = re.sub("(?:reading [0-9,]+ MB of libraries [.]{3} [0-9]+%\r\x1b\\[K)+", "", said)
    return re.sub("read [0-9,]+ MB of libraries in [^\r\n]*\r?\n", "", said)


def poll(recorder: Recorder, condition: Callable[[], object], what: str) -> None:
    """Waits for something that tells nobody when it comes about, as long as bpfprof runs."""
    while not condition():
        assert recorder.process.poll() is None, f"it ended before {what}: {recorder.end(None).stderr}"
        time.sleep(0.001)


# --- signals


def has_maps(recorder: Recorder) -> bool:
    """BPF maps are made early in start-up, before there is a file."""
    folder = Path(f"/proc/{recorder.process.pid}/fd")
    try:
        return any(os.readlink(link) == "anon_inode:bpf-map" for link in folder.iterdir())
    except FileNotFoundError:  # one that is closed meanwhile
        return False


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((signal.SIGINT, moment) for moment in ("imports", "start-up", "file made", "recording")),
        (signal.SIGTERM, "recording"),
        *(
            pytest.param(signal.SIGTERM, moment, marks=pytest.mark.second_tier)
            for moment in ("imports", "start-up", "file made")
        ),
    ],
)
def test_a_signal_ends_it_in_order(number: signal.Signals, moment: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("sleepers.py")) as target, started("-p", target.pid, "-o", path) as recorder:
        if moment == "imports":
            poll(recorder, lambda: "/numpy/" in Path(f"/proc/{recorder.process.pid}/maps").read_text(), moment)
        elif moment == "start-up":
            poll(recorder, lambda: has_maps(recorder), moment)
        elif moment == "file made":
            poll(recorder, path.exists, moment)
        else:
            recorder.wait_until_it_records()
        done = recorder.end(number)
    assert_told(done, 0)
    assert "quality:" in done.stdout and "next: bpfprof report" in done.stdout
    assert "sleep_000" in collapsed(path).functions()


def test_ctrl_c_with_a_command_lets_both_end(tmp_path: Path) -> None:
    """As a signal to the whole process group does."""
    path, command = tmp_path / "x.bpfprof", (PYTHON, program("short_lived.py"), "--seconds", "30")
    with recording("-o", path, "--", *command, start_new_session=True) as recorder:
        assert recorder.process.stdout is not None
        recorder.process.stdout.readline()  # the command's `ready`
        os.killpg(recorder.process.pid, signal.SIGINT)
        done = recorder.end(None)
    assert done.returncode == 128 + signal.SIGINT and "internal error" not in done.stderr
    assert "quality:" in done.stderr
    collapsed(path)


def test_a_second_ctrl_c_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("sleepers.py")) as target, recording("-p", target.pid, "-o", path) as recorder:
        recorder.process.send_signal(signal.SIGINT)
        done = recorder.end(signal.SIGINT)
    assert_told(done, 0)
    collapsed(path)


def has_samples(path: Path) -> bool:
    with open(path, "rb") as file:
        return len(read_recording(file).samples) >= 20  # one may be of another function


def test_a_killed_bpfprof_leaves_what_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    with running(PYTHON, program("hostile_names.py")) as target, recording("-p", target.pid, "-o", path) as recorder:
        poll(recorder, lambda: has_samples(path), "samples in the file")
        assert recorder.end(signal.SIGKILL).returncode == -signal.SIGKILL
    done = bpfprof("report", path, "--details", check=None)
    assert_told(done, 5, "not whole")
    assert "evil" in done.stdout and "quality:" in done.stdout


# --- commands


def test_a_command_is_run_followed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    done = bpfprof("record", "-o", path, "--", *SHORT_LIVED)
    assert re.match(r"ready \d+\n", done.stdout), "the command's own output is missing"
    assert {"burn", "rest", "main"} <= collapsed(path).functions()
    assert "short_lived.py" in done.stderr and "quality:" in done.stderr


def test_options_of_the_command_are_its_own(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    done = bpfprof("record", "-o", tmp_path / "x.bpfprof", "--", PYTHON, "-c", code, "-p", "--debug", "-o", check=0)
    assert "['-p', '--debug', '-o']" in done.stdout


def test_children_of_a_command_are_followed(tmp_path: Path) -> None:
    path, script = tmp_path / "x.bpfprof", " ".join(SHORT_LIVED) + "; true"
    bpfprof("record", "-o", path, "--", "sh", "-c", script)
    assert {"burn", "rest"} <= collapsed(path).functions()


def test_the_end_of_all_targets_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "x.bpfprof"
    # Each has CPU time for ten samples, and more is not needed: one that is asked to end at once may have none.
    burn = "end = process_time() + 0.1\n while process_time() < end: pass"
    code = f"from time import process_time\ndef rest():\n input()\n {burn}\nprint('ready', flush=True)\nrest()"
    command = PYTHON, "-c", code
    with (
        running(*command) as one,
        running(*command) as other,
        recording("-p", one.pid, "-p", other.pid, "-o", path) as recorder,
    ):
        one.tell("")
        assert one.process.wait() == 0
        other.tell("")
        done = recorder.end(None)
        assert other.process.wait() == 0
    assert_told(done, 0)
    folded = collapsed(path)
    assert "rest" in folded.of_process(one.pid).functions() and "rest" in folded.of_process(other.pid).functions()


# --- sudo


@pytest.mark.parametrize("name", ["x.bpfprof", "x.svg", "default"])
def test_under_sudo_all_is_the_callers(name: str) -> None:
    user = user_with_groups()
    environment = {**os.environ, "SUDO_UID": str(user.pw_uid), "SUDO_GID": str(user.pw_gid), "SUDO_USER": user.pw_name}
    code = "import os, sys; print(os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.environ['HOME'])"
    with open_folder(user.pw_uid) as folder:
        output = [] if name == "default" else ["-o", name]
        command = ("/usr/bin/python3", "-c", code)
        done = bpfprof("record", *output, "--", *command, cwd=folder, env=environment, check=0)
        (written,) = folder.iterdir()
        assert (written.stat().st_uid, written.stat().st_gid) == (user.pw_uid, user.pw_gid)
    groups = sorted(set(os.getgrouplist(user.pw_name, user.pw_gid)))
    uids, gids = (user.pw_uid,) * 3, (user.pw_gid,) * 3
    assert f"{uids} {gids} {groups} {user.pw_dir}\n" in done.stdout


def test_under_sudo_a_report_is_the_callers(tmp_path: Path) -> None:
    environment = {**os.environ, "SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY), "SUDO_USER": "nobody"}
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "-o", path, "--", *SHORT_LIVED)
    assert path.stat().st_mode & 0o777 == 0o600, "it tells of a machine what others need not know"
    with open_folder(NOBODY) as folder:
        bpfprof("report", path, "-o", folder / "x.svg", env=environment)
        assert (folder / "x.svg").stat().st_uid == NOBODY


# --- formats and names


@pytest.mark.second_tier
def test_output_formats(tmp_path: Path) -> None:
    def record(*options: str) -> str:
        return bpfprof("record", *options, "--", *SHORT_LIVED, cwd=tmp_path).stderr

    assert "flamegraph: x.svg" in record("-o", "x.svg")
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    record("-o", "x.json", "-f", "speedscope")
    assert "speedscope" in json.loads((tmp_path / "x.json").read_text())["$schema"]
    record("-o", "x.out", "-f", "collapsed")
    assert all(COLLAPSED_LINE.fullmatch(line) for line in (tmp_path / "x.out").read_text().splitlines())
    assert "burn (short_lived.py:" in (tmp_path / "x.out").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.out", "x.svg"]


def test_the_next_step_of_a_recording_works_whatever_its_name(tmp_path: Path) -> None:
    done = bpfprof(
        "record", "-f", "bpfprof", "-o", "x.svg", "--details", "--full-filenames", "--", *SHORT_LIVED, cwd=tmp_path
    )
    assert f" burn ({program('short_lived.py')})" in done.stderr
    *_, advice = done.stderr.splitlines()
    assert advice == "next: bpfprof report x.svg -o report.html"
    bpfprof(*advice.split()[2:], cwd=tmp_path)
    assert (tmp_path / "report.html").read_text().lower().startswith("<!doctype html>")


def test_a_table_is_for_the_terminal_and_leaves_a_recording(tmp_path: Path) -> None:
    done = bpfprof("record", "-f", "table", "-d", "5", "--", *SHORT_LIVED, cwd=tmp_path)
    (path,) = tmp_path.iterdir()
    assert f"recording: {path.name}" in done.stderr
    assert "burn" in collapsed(path).functions()


def test_default_file_name(tmp_path: Path) -> None:
    with running(PYTHON, program("sleepers.py")) as target:
        done = bpfprof("record", "-p", target.pid, "-d", "0.5", cwd=tmp_path)
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(rf"bpfprof-python-{target.pid}-\d{{8}}-\d{{6}}\.bpfprof", path.name)
    assert f"recording: {path.name}" in done.stdout
    assert "sleep_000" in collapsed(path).functions()


# --- what is not trusted


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path) -> None:
    """Root may stand in a folder that others write to."""
    trap = f"open({str(tmp_path / 'caught')!r}, 'a').write(__name__ + '\\n')\n"
    for package in ("numpy", "bcc", "bpfprof", "elftools", "click"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(trap)
    for module in ("click", "json", "ctypes", "sitecustomize", "usercustomize", "bpfprof", "typing"):
        (tmp_path / f"{module}.py").write_text(trap)
    recording_path = tmp_path / "x.bpfprof"
    bpfprof("record", "-o", recording_path, "--", "/bin/sleep", "0.2", cwd=tmp_path)
    bpfprof("report", recording_path, cwd=tmp_path)
    bpfprof("doctor", cwd=tmp_path)
    assert not (tmp_path / "caught").exists(), (tmp_path / "caught").read_text()


def test_the_module_is_run_from_a_folder_of_others(tmp_path: Path) -> None:
    """Python itself has run what comes before the first line of bpfprof."""
    for module in ("signal", "json", "ctypes", "numpy", "click"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('caught')\n")
    bpfprof_module = [PYTHON, "-m", "bpfprof"]
    completed([*bpfprof_module, "record", "-o", "x.bpfprof", "--", "/bin/sleep", "0.2"], 0, cwd=tmp_path)
    completed([*bpfprof_module, "report", "x.bpfprof"], 0, cwd=tmp_path)


def test_a_recording_does_not_tell_where_the_kernel_is(tmp_path: Path) -> None:
    """Names of functions do not, addresses do: of the kernel's text is never one, not even a part that tells."""
    path = tmp_path / "x.bpfprof"
    bpfprof("record", "--kernel", "-o", path, "--", *SHORT_LIVED)
    with open(path, "rb") as file:
        made = read_recording(file)
    (kernel,) = (number for number, file in enumerate(made.files) if file.kind == "kernel")
    written = {int(address) for address in made.natives["address"][made.natives["file"] == kernel]}
    symbols = {name: int(at, 16) for at, _, name in re.findall(r"(?m)^(\S+) (\S) (\S+)$", KALLSYMS.read_text())}
    begin, end = (symbols[name] % (1 << 48) for name in ("_stext", "_etext"))
    assert written and not any(begin <= address % (1 << 48) <= end for address in written)
    assert any(
        "nanosleep" in name and name.endswith("_[k]") for *_, stack, _ in collapsed(path).lines for name in stack
    )


def test_names_of_the_target_do_not_act_on_the_terminal(tmp_path: Path) -> None:
    with (
        running(PYTHON, program("hostile_names.py")) as target,
        recording("-p", target.pid, cwd=tmp_path) as recorder,
    ):
        time.sleep(1)  # the length of the recording
        done = recorder.end()
    assert done.returncode == 0
    (path,) = tmp_path.iterdir()
    assert not CONTROLS.search(path.name) and "/" not in path.name
    shown = {
        "standard output": done.stdout,
        "standard error": done.stderr,
        "collapsed": bpfprof("report", path, "-f", "collapsed", "--full-filenames").stdout,
    }
    for what, text in shown.items():
        assert not CONTROLS.search(text), f"{what}: {CONTROLS.search(text)}"
    assert "evil" in shown["collapsed"]
    for line in shown["collapsed"].splitlines():
        assert COLLAPSED_LINE.fullmatch(line), line
    assert len(without_tables(done.stderr).splitlines()) == 2, "a name has broken a line"


# --- a command


def test_the_account_of_a_command_has_nothing_of_who_launched_it(tmp_path: Path) -> None:
    """It begins when the command is let run, and bears its name, also when it is over before anybody looks."""
    path = tmp_path / "x.bpfprof"
    for command in (("true",), ("/bin/sleep", "0.2")):
        done = bpfprof("record", "--details", "-o", path, "--", *command)
        (pid,) = re.findall(rf"^recording {Path(command[0]).name} \((\d+)\);", done.stderr, re.M)
        with open(path, "rb") as file:
            made = read_recording(file)
        (process,), (thread,) = made.processes, made.threads
        assert (process.pid, process.name) == (int(pid), Path(command[0]).name)
        assert " ".join(command) + "\n" in done.stderr and done.stdout == ""
        first = made.waits[made.waits["time_ns"].argmin()]
        assert first["blocked_ns"] == 0, "it waited for a CPU only"
        assert first["time_ns"] - first["runqueue_ns"] == thread.first_ns
        checked(path)


# --- the live line


def test_no_live_line_without_a_terminal(tmp_path: Path) -> None:
    with running(PYTHON, program("sleepers.py")) as target:
        done = bpfprof("record", "-p", target.pid, "-d", "1.5", "-o", tmp_path / "x.bpfprof")
    first, last = without_tables(done.stderr).splitlines()
    assert first == f"recording python ({target.pid}); Ctrl-C ends it"
    program_did = r"41 threads, 0\.\d\d of \d+ CPUs?"
    assert re.fullmatch(rf"[1-9]\.\d s, {program_did}, 0 lost, own CPU \d+\.\d%", last)  # a busy machine ends it late


def read_all(master: int, process: subprocess.Popen[bytes]) -> str:
    """What is written to the terminal until the process has ended."""
    said = b""
    while True:
        readable, _, _ = select.select([master], [], [], 0.1)
        try:
            said += os.read(master, 65536) if readable else b""
        except OSError:  # EIO: nobody has the other end any more
            return said.decode()
        if not readable and process.poll() is not None:
            return said.decode()


# 0: the terminal does not say.
@pytest.mark.parametrize(
    "columns", [pytest.param(0, marks=pytest.mark.second_tier), 40, pytest.param(200, marks=pytest.mark.second_tier)]
)
def test_one_live_line_on_a_terminal(columns: int, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    with running(PYTHON, program("hostile_names.py")) as target:
        command = [*BPFPROF, "record", "-p", str(target.pid), "-d", "2.2", "-o", str(tmp_path / "x.bpfprof")]
        process = subprocess.Popen(command, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        said = read_all(master, process)
        os.close(master)
    assert process.wait() == 0
    first, *between, last, empty = without_tables(said).split("\r\n")
    assert empty == "" and first.startswith("recording ")
    live = [*between, last][0].split("\r\x1b[K")
    assert between == [] and live[0] == "", "more than one line, or not rewritten from its beginning"
    # One each half second, of which a busy machine may leave out some, and the last one, which stays.
    assert len(live) >= 3
    assert re.match(r"[2-9]\.\d s, ", live[-1])
    for text in (first, *live):
        assert len(text) <= 100 and not CONTROLS.search(text)
    assert all(len(text) < (columns or 100) for text in live[:-1]), (
        "it does not fit into a row, which is all that is cleared"
    )


@pytest.mark.second_tier
def test_it_can_be_run_again_at_once(tmp_path: Path) -> None:
    """Two at the same time do not disturb each other."""
    with (
        running(PYTHON, program("sleepers.py")) as target,
        recording("-p", target.pid, "-o", tmp_path / "one.bpfprof") as one,
    ):
        bpfprof("record", "-p", target.pid, "-d", "0.5", "-o", tmp_path / "two.bpfprof")
        assert_told(one.end(), 0)
    assert collapsed(tmp_path / "one.bpfprof").functions() == collapsed(tmp_path / "two.bpfprof").functions()
    assert "can record here" in completed([*BPFPROF, "doctor"], 0).stdout
