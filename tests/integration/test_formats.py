"""Every format of one real recording, opened by the tool it is for: CPU, ready and waits are the recording's own.

To the microsecond; for each kind, and where a format has times on the clock alone, of all kinds together.
"""

from __future__ import annotations

import csv
import html
import json
import os
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from markdown_it import MarkdownIt

from bpfprof.commands.outputs import encoded
from bpfprof.commands.report import load_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.render.formats import FORMATS, RenderOptions
from tests.browser import test_page, test_svg
from tests.integration.recorded import Folded, bpfprof, needs_root, program, running
from tests.integration.test_browser import CHROMIUM, NODE_MODULES, problems
from tests.other_tools import ask_perfetto, firefox, needs_firefox, needs_perfetto, needs_pprof, read_pprof

pytestmark = needs_root
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or not (NODE_MODULES / "speedscope").is_dir(),
    reason="no chromium, or no tests/browser/node_modules",
)
KINDS = ("cpu", "ready", "wait")
Times = dict[str, int]  # nanoseconds by kind
NO_FILES = ("summary", "tree", "table", "waits")  # for the terminal
FORMATS_OF_FILES = [known for known in FORMATS if known.name not in NO_FILES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With each format of a recording of threads that wait for the GIL, locks and each other, and of native code."""
    folder = tmp_path_factory.mktemp("formats")
    with running(sys.executable, program("training_loop.py")) as target:
        bpfprof("record", "--pid", target.pid, "-o", folder / "a.bpfprof", "-d", 2)
    profile = load_profile(folder / "a.bpfprof", ProfileOptions(with_spans=True))
    for known in FORMATS_OF_FILES:
        options = RenderOptions(by="thread", with_idle=True) if known.name == "csv" else RenderOptions()
        (folder / f"a{known.suffixes[0]}").write_bytes(encoded(known.render(profile, options)))
    return folder


@pytest.fixture(scope="module")
def totals(folder: Path) -> Times:
    found = json.loads((folder / "a.json").read_text())["totals"]
    cpu, ready, wait, idle = (round(found[f"{name}_s"] * 1e9) for name in (*KINDS, "idle"))
    assert cpu and ready and wait
    return {"cpu": cpu, "ready": ready, "wait": wait + idle}


def is_exact(client: str, found: Times, totals: Times, tolerance_ns: int = 1000) -> bool:
    """By kind; prints in microseconds what the client has, and its difference to the recording."""
    us = {kind: (found.get(kind, 0) / 1000, (found.get(kind, 0) - totals[kind]) / 1000) for kind in KINDS}
    print(f"# {client}: {', '.join(f'{kind} {it:.3f} ({less:+.3f})' for kind, (it, less) in us.items())} us")
    return set(found) <= {*KINDS, "lost"} and all(
        abs(found.get(kind, 0) - totals[kind]) <= tolerance_ns for kind in KINDS
    )


def of_leaf(leaf: str) -> str:
    """The kind of time of a stack by its innermost frame."""
    if leaf.startswith(("[off-cpu", "waiting: ")):
        return "wait"
    return "ready" if leaf in ("[runqueue]", "ready, no CPU") else "cpu"


def test_collapsed(folder: Path, totals: Times) -> None:
    found: Times = Counter()
    folded = Folded.read(folder / "a.folded")
    for _, _, frames, weight in folded.lines:
        found[of_leaf(frames[-1]) if frames else "cpu"] += weight * 1000
    # Each line is rounded, so that those of a thread add up to the microsecond.
    assert is_exact("collapsed, by its contract", found, totals, len(folded.lines) * 1000)
    threads = {thread for _, thread, _, _ in folded.lines}
    assert abs(sum(found.values()) - sum(totals.values())) <= len(threads) * 1000


def test_csv(folder: Path, totals: Times) -> None:
    rows = list(csv.DictReader((folder / "a.csv").open()))
    found = {kind: sum(round(float(row[f"{kind}_self_s"]) * 1e9) for row in rows) for kind in KINDS}
    assert is_exact("csv of Python", found, totals)


@needs_pprof
def test_pprof(folder: Path, totals: Times) -> None:
    samples = read_pprof(folder / "a.pb.gz")["samples"]
    sums = [sum(sample["values"][place] for sample in samples) for place in range(3)]
    assert is_exact("pprof-format of npm", dict(zip(KINDS, sums)), totals, tolerance_ns=0)


@pytest.mark.parametrize("name", ["callgrind", "pstats"])
def test_gprof2dot(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "gprof2dot", "-f", name, str(folder / f"a.{name}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "train" in done.stdout, done.stderr


@pytest.mark.skipif(shutil.which("callgrind_annotate") is None, reason="no callgrind_annotate")
def test_callgrind(folder: Path, totals: Times) -> None:
    command = ["callgrind_annotate", "--threshold=0", "--auto=no", str(folder / "a.callgrind")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(
        r"^ *([\d,]+)(?: \([^)]*\))? +([\d,]+)(?: \([^)]*\))? +([\d,]+).*PROGRAM TOTALS", done.stdout, re.M
    )
    assert found, done.stdout[:2000]
    times = {kind: int(text.replace(",", "")) * 1000 for kind, text in zip(KINDS, found.groups())}
    assert is_exact("callgrind_annotate of valgrind", times, totals)


def test_pstats_and_snakeviz(folder: Path, totals: Times) -> None:
    stats = pstats.Stats(str(folder / "a.pstats"))
    found: Times = Counter()
    own: dict[Any, Any] = stats.stats  # type: ignore[attr-defined]
    for (_, _, name), (_, _, own_s, _, _) in own.items():
        found[of_leaf(name)] += round(own_s * 1e9)
    assert is_exact("pstats.Stats", found, totals)
    from snakeviz.stats import json_stats, table_rows

    rows = table_rows(stats)
    found.clear()
    for key, content in json_stats(stats).items():
        found[of_leaf(re.sub(r"^.*?:\d+\(|\)$", "", key, flags=re.S))] += round(content["stats"][2] * 1e9)
    assert is_exact("snakeviz", found, totals)
    assert len(rows) == len(own) and any("train_step" in str(row) for row in rows)


def test_parquet_in_duckdb(folder: Path, totals: Times) -> None:
    file = folder / "a.parquet"
    times = dict(duckdb.sql(f"SELECT state, sum(ns)::BIGINT FROM '{file}' GROUP BY 1").fetchall())
    assert is_exact("DuckDB", times, totals, tolerance_ns=0)
    query = f"SELECT sum(ns) FROM '{file}' WHERE array_to_string(frames, ';') LIKE '%;train_step (%'"
    ((inside,),) = duckdb.sql(query).fetchall()
    assert 0 < inside < sum(totals.values())
    assert pyarrow.parquet.read_table(file).schema.metadata[b"bpfprof.mode"] == b"both"


def test_data_set_in_duckdb(folder: Path, totals: Times) -> None:
    """As the user who called sudo: spans and weights have the times of the report, and the query finds the function."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:  # which that user reaches
        os.chmod(made, 0o777)
        data_set, environment = Path(made) / "set", {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534"}
        bpfprof("export", folder / "a.bpfprof", "--to", data_set, "--label", "rank=3", env=environment)
        assert {path.stat().st_uid for path in data_set.rglob("*")} == {65534}
        for table in ("spans", "weights"):
            of_state = f"SELECT state, sum(ns)::BIGINT FROM '{data_set}/*/*/*/{table}.parquet' GROUP BY 1"
            times = dict(duckdb.sql(of_state).fetchall())
            times.pop("unknown", None)  # what the kernel did not tell
            assert is_exact(f"DuckDB, {table} of a data set", times, totals, tolerance_ns=0)
        asked = bpfprof("fleet", "top", data_set, "--where", "rank=3", "-n", 100, "-f", "json")
    told, wanted = json.loads(asked.stdout), json.loads((folder / "a.json").read_text())
    assert (told["cpu_s"], told["idle_s"]) == (wanted["totals"]["cpu_s"], wanted["totals"]["idle_s"])
    names = {row["function"]: row["cpu_self_s"] for row in wanted["rows"]}
    assert told["rows"] and all(
        row["cpu_s"] == names[row["function"]] for row in told["rows"] if "step" in row["function"]
    )


@needs_perfetto
def test_chrome_in_perfetto(folder: Path, totals: Times) -> None:
    """By kind with what estimated intervals speak for, on the clock all together."""
    kinds = (
        "SELECT category, sum(ifnull(extract_arg(arg_set_id, 'args.stands_for_us') * 1000, dur)), sum(dur) FROM slice"
    )
    kinds += " WHERE category IN ('cpu', 'ready', 'wait', 'lost') GROUP BY 1"
    arrows = "SELECT count(*) FROM flow JOIN slice one ON one.id = slice_out JOIN slice other ON other.id = slice_in"
    wrong = "SELECT name, value FROM stats WHERE value > 0 AND severity <> 'info'"
    cpus = "SELECT count(*) FROM slice WHERE category = 'sample'"
    calls = "SELECT max(depth) FROM slice WHERE name LIKE 'train_step (%'"
    times, ((count,),), stats, ((samples,),), ((depth,),) = ask_perfetto(
        folder / "a.trace.json", kinds, arrows, wrong, cpus, calls
    )
    assert is_exact("trace processor of Perfetto", {kind: round(ns) for kind, ns, _ in times}, totals)
    lost = sum(ns for kind, _, ns in times if kind == "lost")
    assert sum(ns for _, _, ns in times) == sum(totals.values()) + lost
    assert stats == [] and count > 0 and samples > 0 and depth > 0


@needs_firefox
def test_gecko_in_the_firefox_profiler(folder: Path, totals: Times) -> None:
    of_kinds = {
        "Ready, no CPU": "ready",
        **dict.fromkeys(("Lock", "GIL", "I/O", "Sleep", "Wait", "Idle"), "wait"),
        "Lost": "lost",
    }
    found: Times = Counter()
    with firefox(folder / "a.gecko.json") as opened:
        for thread in opened.threads:
            for category, ms in opened.categories(thread["threadHandle"]).items():
                found[of_kinds.get(category, "cpu")] += round(ms * 1e6)
    assert is_exact("profiler-cli of the Firefox Profiler", found, totals)
    assert round(sum(thread["cpuMs"] for thread in opened.threads) * 1e6) == totals["cpu"]


def own_times(profile: dict[str, Any]) -> dict[int, int]:
    """Nanoseconds by innermost frame of a profile of a speedscope file, sampled or evented."""
    own: Counter[int] = Counter()
    if profile["type"] == "sampled":
        for sample, weight in zip(profile["samples"], profile["weights"]):
            own[sample[-1]] += weight
        return own
    stack: list[int] = []
    before = profile["startValue"]
    for event in profile["events"]:
        if event["at"] > before:
            own[stack[-1]] += event["at"] - before
        before = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    return own


@needs_chromium
def test_speedscope(folder: Path, totals: Times) -> None:
    """In the file, and in what speedscope exports of what it read."""
    file, copy = folder / "a.speedscope.json", folder / "copy.speedscope.json"
    for client, path in (("speedscope file", file), ("speedscope of npm", copy)):
        content = json.loads(path.read_text())
        names = [frame["name"] for frame in content["shared"]["frames"]]
        first, *threads = content["profiles"]
        own = own_times(first)
        found: Times = Counter()
        for frame, ns in own.items():
            found[of_leaf(names[frame])] += ns
        assert is_exact(client, found, totals)
        assert sum(sum(own_times(each).values()) for each in threads) == sum(totals.values())
        if path == file:
            assert problems("speedscope", file, names[max(own, key=lambda frame: own[frame])], copy) == []


@needs_chromium
def test_page_and_flame_graph(folder: Path, tmp_path: Path) -> None:
    """The page adds up its spans itself."""
    found = json.loads((folder / "a.json").read_text())["totals"]
    expected = {name: round(found[f"{name}_s"] * 1e9) for name in ("wall", *KINDS, "idle")}
    assert test_page.problems("opens", (folder / "a.html").read_text(), tmp_path, expected) == []
    assert test_svg.problems(tmp_path, ("opens", (folder / "a.svg").read_text(), "")) == []


def test_markdown(folder: Path) -> None:
    page = MarkdownIt("gfm-like", {"linkify": False}).render((folder / "a.md").read_text())
    assert page.count("<table>") == page.count("</table>") == 3 and "<code>MainThread</code>" in page
    sentence = json.loads((folder / "a.json").read_text())["verdict"]["sentence"]
    assert f"<strong>{sentence}</strong>" in html.unescape(page)
