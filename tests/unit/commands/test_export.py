"""`bpfprof export` and `bpfprof fleet`: what they say and with what they end."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import small


def test_exports_and_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, folder = written(small(), tmp_path), tmp_path / "set"
    copy = tmp_path / "copy.bpfprof"
    copy.write_bytes(recording.read_bytes())
    assert run("export", recording, copy, "--to", folder, "--label", "version=1.4") == 0
    assert len([*folder.glob("date=*/host=*/recording=*")]) == 1
    capsys.readouterr()
    assert run("report", recording, "--by", "function", "-f", "json", "--sort", "own") == 0
    report = json.loads(capsys.readouterr().out)
    assert run("fleet", "top", folder, "-f", "json", "--where", "version=1.4", "-n", "1000") == 0
    top = json.loads(capsys.readouterr().out)
    assert top["recordings"] == 1
    assert sorted(row["cpu_s"] for row in top["rows"]) == sorted(row["cpu_self_s"] for row in report["rows"])
    for query in ("top", "waits", "slowest"):
        assert run("fleet", query, folder) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["export", "--to", "DIR"], 2, "say which recordings"),
        (["export", "a.bpfprof"], 2, "say where to"),
        (["export", "missing.bpfprof", "--to", "DIR"], 5, "cannot be read"),
        (["export", "a.bpfprof", "--to", "DIR", "--label", "x"], 2, "--label wants NAME=VALUE"),
        (["export", "a.bpfprof", "--to", "DIR", "--label", "host=x"], 2, "a label cannot be called host"),
        (["fleet", "top", "DIR"], 5, "has no recordings"),
        (["fleet", "tops", "DIR"], 2, "QUERY wants one of"),
        (["fleet", "top", "DIR", "--by", "rank"], 2, "--by means nothing to top"),
        (["fleet", "waits", "DIR", "--every", "9"], 2, "--every wants minutes"),
        (["fleet", "regressions", "DIR"], 2, "say what is compared"),
        (["fleet", "top", "DIR", "--sort", "work"], 2, "top cannot be sorted by work"),
        (["fleet", "top", "DIR", "--engine", "flink"], 2, "--engine wants duckdb"),
    ],
)
def test_wrong_use(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == code
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_damage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    assert run("export", written(small(), tmp_path), "--to", folder) == 0
    (damaged,) = folder.glob("*/*/*/functions.parquet")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-100])
    assert run("fleet", "top", folder) == 5
    assert "functions.parquet" in capsys.readouterr().err
    other = pyarrow.table({"function": [1], "cpu_ns": ["\x1b[31m"]})
    pyarrow.parquet.write_table(other, damaged)
    assert run("fleet", "top", folder) == 5
    assert "functions.parquet has no column" in capsys.readouterr().err
    # Names that another program wrote are printed without what acts on a terminal.
    table = pyarrow.parquet.read_table(io.BytesIO(whole))
    evil = pyarrow.array(["\x1b[31m\u202e"] * table.num_rows)
    pyarrow.parquet.write_table(table.set_column(table.column_names.index("function"), "function", evil), damaged)
    assert run("fleet", "top", folder) == 0
    shown = capsys.readouterr().out
    assert "?[31m?" in shown and "\x1b" not in shown and "\u202e" not in shown


def test_nothing_is_like_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    assert run("export", written(small(), tmp_path), "--to", folder) == 0
    assert run("fleet", "top", folder, "--where", "version=9") == 2
    assert "no recording is like that" in capsys.readouterr().err
    assert run("fleet", "slowest", folder, "--by", "rank") == 2
    assert "no recording has the label rank" in capsys.readouterr().err
    assert run("fleet", "regressions", folder, "--before", "version=1", "--after", "version=2") == 2
    assert "no recordings before" in capsys.readouterr().err


def test_without_the_extra(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module, engine, extra in (("ibis", "duckdb", "fleet"), ("pyspark", "spark://x:1", "spark")):
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, module, None)
            assert run("fleet", "top", tmp_path, "--engine", engine) == 3
        assert f"pip install 'bpfprof[{extra}]'" in capsys.readouterr().err
