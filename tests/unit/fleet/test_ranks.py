"""Ranks in a data set: those of a launcher, recorded together, and those that have recordings of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from bpfprof.errors import UsageError
from bpfprof.fleet.answers import Asked, slow
from bpfprof.fleet.engines import DUCKDB, Limits, opened
from bpfprof.fleet.writer import write_recording
from bpfprof.model.profile import PROFILE_MARK_DTYPE, Profile
from tests.unit.render.profiles import INFO, MS, OFF_CPU, ON_CPU, ProfileBuilder, python, wait

STEPS, LOADED_MS = 5, {"3": 400}  # of rank 3 each step waits so long for its samples, of the others 100 ms


def ranks_of(host: str, ranks: Sequence[str]) -> Profile:
    """A launcher, which only waits, and its ranks, each for its STEPS in a process of its own."""
    made = ProfileBuilder(info=replace(INFO, host_name=host, started_unix_ns=INFO.started_unix_ns + int(ranks[0] or 0)))
    made.spend(made.thread(99, "torchrun", 99, "torchrun"), OFF_CPU, 4_000 * MS, [python("launch"), wait("child")])
    marks = np.zeros(0, PROFILE_MARK_DTYPE)
    for place, rank in enumerate(ranks):
        thread = made.thread(100 + place, pid=100 + place)
        load_ms = LOADED_MS.get(rank, 100)
        for _ in range(STEPS):
            made.spend(thread, OFF_CPU, load_ms * MS, [python("train"), python("read_batch"), wait("disk")])
            made.spend(thread, ON_CPU, 300 * MS, [python("train"), python("forward")])
        of_rank = np.zeros(STEPS, PROFILE_MARK_DTYPE)
        of_rank["thread"], of_rank["duration_ns"] = thread, (300 + load_ms) * MS
        of_rank["start_ns"] = np.arange(STEPS) * (300 + load_ms) * MS
        marks = np.concatenate([marks, of_rank])
    profile = made.build()
    threads = tuple(
        replace(each, rank=f"RANK={rank}" if rank else "") for each, rank in zip(profile.threads, ("", *ranks))
    )
    info = replace(profile.info, duration_ns=4_000 * MS)
    return replace(profile, info=info, threads=threads, marks=marks, mark_names=("step",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two nodes of two ranks each, and a third whose recording is that of one rank, by its label."""
    for number, ranks in enumerate((("0", "1"), ("2", "3"))):
        write_recording(ranks_of(f"node-{number}", ranks), f"r{number}", {"job": "1"}, tmp_path)
    write_recording(ranks_of("node-2", [""]), "r2", {"job": "1", "rank": "4"}, tmp_path)
    return tmp_path


def test_the_slow_rank_of_one_recording_is_found(folder: Path) -> None:
    with opened(str(folder), DUCKDB, Limits()) as engine:
        rows = slow(engine, Asked(by="rank"))["rows"]
        steps = slow(engine, Asked(by="rank", sort="step"))["rows"]
    assert sorted(row["rank"] for row in rows) == ["0", "1", "2", "3", "4"]
    first = rows[0]
    assert (first["rank"], first["recordings"], first["recorded_s"]) == ("3", 1, 4.0)
    assert first["own"] == pytest.approx((1.5 + 2.0) / 4)
    assert {row["own"] for row in rows[1:]} == {(1.5 + 0.5) / 4}
    (why,) = first["why"]
    assert (why["reason"], why["function"], why["more"]) == ("disk", "read_batch", pytest.approx(1.5 / 4))
    assert [(row["rank"], row["steps"], row["step_s"]) for row in steps[:1]] == [("3", STEPS, 0.7)]
    assert {(row["steps"], row["step_s"]) for row in steps[1:]} == {(STEPS, 0.4)} and len(steps) == 5
    (phase,) = steps[0]["phases"]
    assert phase["more_s"] == pytest.approx(0.3)


def test_recordings_from_before_there_were_ranks(folder: Path) -> None:
    """Their files have no such column: they are asked by all else, alone and among others."""
    files = [*folder.rglob("recording=r*/*.parquet")]
    for recordings in (("r0",), ("r1", "r2")):
        for path in files:
            if path.parent.name.partition("=")[2] in recordings:
                table = pyarrow.parquet.ParquetFile(path).read()
                kept = [name for name in table.column_names if name != "rank"]
                pyarrow.parquet.write_table(table.select(kept), path)
        with opened(str(folder), DUCKDB, Limits()) as engine:
            hosts = slow(engine, Asked())["rows"]
            ranks = slow(engine, Asked(by="rank"))["rows"]
        assert hosts[0]["host"] == "node-1"
        assert {row["rank"] for row in ranks} == ({"2", "3", "4"} if recordings == ("r0",) else {"4"})


def test_without_ranks(tmp_path: Path) -> None:
    write_recording(ranks_of("node-0", [""]), "r0", {}, tmp_path)
    with opened(str(tmp_path), DUCKDB, Limits()) as engine, pytest.raises(UsageError, match="rank"):
        slow(engine, Asked(by="rank"))
