"""`diff`: recordings of two sides, its exit codes, and what goes wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import MS, START_NS, HandMade, Story, file_bytes

TURNS = 100


def made(f_ms: int, is_whole: bool = True, mode: str = "both", waits_ms: int = 2) -> HandMade:
    """In each of 100 turns f runs so long, g 7 ms, and g waits; a sample each millisecond."""
    program = HandMade(end={"end_ns": START_NS + TURNS * (7 + f_ms + waits_ms) * MS} if is_whole else None)
    program.start.update(mode=mode, rate_hz=1000)
    program.process()
    stacks = [program.stack((program.code(name), 0, 1), native_status=0) for name in "fg"]
    story = Story.begin(program)
    for _ in range(TURNS):
        at = [(MS // 2 + each * MS, stacks[each >= f_ms]) for each in range(7 + f_ms)]
        story.run((7 + f_ms) * MS, *at).block(waits_ms * MS, stack=stacks[1])
    story.run(0).total()
    return program


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {str(ms): written(made(ms), tmp_path, f"{ms}.bpfprof") for ms in (3, 4)}


def test_a_slower_function(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", files["3"], files["4"]) == 0
    out = capsys.readouterr().out
    assert out.strip().startswith("f (a.py) got slower by 2") and "\x1b" not in out
    first, second = (line.split(": ", 1) for line in out.splitlines()[-2:])  # a line for a recording that is well
    assert (first[0][:7], first[0][-10:]) == ("before ", "/3.bpfprof")
    assert (second[0][:6], second[0][-10:]) == ("after ", "/4.bpfprof")
    assert first[1].startswith("100.00% of 1.200 s accounted; stacks 100.00%; none lost; ")
    assert run("diff", files["3"], files["3"]) == 0
    assert capsys.readouterr().out.strip().startswith("no difference beyond noise")


def test_json_is_normalised_by_work(files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("diff", files["3"], files["4"], "-f", "json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["function"]: row for row in found["rows"]}
    assert rows["f"]["before_s"] == pytest.approx(3 / 12) and rows["f"]["after_s"] == pytest.approx(4 / 13)
    assert rows["g"]["cpu"]["before_s"] == pytest.approx(7 / 12) and rows["g"]["wait"]["after_s"] == pytest.approx(
        2 / 13
    )
    assert rows["f"]["difference_s"] > 3 * rows["f"]["error_s"] > 0 and rows["f"]["is_beyond_noise"]
    assert found["normalised"]["before_work_s"] == pytest.approx(1.2)
    assert run("diff", files["3"], files["4"], "--per-run", "-o", tmp_path / "x.json") == 0
    rows = {row["function"]: row for row in json.loads((tmp_path / "x.json").read_text())["rows"]}
    assert rows["f"]["after_s"] == pytest.approx(0.4) and rows["g"]["difference_s"] == pytest.approx(0)


def test_pictures(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, arguments in (("a.svg", ()), ("a", ("-f", "svg")), ("b", ("-f", "flamegraph", "--by", "line"))):
        assert run("diff", files["3"], files["4"], "-o", tmp_path / name, *arguments) == 0
        svg = (tmp_path / name).read_text()
        assert "▲ f (a.py" in svg and "f (a.py" in svg and "3.bpfprof → 4.bpfprof" in svg
    assert run("diff", files["3"], files["4"], "-o", tmp_path / "a.html", "--open") == 0
    assert "<!doctype html>" in (tmp_path / "a.html").read_text()
    if os.geteuid() == 0:
        assert f"no browser is started as root; open file://{tmp_path}/a.html" in capsys.readouterr().err
    for wrong in (("--by", "thread", "-o", tmp_path / "c.svg"), ("--open",), ("--open", "-o", tmp_path / "c.json")):
        assert run("diff", files["3"], files["4"], *wrong) == 2


def test_fail_over(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", files["3"], files["4"], "--fail-over", "10") == 6
    assert "1 slower by more than 10%, most of all f by 23.1%" in capsys.readouterr().err
    assert run("diff", files["3"], files["4"], "--fail-over", "50") == 0
    assert run("diff", files["3"], files["3"], "--fail-over", "0") == 0


def test_groups_and_filters(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--before", files["3"], "--before", files["3"], "--after", files["4"]]
    assert run("diff", *sides, "-f", "json", "--offcpu", "--by", "reason") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["reason"] for row in found["rows"]] == ["sleep"] and found["normalised"]["before_recordings"] == 2
    assert run("diff", files["3"], files["4"], "--after", files["3"], "-F", "--function", "^f$", "--time", "..1s") == 0
    assert "g (a.py)" not in capsys.readouterr().out


def test_colour_is_for_terminals(files: dict[str, Path], capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpfprof.commands.diff.sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value, is_coloured in (("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            assert run("diff", files["3"], files["4"]) == 0
        assert ("\x1b[31m" in capfd.readouterr().out) is is_coloured, (name, value, os.environ.get("TERM"))


def test_wrong_use(files: dict[str, Path], tmp_path: Path) -> None:
    one = files["3"]
    for arguments in ([], [one], [one, one, one], ["--before", one], [one, one, "--by", "nothing"]):
        assert run("diff", *arguments) == 2
    assert run("diff", one, files["4"], "-o", one) == 2
    assert run("diff", one, written(made(3, mode="cpu"), tmp_path, "cpu.bpfprof")) == 2


def test_unreadable_recordings(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"no recording")
    assert run("diff", files["3"], garbage) == run("diff", tmp_path / "none", files["3"]) == 5
    assert capsys.readouterr().out == ""
    assert run("diff", files["3"], files["4"], "--after", garbage, "--fail-over", "1") == 5
    assert capsys.readouterr().out.strip().startswith("f (a.py) got slower")
    cut = tmp_path / "cut.bpfprof"
    cut.write_bytes(file_bytes(made(4, is_whole=False).chunks()))
    assert run("diff", files["3"], cut) == 5
    said = capsys.readouterr()
    assert "f (a.py)" in said.out and "is not whole" in said.err
