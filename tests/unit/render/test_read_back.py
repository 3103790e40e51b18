"""Files for other tools, read back by these: CPU, ready and waits are those of the JSON."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import pstats
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from markdown_it import MarkdownIt

from bpfprof.model.frames import FrameKind
from bpfprof.model.profile import Profile
from bpfprof.render.formats import RenderOptions, find_format
from bpfprof.render.labels import frame_labels, printable
from tests.other_tools import ask_perfetto, firefox, needs_firefox, needs_perfetto, needs_pprof, read_pprof
from tests.unit.render.profiles import (
    MS,
    ON_CPU,
    READY,
    RUNQUEUE,
    ProfileBuilder,
    deep_profile,
    empty_profile,
    hostile_profile,
    python,
    training_profile,
    wait,
    waiting_profile,
)

Nanoseconds = tuple[int, int, int]  # CPU, ready, wait
every_profile = pytest.mark.parametrize(
    "profile", [training_profile, waiting_profile, hostile_profile, deep_profile, empty_profile]
)
needs_annotate = pytest.mark.skipif(shutil.which("callgrind_annotate") is None, reason="no callgrind_annotate")


def written(profile: Profile, name: str, path: Path, options: RenderOptions | None = None) -> Path:
    known = find_format(name)
    assert known is not None
    content = known.render(profile, options or RenderOptions())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def wanted(profile: Profile, tmp_path: Path) -> Nanoseconds:
    totals = json.loads(written(profile, "json", tmp_path / "a.json").read_text())["totals"]
    cpu, ready, wait, idle = (round(totals[name] * 1e9) for name in ("cpu_s", "ready_s", "wait_s", "idle_s"))
    return cpu, ready, wait + idle


@pytest.mark.second_tier
@needs_pprof
@every_profile
def test_pprof(profile: Callable[[], Profile], tmp_path: Path) -> None:
    content = read_pprof(written(profile(), "pprof", tmp_path / "a.pb.gz"))
    assert content["types"] == [[name, "nanoseconds"] for name in ("cpu", "ready", "wait")]
    assert content["default"] == "cpu"
    sums = tuple(sum(sample["values"][place] for sample in content["samples"]) for place in range(3))
    assert sums == wanted(profile(), tmp_path)


@pytest.mark.second_tier
@needs_pprof
def test_pprof_has_lines_objects_and_labels(tmp_path: Path) -> None:
    content = read_pprof(written(training_profile(), "pprof", tmp_path / "a.pb.gz"))
    assert "/usr/lib/libopenblas.so.0" in content["files"]
    frames = {tuple(frame) for sample in content["samples"] for frame in sample["frames"]}
    assert ("Trainer.step", "model.py", 17) in frames
    labels = [sample["labels"] for sample in content["samples"]]
    assert {"thread": "MainThread", "tid": 100, "process": "python", "pid": 100, "reason": "gil"} in labels
    made = ProfileBuilder()
    one, other = made.thread(100, "MainThread"), made.thread(101, "other")
    made.spend(other, ON_CPU, 5 * MS, [python("hold", line=9)])
    made.wait(one, 5 * MS, [python("audit", line=3), wait("lock")], lock=0x5600, waker=made.thread_waker(other))
    content = read_pprof(written(made.build(), "pprof", tmp_path / "b.pb.gz"))
    assert {sample["labels"].get("lock") for sample in content["samples"]} >= {"#1"}


@needs_annotate
@every_profile
def test_callgrind(profile: Callable[[], Profile], tmp_path: Path) -> None:
    file = written(profile(), "callgrind", tmp_path / "a.callgrind")
    done = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", str(file)], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    found = re.search(r"^ *([\d,]+) .*PROGRAM TOTALS", done.stdout, re.MULTILINE)
    assert found or profile is empty_profile, done.stdout
    # What the functions spent themselves: lines of costs that no line of a call stands before.
    lines = file.read_text().splitlines()
    costs = [one for before, one in zip(lines, lines[1:]) if one[:1].isdigit() and not before.startswith("calls=")]
    sums = [sum(int(line.split()[place]) for line in costs) for place in (1, 2, 3)]
    assert sums == [(ns + 500) // 1000 for ns in wanted(profile(), tmp_path)]
    assert not found or int(found[1].replace(",", "")) == sums[0]


@every_profile
def test_pstats(profile: Callable[[], Profile], tmp_path: Path) -> None:
    file = written(profile(), "pstats", tmp_path / "a.pstats")
    if profile is empty_profile:
        return  # pstats refuses a file without a function
    stats: dict[Any, Any] = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    sums = [0, 0, 0]
    for (_, _, name), (_, _, own, below, callers) in stats.items():
        sums[1 if name == "[runqueue]" else 2 if name.startswith("[off-cpu") else 0] += round(own * 1e9)
        assert own <= below
        assert not callers or sum(round(it[2] * 1e9) for it in callers.values()) == round(own * 1e9)
    assert tuple(sums) == wanted(profile(), tmp_path)


@every_profile
def test_gprof2dot_opens_them(profile: Callable[[], Profile], tmp_path: Path) -> None:
    for name in ("callgrind", "pstats") if profile is not empty_profile else ():
        file = written(profile(), name, tmp_path / f"a.{name}")
        command = [sys.executable, "-m", "gprof2dot", "-f", name, "-n0", "-e0", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.startswith("digraph"), done.stderr


@every_profile
def test_csv_has_the_rows_of_the_json(profile: Callable[[], Profile], tmp_path: Path) -> None:
    for by in ("function", "line", "library", "thread", "reason", "lock"):
        options = RenderOptions(by=by)
        text = written(profile(), "csv", tmp_path / "a.csv", options).read_text()
        rows = json.loads(written(profile(), "json", tmp_path / "a.json", options).read_text())["rows"]
        found = list(csv.DictReader(io.StringIO(text)))
        assert [row[by] for row in found] == ["" if row[by] is None else str(row[by]) for row in rows]
        for name in ("cpu_self_s", "ready_total_s", "wait_self_s"):
            assert [round(float(row[name]), 9) for row in found] == [row[name] for row in rows]


@pytest.mark.second_tier
@needs_perfetto
@pytest.mark.parametrize("profile", [waiting_profile, hostile_profile])
def test_perfetto_reads_a_trace(profile: Callable[[], Profile], tmp_path: Path) -> None:
    """Kinds of time by thread; arrows from a thread that runs to one that goes on; calls that are balanced."""
    given = profile()
    file = written(given, "chrome", tmp_path / "a.trace.json")
    by_thread = "SELECT tid, category, sum(dur) FROM slice JOIN thread_track ON track_id = thread_track.id"
    by_thread += " JOIN thread USING(utid) WHERE category IN ('cpu', 'ready', 'wait', 'lost') GROUP BY 1, 2"
    arrows = "SELECT one.category, other.category FROM flow JOIN slice one ON one.id = slice_out"
    arrows += " JOIN slice other ON other.id = slice_in"
    open_calls = "SELECT count(*) FROM slice WHERE dur < 0"
    wrong = "SELECT name, value FROM stats WHERE value > 0 AND severity <> 'info'"
    names = "SELECT name FROM thread WHERE name IS NOT NULL"
    times, flows, never_end, stats, called = ask_perfetto(file, by_thread, arrows, open_calls, wrong, names)
    found = {(tid, kind): ns for tid, kind, ns in times}
    for thread in given.threads:
        kinds = {"cpu": thread.on_cpu_ns, "ready": thread.runqueue_ns, "wait": thread.off_cpu_ns}
        assert {kind: found.get((int(thread.tid), kind), 0) for kind in kinds} == kinds
    assert stats == [] and never_end == [[0]]
    assert bool(flows) == (profile is waiting_profile)
    assert {printable(thread.thread_name) for thread in given.threads} <= {name for (name,) in called}


@pytest.mark.second_tier
@needs_firefox
def test_the_firefox_profiler_reads_a_file(tmp_path: Path) -> None:
    given = waiting_profile()
    with firefox(written(given, "gecko", tmp_path / "a.gecko.json")) as opened:
        assert {each["name"] for each in opened.threads} == {thread.thread_name for thread in given.threads}
        main = next(each for each in opened.threads if each["name"] == "MainThread")
        found = {name: round(ms * 1e6) for name, ms in opened.categories(main["threadHandle"]).items()}
        thread = given.threads[0]
        of_waits = dict(thread.off_by_reason)
        assert found == {"Lock": of_waits["lock"], "GIL": of_waits["gil"], "Ready, no CPU": thread.runqueue_ns}
        markers = opened.ask("thread", "markers", "--thread", main["threadHandle"], "--list", "--limit", "0")
        assert "waiting: lock" in json.dumps(markers) and "waiting: GIL" in json.dumps(markers)


@pytest.mark.second_tier
@needs_firefox
def test_the_firefox_profiler_takes_hostile_names(tmp_path: Path) -> None:
    with firefox(written(hostile_profile(), "gecko", tmp_path / "a.gecko.json")) as opened:
        (thread,) = opened.threads
        assert "alert(1)" in thread["name"]
        whole_ms = sum(opened.categories(thread["threadHandle"]).values())
        assert round(whole_ms * 1e6) == hostile_profile().threads[0].wall_ns


@every_profile
def test_parquet_in_duckdb_and_pyarrow(profile: Callable[[], Profile], tmp_path: Path) -> None:
    file = written(profile(), "parquet", tmp_path / "a.parquet")
    rows = duckdb.sql(f"SELECT state, sum(ns)::BIGINT FROM '{file}' GROUP BY 1").fetchall()
    assert tuple(dict(rows).get(state, 0) for state in ("cpu", "ready", "wait")) == wanted(profile(), tmp_path)
    table = pyarrow.parquet.read_table(file)
    assert int(table.schema.metadata[b"bpfprof.wall_ns"]) == sum(thread.wall_ns for thread in profile().threads)
    options = RenderOptions()
    labels = frame_labels(profile(), options)
    stacks = {tuple(labels[frame] for frame in stack) for stack in profile().stacks}
    assert {tuple(frames) for frames in table["frames"].to_pylist()} <= stacks


class Page(html.parser.HTMLParser):
    """Cells of each row, and all that is no text or known element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self._in_cell = self._in_cell or tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def odd_names_profile() -> Profile:
    """Names that would end a cell, begin something, or be a link."""
    made = ProfileBuilder()
    names = [*_ODD_NAMES, *(f"{one}|{other}" for one in _ODD_NAMES for other in _ODD_NAMES)]
    for tid, name in enumerate(names, 100):
        thread = made.thread(tid, name, process=name)
        made.spend(thread, ON_CPU, 5 * MS, [python(name, f"/srv/{name}.py", 3)])
        made.spend(thread, RUNQUEUE, 5 * MS, [python(name, f"/srv/{name}.py", 3), READY])
    return made.build()


_ODD_NAMES = (
    "a|b",
    "`",
    "``x`",
    "\\",
    "c\\|d",
    "*x*",
    "__init__",
    "<lambda>",
    "<img src=x>",
    "[a](http://x.y)",
    "&lt;",
)
_ODD_NAMES += (
    "~~x~~",
    "www.x.y",
    "http://x.y",
    "| --- |",
    "$x$",
    ":tada:",
    "@someone",
    "#1",
    "\n# x",
    "-->",
    "</code>",
)
MARKDOWN_PROFILES = [training_profile, waiting_profile, hostile_profile, deep_profile, odd_names_profile]
ELEMENTS = {"h2", "p", "strong", "sub", "code", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("profile", MARKDOWN_PROFILES)
def test_markdown_is_whole_tables_in_which_names_are_text(profile: Callable[[], Profile], tmp_path: Path) -> None:
    given = profile()
    text = written(given, "markdown", tmp_path / "a.md", RenderOptions(limit=1000)).read_text()
    page = Page(MarkdownIt("gfm-like", {"linkify": False}).render(text))
    assert page.elements <= ELEMENTS and page.attributes <= {"style"}
    widths = {"time of threads": 3, "where": 7, "threads": 7}
    width = 0
    for row in page.rows:
        width = widths.get(row[0], width)
        assert len(row) == width, row
    functions = {printable(frame.name) for frame in given.frames if frame.kind == FrameKind.PYTHON}
    named = {row[0] for row in page.rows if len(row) == 7}
    assert functions & named or profile is deep_profile
    if profile is odd_names_profile:
        assert functions <= named
