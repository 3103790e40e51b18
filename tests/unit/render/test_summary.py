"""The summary: the answer first, on one screen, in the width of the terminal; and the same as JSON."""

from __future__ import annotations

import json
import re

import pytest

from bpfprof.model.profile import Profile
from bpfprof.model.spans import SpanFlag
from bpfprof.query.tables.choices import ROW_GROUPINGS
from bpfprof.render.columns import width
from bpfprof.render.formats import RenderOptions
from bpfprof.render.report_json import render_json
from bpfprof.render.summary import MAX_COLUMNS, MIN_COLUMNS, render_summary, summary_lines
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    native,
    python,
    training_profile,
    wait,
    waiting_profile,
)

PROFILES = [training_profile, empty_profile, hostile_profile, deep_profile, waiting_profile]
LEAST_ROWS = 12
CODES = re.compile(r"\x1b\[\d+m")


def crowd(count: int = 60) -> Profile:
    """Threads of one role, one of which works more; and functions enough to fill a screen."""
    made = ProfileBuilder()
    for number in range(count):
        thread = made.thread(101 + number, f"worker_{number}")
        for turn in range(20):
            ns = 40 * MS if number == 7 else 5 * MS
            made.spend(
                thread, ON_CPU, ns, [python(f"step_{(number + turn) % 30}", f"/srv/app/part_{turn}.py", turn + 1)]
            )
        made.wait(thread, 1_000 * MS - 20 * ns, [python("take", line=2), wait("net")], flags=SpanFlag.IDLE)
    return made.build()


@pytest.mark.parametrize("profile", [*PROFILES, crowd])
@pytest.mark.parametrize(("columns", "rows"), [(60, 12), (80, 23), (100, 24), (140, 50), (20, 3), (300, 200)])
def test_it_fits_the_screen(profile, columns: int, rows: int) -> None:
    lines = summary_lines(profile(), columns, rows)
    assert len(lines) <= max(rows, LEAST_ROWS)
    assert max(map(width, lines)) <= min(max(columns, MIN_COLUMNS), MAX_COLUMNS)
    assert lines[-1] and not any(line != line.rstrip() for line in lines)


@pytest.mark.parametrize("profile", [*PROFILES, crowd])
def test_colour_changes_no_letter(profile) -> None:
    given = profile()
    plain, coloured = (summary_lines(given, 80, 24, color) for color in (False, True))
    assert [CODES.sub("", line) for line in coloured] == plain
    assert not any("\x1b" in line for line in plain)


def test_the_answer_is_first_and_the_quality_last() -> None:
    lines = summary_lines(crowd(), 80, 24)
    assert lines[2].startswith("  CPU-bound in Python: ") and lines[0].startswith("python train.py --epochs 3 (100)   ")
    assert lines[-1].startswith("quality: 100.00% of 60.0")


@pytest.mark.parametrize(
    ("long", "short", "said"),
    [
        ([1], 39, "train.py --epochs 3 (1)   2.000 s · 1 process and 39 short ones · 2 threads"),
        ([1, 2], 3, "train.py --epochs 3   2.000 s · 2 processes and 3 short ones · 4 threads"),
        ([1], 2, "train.py --epochs 3   2.000 s · 3 processes · 4 threads"),  # are no crowd
    ],
)
def test_processes_that_lived_short_do_not_count_in_the_title(long: list[int], short: int, said: str) -> None:
    made = ProfileBuilder()
    for number in range(2):
        for pid in long:
            made.spend(made.thread(10 * pid + number, pid=pid), ON_CPU, 1_000 * MS, [python("run")])
    for pid in range(100, 100 + short):
        made.spend(made.thread(pid, pid=pid, process="sh"), ON_CPU, MS, [python("run")])
    assert summary_lines(made.build(), 100, 24)[0] == f"python {said}"


def test_threads_of_a_role_are_one_row_and_one_that_differs_is_apart() -> None:
    lines = summary_lines(crowd(), 80, 24)
    heading = next(number for number, line in enumerate(lines) if line.startswith("threads "))
    first, second = lines[heading + 1 : heading + 3]
    assert {first.split(" (")[0].split()[0], second.split(" (")[0].split()[0]} == {"worker_0..59", "worker_7"}
    assert "worker_0..59 (59)" in first + second


@pytest.mark.parametrize(("count", "said"), [(1, "gzip (others wait for it)"), (3, "gzip (3) (others wait for them)")])
def test_processes_that_one_waits_for_are_not_said_to_wait(count: int, said: str) -> None:
    """Their time is counted as the wait for them; it is spent on a CPU."""
    made = ProfileBuilder()
    main = made.thread(100, pid=100)
    for number in range(count):
        made.spend(main, ON_CPU, 10 * MS, [python("pack", line=3)])
        child = made.thread(200 + number, "gzip", pid=200 + number, process="gzip")
        made.wait(main, 100 * MS, [python("pack", line=4), wait("child")], waker=made.thread_waker(child))
        for _ in range(10):
            made.spend(child, ON_CPU, 10 * MS, [native("deflate", "/usr/bin/gzip")])
    lines = summary_lines(made.build(), 120, 30)
    assert any(line.endswith(f"of {0.11 * count:.3f} s of python; left out: {said}") for line in lines)
    assert next(line for line in lines if line.startswith("gzip: gzip")).endswith("CPU 100%")


def test_without_utf8_it_is_ascii() -> None:
    assert render_summary(crowd(), RenderOptions(ascii_only=True)).isascii()


@pytest.mark.parametrize("by", ["stack", *ROW_GROUPINGS])
@pytest.mark.parametrize("profile", [*PROFILES, crowd])
def test_json_is_as_the_contract_says(profile, by: str) -> None:
    given = json.loads(render_json(profile(), RenderOptions(by=by)))
    assert {"bound", "share", "sentence", "where"} <= set(given["verdict"])
    totals = given["totals"]
    for row in given["rows"]:
        assert ("function" if by == "stack" else by) in row
        for kind in ("cpu", "ready", "wait"):
            assert 0 <= row[f"{kind}_self_s"] <= row[f"{kind}_total_s"] <= totals[f"{kind}_s"] + 1e-6
        assert sum(row["reasons"].values()) == pytest.approx(row["wait_self_s"])
    assert set(given["quality"]) >= {"accounted", "stacks_complete", "lost", "own_cpu"}
    if profile in (training_profile, crowd):
        assert sum(totals[f"{kind}_s"] for kind in ("cpu", "ready", "wait", "idle")) == pytest.approx(totals["wall_s"])
        for thread in given["threads"]:
            parts = [thread[f"{kind}_s"] for kind in ("cpu", "ready", "wait", "idle")]
            assert sum(parts) == pytest.approx(thread["wall_s"])
    if by in ("thread", "process", "container"):
        assert sum(row["cpu_self_s"] for row in given["rows"]) == pytest.approx(totals["cpu_s"])


def test_rows_of_functions_have_own_and_total_time() -> None:
    rows = {row["function"]: row for row in json.loads(render_json(training_profile(), RenderOptions()))["rows"]}
    step, run = rows["Trainer.step"], rows["Trainer.run"]
    assert step["cpu_self_s"] == step["cpu_total_s"] == run["cpu_total_s"] == pytest.approx(0.30000333)
    assert run["cpu_self_s"] == 0 and (step["file"], step["line"]) == ("/srv/app/model.py", 17)
    assert rows["Queue.get"]["reasons"] == {"lock": pytest.approx(1.6)}


def test_names_of_the_target_do_not_act_on_what_reads_them() -> None:
    text = render_json(hostile_profile(), RenderOptions()) + "\n".join(summary_lines(hostile_profile(), 80, 24))
    assert all(char.isprintable() for char in text if char != "\n")
