"""The command lines of `offcpu`, and what they end with; nothing is recorded here."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from bpfprof.commands import report
from bpfprof.model.profile import Profile
from tests.unit.commands.command import run, written
from tests.unit.query.waits.test_off_cpu import only_waits
from tests.unit.recording.hand_made import FUTEX, NANOSLEEP, HandMade, Story, small
from tests.unit.render.profiles import MS, hostile_profile, waiting_profile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording."""
    return written(small(), tmp_path)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, path: Path, request: pytest.FixtureRequest) -> Path:
    """The recording, which gives the profile of the marker `profile` whatever is in it."""
    profile = only_waits(request.param() if hasattr(request, "param") else waiting_profile())
    monkeypatch.setattr(report, "build_profile", lambda *_: profile)
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to record"),
        ([], "bpfprof offcpu RECORDING"),
        (["--pid", "1", "-a"], "--all already includes process 1"),
        (["-a", "--", "true"], "--all already includes true"),
        (["a.bpfprof", "b.bpfprof"], "one recording, or a command after --"),
        (["PATH", "--pid", "1"], "--pid is for recording"),
        (["PATH", "-d", "1"], "--duration is for recording"),
        (["PATH", "--no-wakers"], "--no-wakers is for recording"),
        (["PATH", "-S"], "--no-subprocesses is for recording"),
        (["PATH", "-o", "PATH"], "a table is not a recording"),
        (["PATH", "-f", "svg", "-o", "PATH"], "cannot replace its recording"),
        (["PATH", "-f", "jpeg"], "there is no format jpeg"),
        (["PATH", "--by", "colour"], "--by"),
        (["PATH", "-n", "0"], "--limit"),
        (["PATH", "--by", "thread", "-f", "svg"], "--by is for tables"),
        (["PATH", "-n", "3", "-o", "x.json"], "--limit is for tables"),
        (["PATH", "--waker"], "--waker is for stacks"),
        (["-p", "1", "--waker", "-f", "table"], "--waker is for stacks"),
        (["-p", "1", "-r", "fast"], "--rate"),
        (["-p", "1", "-d", "nan"], "--duration"),
        (["-p", "1", "-d", "inf"], "--duration"),
        (["-p", "1", "--mode", "cpu"], "--mode"),
        (["-f", "flamegraph", "--", "true"], "belongs to the command"),
        (["-p", "1", "--kill"], "--kill is for a command"),
        (["PATH", "--kill"], "--kill is for recording"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], words: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", *(path if word == "PATH" else word for word in arguments)) == 2
    assert words in capsys.readouterr().err


def test_what_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("abc")
    assert run("offcpu", tmp_path / "missing") == 5
    assert run("offcpu", tmp_path / "text") == 5
    assert "cannot be read" in capsys.readouterr().err


def test_a_table_of_a_recording(shown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", shown) == 0
    assert "\nsleep in produce (train.py:48)\n" in capsys.readouterr().out
    assert run("offcpu", shown, "--by", "thread", "-n", "1") == 0
    out = capsys.readouterr().out
    assert "\nthread producer (101), process python (100)\n" in out and "and 2 more groups, " in out
    assert run("offcpu", shown, "--hide-idle", "-F", "--waker-depth", "1") == 0
    out = capsys.readouterr().out
    assert (
        "; idle ones hidden, 1.900 s\n" in out
        and "idle: " not in out
        and "whose wait before" not in out
        and "sleep in produce (train.py)\n" in out
    )


def test_other_formats_of_a_recording(shown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", shown, "-f", "collapsed", "--waker") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(";[off-cpu: lock];[woken by thread producer (101)];sem_post" in line for line in lines)
    assert all("hog_gil" not in line.split("[woken by")[0] for line in lines), "no CPU time"
    assert run("offcpu", shown, "-o", tmp_path / "a.svg") == 0
    assert "Flame graph of waits" in (tmp_path / "a.svg").read_text()
    assert run("offcpu", shown, "-o", tmp_path / "a.speedscope.json") == 0
    assert run("offcpu", shown, "-f", "table", "-o", tmp_path / "a.table") == 0
    assert "▄█" in (tmp_path / "a.table").read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf8(shown: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding, "replace"))
    assert run("offcpu", shown) == 0
    assert b"20ms =@ 59ms" in raw.getvalue()


@pytest.mark.parametrize("shown", [hostile_profile], indirect=True)
def test_a_recording_that_is_not_whole_is_shown_and_told(shown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", shown) == 5
    captured = capsys.readouterr()
    assert "UNFINISHED RECORDING" in captured.out and "not whole" in captured.err


@pytest.mark.parametrize("command", ["report", "offcpu"])
def test_ctrl_c_before_it_is_done(command: str, shown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Profile:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "build_profile", interrupt)
    assert run(command, shown) == 130


@pytest.fixture
def handed_over(tmp_path: Path) -> Path:
    """A recording of 3 x 20 ms: a thread waits for what another hands over after a sleep of 15 ms."""
    made = HandMade()
    made.process(100)
    get, put, work = (made.code(name) for name in ("Queue.get", "Queue.put", "work"))
    getting, putting, working = (made.stack((code, 0, 0)) for code in (get, put, work))
    consumer, producer = Story.begin(made, tid=100), Story.begin(made, tid=101)
    waker = made.waker(thread=1, pid=100, tid=101, name="main")
    for _ in range(3):
        producer.run(1 * MS).block(15 * MS, stack=working, syscall=NANOSLEEP, waker_kind=2).run(4 * MS)
        by = {"waker": waker, "waker_kind": 1, "waker_stack": putting}
        consumer.run(1 * MS).block(18 * MS, ready=MS // 2, stack=getting, syscall=FUTEX, args=(0x7F50, 0, 0), **by)
        consumer.run(MS // 4).block_short(MS // 20, syscall=FUTEX).run(MS // 5)
    consumer.total()
    producer.preempt(MS).run(MS).total()
    made.end = {"end_ns": max(consumer.now_ns, producer.now_ns), "own_cpu_ns": 0, "lost": {}}
    return written(made, tmp_path)


def test_from_a_recording_to_the_table(handed_over: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", handed_over) == 0
    out = capsys.readouterr().out
    assert "\nwaiting for a lock in Queue.get (a.py:" in out and "\nsleep in work (a.py:" in out
    assert " 54.00 ms  54.5%         3 18.00 ms 18.00 ms 18.00 ms 18.00 ms  18ms █ 18ms\n" in out
    assert "    woken by thread main (101) in Queue.put (a.py), 100%\n" in out
    assert "      why it was late: sleep in work (a.py), ended by a timer, 100%\n" in out
    assert "which have no stack: 3, together 150.0 us\n" in out
    assert "exact in every thread" in out
    assert run("offcpu", handed_over, "--by", "lock") == 0
    out = capsys.readouterr().out
    assert (
        "\nlock #1, wanted in Queue.get (a.py), process python (100)\n" in out
        and "waits without a lock: 45.00 ms" in out
    )


def test_from_a_recording_to_stacks(handed_over: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("offcpu", handed_over, "-f", "collapsed", "--waker", "-F") == 0
    lines = [line.split(";", 2)[2] for line in capsys.readouterr().out.splitlines()]
    # What the producer did before it woke for the first time is before its first sleep was over.
    mark = "Queue.get (a.py);[off-cpu: lock];[woken by thread main (101)];Queue.put (a.py)"
    assert f"{mark};[woken by timer] 54000" in lines
    assert "work (a.py);[off-cpu: sleep];[woken by timer] 45000" in lines
    assert "[short waits];[off-cpu: lock] 150" in lines and len(lines) == 3
