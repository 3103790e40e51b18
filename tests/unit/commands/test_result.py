"""What is left of a recording that was to become something else, when that is not made."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.commands.result import Result
from bpfprof.errors import TargetError
from bpfprof.render.formats import FLAMEGRAPH, PAGE

RECORDED = b"what was recorded"


def recorded(path: Path) -> Result:
    result = Result.open(path, None, FLAMEGRAPH if path.suffix == ".svg" else PAGE, path.parent / "spare.bpfprof")
    result.recording.write(RECORDED)
    result.recording.flush()
    return result


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_report_that_had_no_time_leaves_the_recording_beside(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    error = recorded(path).out_of_time()
    assert [it.name for it in tmp_path.iterdir()] == ["x.bpfprof"]
    assert (tmp_path / "x.bpfprof").read_bytes() == RECORDED
    assert str(path) in str(error) and error.exit_code == 5
    assert error.hint.startswith(f"bpfprof report {tmp_path / 'x.bpfprof'} ") and error.hint.endswith(f"-o {path}")


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "x.bpfprof").write_text("an older recording")
    (tmp_path / "x.svg").write_text("an older picture")
    error = recorded(tmp_path / "x.svg").out_of_time()
    assert (tmp_path / "x.bpfprof").read_text() == "an older recording"
    assert (tmp_path / "x.svg").read_text() == "an older picture"
    assert (tmp_path / "spare.bpfprof").read_bytes() == RECORDED and "spare.bpfprof" in error.hint


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt(), RuntimeError("a bug")])
def test_whatever_ends_it_keeps_the_recording(
    end: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(end)), recorded(tmp_path / "x.svg").watched_over():
        raise end
    assert (tmp_path / "x.bpfprof").read_bytes() == RECORDED
    assert not (tmp_path / "x.svg").exists() and "x.bpfprof" in capsys.readouterr().err


def test_where_nothing_was_recorded_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(TargetError), recorded(tmp_path / "x.svg").watched_over():
        raise TargetError("there is no such process")
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_be_kept_is_not_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = recorded(tmp_path / "x.svg")
    (tmp_path / "x.bpfprof").mkdir()
    result.out_of_time()
    assert "could not be kept" in capsys.readouterr().err


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_file_that_was_renamed_meanwhile_is_told(
    is_renamed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = recorded(tmp_path / "x.svg")
    if is_renamed:
        (tmp_path / "x.svg").rename(tmp_path / "moved")
    result.write("a picture")
    assert ((tmp_path / ("moved" if is_renamed else "x.svg")).read_text()) == "a picture"
    assert ("x.svg was renamed or removed meanwhile" in capsys.readouterr().err) == is_renamed
