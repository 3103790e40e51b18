"""The tables of a data set: they sum to what reports say, are documented, and come and go as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bpfprof.errors import OutputError
from bpfprof.fleet import writer
from bpfprof.fleet.layout import RECORDINGS, SPANS, STEPS, TABLES, WEIGHTS
from bpfprof.fleet.rows import MINUTE_NS
from bpfprof.fleet.writer import write_recording
from bpfprof.model.profile import Profile
from bpfprof.render.formats import JSON, RenderOptions
from tests.unit.query.steps.test_steps import ADAM, LOADER, MODULE, TENSOR, Loop, train
from tests.unit.render.profiles import (
    INFO,
    MS,
    OFF_CPU,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    python,
    training_profile,
    wait,
    waiting_profile,
)

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "fleet.md").read_text()
every_profile = pytest.mark.parametrize(
    "profile", [training_profile, waiting_profile, hostile_profile, deep_profile, empty_profile]
)


def tables(folder: Path) -> dict[str, pyarrow.Table]:
    return {name: pyarrow.parquet.ParquetFile(folder / f"{name}.parquet").read() for name in TABLES}


def sums(rows: list[dict], *keys: str) -> dict[tuple, int]:
    found: dict[tuple, int] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        found[key] = found.get(key, 0) + row["ns"]
    return {key: ns for key, ns in found.items() if ns}


@every_profile
def test_spans_sum_to_weights_and_both_to_the_report(profile: Callable[[], Profile], tmp_path: Path) -> None:
    made = tables(write_recording(profile(), "r1", {}, tmp_path))
    spans, weights = made[SPANS].to_pylist(), made[WEIGHTS].to_pylist()
    keys = ("thread_id", "stack_id", "state", "reason", "idle")
    assert sums(spans, *keys) == sums(weights, *keys)
    report = json.loads(str(JSON.render(profile(), RenderOptions())))
    (recording,) = made[RECORDINGS].to_pylist()
    for name in ("cpu", "ready", "wait", "idle"):
        of_it = [row["ns"] for row in weights if row["state"] == name and not row["idle"]]
        of_it = [row["ns"] for row in weights if row["idle"]] if name == "idle" else of_it
        assert sum(of_it) == recording[f"{name}_ns"] == round(report["totals"][f"{name}_s"] * 1e9)
    functions = [
        tuple(row[f"{name}_ns"] for name in ("cpu", "ready", "wait", "wait_total"))
        for row in made["functions"].to_pylist()
    ]
    names = ("cpu_self", "ready_self", "wait_self", "wait_total")
    of_report = [tuple(round(row[f"{name}_s"] * 1e9) for name in names) for row in report["rows"]]
    assert sorted(functions) == sorted(of_report)


@every_profile
def test_ids_lead_to_rows_and_texts_are_printable(profile: Callable[[], Profile], tmp_path: Path) -> None:
    made = tables(write_recording(profile(), "r1", {"a\x1b": "b\u202e"}, tmp_path))
    counts = {f"{name}_id": made[f"{name}s"].num_rows for name in ("thread", "stack", "frame")}
    assert all(frame < counts["frame_id"] for stack in made["stacks"].to_pylist() for frame in stack["frames"])
    for row in [*made[SPANS].to_pylist(), *made[WEIGHTS].to_pylist()]:
        for name, value in row.items():
            known = counts.get(re.sub("^(?:waker|holder)_", "", name))
            assert known is None or value is None or 0 <= value < known
    told = json.dumps([table.to_pylist() for table in made.values()], default=str, ensure_ascii=False)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e\u2028]", told)
    assert "\\u00" not in told


def test_every_column_is_documented(tmp_path: Path) -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###|\Z)", TEXT, re.MULTILINE | re.DOTALL))
    assert list(sections) == [*TABLES]
    for name, table in tables(write_recording(training_profile(), "r1", {}, tmp_path)).items():
        first = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", sections[name], re.MULTILINE)
        # What cannot be shown in a row of its own table stands beside it.
        documented = {column for cell in first for column in re.findall(r"`(\w+)`", cell)}
        assert set(table.column_names) - documented <= {"overlap_ns"}, name
        assert documented <= set(table.column_names), name


def test_each_minute_has_its_part_of_a_wait(tmp_path: Path) -> None:
    made = ProfileBuilder(
        info=replace(INFO, started_unix_ns=INFO.started_unix_ns // MINUTE_NS * MINUTE_NS + 50_000 * MS)
    )
    thread = made.thread(100)
    stack = [python("work")]
    made.spend(thread, ON_CPU, 4_000 * MS, stack)
    made.spend(thread, OFF_CPU, 100_000 * MS, [*stack, wait("net")], stands_for_ns=200_000 * MS + 1)
    rows = tables(write_recording(made.build(), "r1", {}, tmp_path))[WEIGHTS].to_pylist()
    waits = sorted((row["minute"], row["ns"], row["count"]) for row in rows if row["state"] == "wait")
    first = waits[0][0]
    assert [(each - first).total_seconds() for each, _, _ in waits] == [0, 60, 120]
    # It begins six seconds before the end of the first one, and stands for twice its own length.
    assert [ns // MS for _, ns, _ in waits] == [12_000, 120_000, 68_000]
    assert sum(ns for _, ns, _ in waits) == 200_000 * MS + 1
    assert [count for _, _, count in waits] == [1, 0, 0]


def test_steps_are_those_of_the_report(tmp_path: Path) -> None:
    loop = Loop()
    for _ in range(6):
        loop.wait(7 * MS, train(11), LOADER)
        loop.run(2, train(13), MODULE)
        loop.run(3, train(14), TENSOR)
        loop.run(2, train(15), ADAM)
    (steps,) = loop.steps()
    rows = tables(write_recording(loop.made.build(), "r1", {}, tmp_path))[STEPS].to_pylist()
    assert [row["step"] for row in rows] == list(range(len(steps))) and len(rows) >= 4
    assert [row["start_ns"] for row in rows] == steps.begin_ns.tolist()
    assert {row["duration_ns"] for row in rows} == {77 * MS}
    assert {row["function"] for row in rows} == {"train"} and {row["how"] for row in rows} == {"loop"}
    spent = {"data wait": 7 * MS, "forward": 20 * MS, "backward": 30 * MS, "optimizer": 20 * MS}
    assert all(dict(row["phases"]) == spent for row in rows)


def test_a_recording_is_there_once(tmp_path: Path) -> None:
    first = write_recording(training_profile(), "r1", {"version": "1"}, tmp_path)
    again = write_recording(training_profile(), "r1", {"version": "2"}, tmp_path)
    assert first == again == tmp_path / "date=2023-11-14" / "host=node-7" / "recording=r1"
    assert tables(again)[RECORDINGS].to_pylist()[0]["labels"] == [("version", "2")]
    assert [each.name for each in first.parent.iterdir()] == ["recording=r1"]


def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write_recording(training_profile(), "r1", {"version": "1"}, tmp_path)
    write = writer._write

    def full(path: Path, *arguments: object, **more: object) -> None:
        # Whoever looks meanwhile sees all of the recording, and nothing else by a name that readers ask for.
        assert [each.name for each in written.parent.glob("recording=*")] == ["recording=r1"]
        if path.stem == SPANS:
            raise OSError(28, "No space left on device")
        write(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "_write", full)
    with pytest.raises(OutputError, match="No space left"):
        write_recording(training_profile(), "r1", {"version": "2"}, tmp_path)
    assert tables(written)[RECORDINGS].to_pylist()[0]["labels"] == [("version", "1")]
    assert [each.name for each in written.parent.iterdir()] == ["recording=r1"]


def test_a_host_is_no_path(tmp_path: Path) -> None:
    for host in ("../../x", "a/b", "", "\x1b[31m", "x" * 300):
        made = replace(empty_profile(), info=replace(INFO, host_name=host))
        written = write_recording(made, "r1", {}, tmp_path)
        assert written.resolve().parents[2] == tmp_path.resolve()
