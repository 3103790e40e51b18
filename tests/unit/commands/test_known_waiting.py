"""`--waiting FILE`: functions that wait besides those known, in every command that makes an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfprof.known import waiting
from bpfprof.known.waiting import KINDS, add_waiting, kind_of
from bpfprof.model.samples import NAME_EVAL, NO_FILE
from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import MS, HandMade, Story

VERBS = ("record", "report", "offcpu", "top", "diff", "compare", "export")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(waiting, "_of_user", [])
    add_waiting(())
    yield
    monkeypatch.undo()
    add_waiting(())


def lines(folder: Path, text: str = "# of ours\nsync  libnpu  npuWait\n") -> Path:
    path = folder / "npu.txt"
    path.write_text(text)
    return path


def in_npu() -> HandMade:
    made = HandMade()
    made.process()
    native = [
        made.native(made.file("/srv/libnpu.so.1"), ("npuWait", "", 0, 0)),
        made.native(made.file("/usr/bin/python3.11"), ("_PyEval_EvalFrameDefault", "", 0, NAME_EVAL)),
        made.native(NO_FILE, address=0x7F00_0000_1000),
    ]
    stack = made.stack((made.code("train", linetable=b"\x80\x00\xd8\x04"), 4, 1), native=native)
    Story.begin(made).run(1000 * MS, *((at * 10 * MS, stack) for at in range(100))).total()
    made.end = {"end_ns": 6_000_000_000}
    return made


@pytest.mark.parametrize(("arguments", "bound"), [((), "native"), (("--waiting",), "gpu")])
def test_a_line_changes_the_answer(
    arguments: tuple[str, ...], bound: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*arguments, *[lines(tmp_path)] * len(arguments)]
    run("report", written(in_npu(), tmp_path), "-f", "json", *given)
    assert json.loads(capsys.readouterr().out)["verdict"]["bound"] == bound


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_takes_lines(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are known before it looks at what else is asked for, which is nothing."""
    assert run(verb, "--waiting", lines(tmp_path)) == 2
    assert "--waiting" not in capsys.readouterr().err
    assert KINDS[kind_of("npuWait", "/srv/libnpu.so.1") - 1] == "sync"


@pytest.mark.parametrize("verb", VERBS)
def test_a_bad_line_and_a_file_that_is_not_there_are_said(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, said in ((lines(tmp_path, "# of ours\nsync libnpu npuWait\n"), "line 2: "), (tmp_path / "no", "No such")):
        assert run(verb, "--waiting", path) == 2
        assert said in (error := capsys.readouterr().err) and str(path) in error
