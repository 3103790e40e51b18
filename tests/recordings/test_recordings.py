"""Recordings that are kept: every view and format of each says the same, older ones are read, and none needs a target.

What views say is in NAME.VIEW.txt, which a person has read. To write them again after a wanted change:
BPFPROF_UPDATE_GOLDEN=1 pytest tests/recordings; then read the diff.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pstats
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet
import pytest

from bpfprof.commands import report
from bpfprof.errors import RecordingError
from bpfprof.profile.options import ProfileOptions, SpanFilter
from bpfprof.query.answer.verdict import verdict_of
from bpfprof.query.work.table import work_of
from bpfprof.recording.format import MAGIC, decode
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import COLLAPSED_LINE, PYTHON_FRAME, TEXT_FORMATS
from tests.recordings.kept import HERE, NAMES, content, unpacked
from tests.unit.account.invariants import assert_covers
from tests.unit.commands.command import run
from tests.unit.render.unpacked import unpacked as numbers_of
from tests.unit.render.unpacked import values

pytestmark = pytest.mark.gate
Times = tuple[int, int, int]  # nanoseconds of CPU, ready, wait
Pair = tuple[str, str]  # names of functions
OF_ANOTHER_VERSION = "version_1"
READABLE = [name for name in NAMES if name != OF_ANOTHER_VERSION]
VIEWS = {"summary": ("report",), "tree": ("report", "-f", "tree"), "offcpu": ("offcpu",)}
GROUPINGS = ("function", "line", "file", "library", "operator", "thread", "process", "container", "reason", "lock")
# All tests of one recording follow one another, so that `profiles` has it.
every_recording = pytest.mark.parametrize("name", READABLE, scope="module")
profiles = lru_cache(maxsize=8)(report.load_profile)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept")
    for name in NAMES:
        unpacked(name, path)
    return path


@pytest.fixture(autouse=True)
def a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In Greenwich."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("LINES", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What several formats are made of is a profile with the same options."""
    monkeypatch.setattr(report, "load_profile", profiles)


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert run(*arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@cache
def made(recording: Path, name: str, *options: str) -> Path:
    """A file of this format; of one that was made before, the same."""
    path = recording.with_name(f"{recording.stem}{''.join(options)}.{name}")
    assert run("report", recording, "-f", name, *options, "-o", path) == 0
    return path


def as_json(recording: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made(recording, "json", *options).read_text())
    return found


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@cache
def times(recording: Path) -> Times:
    """Those of the JSON, which the others have to have."""
    totals = as_json(recording)["totals"]
    return ns(totals["cpu_s"]), ns(totals["ready_s"]), ns(totals["wait_s"]) + ns(totals["idle_s"])


@cache
def exact_times(recording: Path) -> Times:
    """What the kernel says: in the JSON time on a CPU that waits for a device is a wait."""
    threads = profiles(recording, ProfileOptions()).threads
    on_cpu, runnable, off_cpu = (
        sum(getattr(thread, name) for thread in threads) for name in ("on_cpu_ns", "runqueue_ns", "off_cpu_ns")
    )
    return on_cpu, runnable, off_cpu


@every_recording
@pytest.mark.parametrize("view", VIEWS)
def test_what_a_view_says_is_what_a_person_has_read(folder: Path, name: str, view: str, capsys) -> None:
    command, *options = VIEWS[view]
    text = said(capsys, command, folder / f"{name}.bpfprof", *options)
    golden = HERE / f"{name}.{view}.txt"
    if os.environ.get("BPFPROF_UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100


@every_recording
def test_each_threads_cpu_ready_and_waits_are_its_wall_time(folder: Path, name: str) -> None:
    assert_covers(read_recording(io.BytesIO(content(name))))
    found = as_json(folder / f"{name}.bpfprof")
    kinds = ("cpu_s", "ready_s", "wait_s", "idle_s")
    for each in (found["totals"], *found["threads"]):
        assert each["cpu_waiting_s"] <= each["wait_s"]
        assert sum(ns(each[kind]) for kind in kinds) == pytest.approx(ns(each["wall_s"]), abs=4), each
    assert sum(ns(thread["wall_s"]) for thread in found["threads"]) == pytest.approx(
        ns(found["totals"]["wall_s"]), abs=len(found["threads"])
    )
    on_cpu, *_ = exact_times(folder / f"{name}.bpfprof")
    assert ns(found["totals"]["cpu_s"]) + ns(found["totals"]["cpu_waiting_s"]) == pytest.approx(on_cpu, abs=2)


@pytest.mark.parametrize(
    ("name", "bound", "share", "where", "says"),
    [
        ("gpu_bound", "gpu", 90 / 93, "read_loss", "Waits for the GPU"),
        ("copy_bound", "gpu", 0.99, "upload", "Copies pageable memory to the GPU"),
        ("data_bound", "data", 0.91, "SlowSet.__getitem__", "59% sleep, 40% CPU in SlowSet.__getitem__"),
        ("jax", "gpu", 2.27 / 2.48, "<module>", "Waits for the GPU"),
        ("ddp", "sleep", 0.61, "rank.<locals>.load_batch", "is late by 30.0 ms a step: it sleeps 30.1 ms more"),
    ],
)
def test_programs_of_a_gpu_are_told_what_their_own_clocks_say(
    folder: Path, name: str, bound: str, share: float, where: str, says: str
) -> None:
    verdict = as_json(folder / f"{name}.bpfprof")["verdict"]
    assert (verdict["bound"], verdict["where"]["function"]) == (bound, where) and says in verdict["sentence"]
    assert verdict["share"] == pytest.approx(share, abs=0.03)


def test_a_rank_alone_waits_for_the_others(folder: Path) -> None:
    """By its own clock 46.2 of 49.2 ms of a step are in backward(); the recording has its end, too."""
    chosen = SpanFilter(process=re.compile("1350"))
    profile = profiles(folder / "ddp.bpfprof", ProfileOptions(with_spans=True, filter=chosen))
    alone = replace(profile, filter_text="")
    verdict = verdict_of(alone, work_of(alone))
    assert verdict.sentence == "Waits for other ranks 90% of the time: rank (loops.py:83), in backward."
    assert verdict.bound == "net"


def test_of_a_rank_that_is_picked_out_nothing_is_said_of_the_others(folder: Path) -> None:
    """They may be in the recording, as here."""
    for rank in ("1350", "1351"):
        assert "other ranks" not in as_json(folder / "ddp.bpfprof", "--process", rank)["verdict"]["sentence"]


@every_recording
def test_rows_of_every_grouping_add_up(folder: Path, name: str) -> None:
    recording = folder / f"{name}.bpfprof"
    for by in ("thread", "process", "container", "function", "line", "library"):
        rows = as_json(recording, "--by", by, "--idle")["rows"]
        for kind, whole in zip(("cpu", "ready", "wait"), times(recording)):
            own = sum(ns(row[f"{kind}_self_s"]) for row in rows)
            if by in ("thread", "process", "container"):
                assert own == pytest.approx(whole, abs=len(rows) + 1), (by, kind)
            else:  # what has no stack is in no function
                assert 0 <= own <= whole + len(rows), (by, kind)
            assert all(row[f"{kind}_self_s"] <= row[f"{kind}_total_s"] for row in rows), (by, kind)


@every_recording
def test_a_csv_has_the_rows_of_the_json(folder: Path, name: str) -> None:
    recording = folder / f"{name}.bpfprof"
    rows = as_json(recording, "--by", "line")["rows"]
    found = list(csv.DictReader(io.StringIO(made(recording, "csv", "--by", "line").read_text())))
    assert [row["line"] for row in found] == [str(row["line"] or "") for row in rows]
    for kind in ("cpu_self_s", "ready_total_s", "wait_self_s"):
        assert [float(row[kind]) for row in found] == pytest.approx([row[kind] for row in rows], abs=1e-9)


@every_recording
def test_time_windows_are_parts_of_the_whole(folder: Path, name: str) -> None:
    recording = folder / f"{name}.bpfprof"
    parts = [as_json(recording, "--time", window)["totals"]["wall_s"] for window in ("0s..0.3s", "0.3s..")]
    assert sum(map(ns, parts)) == pytest.approx(sum(times(recording)), abs=4)


# Readers: bytes of a file -> its times.


def of_collapsed(path: Path) -> Times:
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        if ";task " in line:
            continue
        assert COLLAPSED_LINE.fullmatch(line), line
        stack, weight = line.rsplit(" ", 1)
        leaf = stack.rpartition(";")[2]
        kind = "ready" if leaf == "[runqueue]" else "wait" if leaf.startswith("[off-cpu: ") else "cpu"
        found[kind] += int(weight) * 1000
    return found["cpu"], found["ready"], found["wait"]


def of_pprof(path: Path) -> Times:
    """By the field numbers of proto/profile.proto."""
    message = list(fields_of(gzip.decompress(path.read_bytes())))
    texts = [value.decode() for number, value in message if number == 6]
    types = [texts[dict(fields_of(value))[1]] for number, value in message if number == 1]
    assert types == ["cpu", "ready", "wait"]
    functions = {dict(fields_of(value))[1] for number, value in message if number == 5}
    locations: dict[int, list[int]] = {}
    for number, value in message:
        if number == 4:
            fields = list(fields_of(value))
            locations[dict(fields)[1]] = [dict(fields_of(line))[1] for field, line in fields if field == 4]
    assert {function for lines in locations.values() for function in lines} <= functions
    sums = [0, 0, 0]
    for number, value in message:
        if number == 2:
            sample = dict(fields_of(value))
            assert set(varints(sample.get(1, b""))) <= locations.keys()
            sums = [one + other for one, other in zip(sums, varints(sample[2]))]
    return sums[0], sums[1], sums[2]


def fields_of(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and messages of a protobuf message."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        value, place = varint(data, place)
        if key & 7:
            value, place = data[place : place + value], place + value
        yield key >> 3, value


def varints(data: bytes) -> list[int]:
    found, place = [], 0
    while place < len(data):
        value, place = varint(data, place)
        found.append(value)
    return found


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if data[place - 1] < 128:
            return value, place


def of_callgrind(path: Path) -> Times:
    """Costs that no line of a call stands before are a function's own."""
    lines = path.read_text().splitlines()
    costs = [one for before, one in zip(lines, lines[1:]) if one[:1].isdigit() and not before.startswith("calls=")]
    cpu, ready, wait = (1000 * sum(int(line.split()[place]) for line in costs) for place in (1, 2, 3))
    return cpu, ready, wait


def of_pstats(path: Path) -> Times:
    sums = [0, 0, 0]
    stats: dict[Any, Any] = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    for (_, _, name), (_, _, own, _, _) in stats.items():
        sums[1 if name == "[runqueue]" else 2 if name.startswith("[off-cpu") else 0] += ns(own)
    return sums[0], sums[1], sums[2]


def of_parquet(path: Path) -> Times:
    table = pyarrow.parquet.read_table(path)
    found: Counter[str] = Counter()
    for state, spent in zip(table["state"].to_pylist(), table["ns"].to_pylist()):
        found[state] += spent
    return found["cpu"], found["ready"], found["wait"]


@every_recording
@pytest.mark.parametrize("read", [of_collapsed, of_pprof, of_callgrind, of_pstats, of_parquet])
def test_each_format_has_the_times_of_the_json(folder: Path, name: str, read: Callable[[Path], Times]) -> None:
    recording = folder / f"{name}.bpfprof"
    chosen = read.__name__.removeprefix("of_")
    path = made(recording, chosen)
    lines = path.read_bytes().count(b"\n")
    tolerance_ns = {"collapsed": 1000 * (1 + lines), "callgrind": 1000}.get(chosen, 0)
    assert read(path) == pytest.approx(exact_times(recording), abs=tolerance_ns)


# Readers: bytes of a file -> which Python function calls which, by names.


def calls_of_collapsed(path: Path) -> set[Pair]:
    lines = [line for line in path.read_text().splitlines() if ";task " not in line]
    stacks = [line.rsplit(" ", 1)[0].split(";") for line in lines]
    return pairs([[python_name(frame) for frame in stack] for stack in stacks])


def calls_of_speedscope(path: Path) -> set[Pair]:
    content = json.loads(path.read_text())
    names = [frame["name"] if "file" in frame else "" for frame in content["shared"]["frames"]]
    return pairs([[names[frame] for frame in stack] for each in content["profiles"] for stack in each["samples"]])


def calls_of_gecko(path: Path) -> set[Pair]:
    shared = json.loads(path.read_text())["shared"]
    names = [shared["stringArray"][name] for name in shared["funcTable"]["name"]]
    of_node = [names[shared["frameTable"]["func"][frame]] for frame in shared["stackTable"]["frame"]]
    prefixes = shared["stackTable"]["prefix"]
    return pairs([[of_node[before], own] for before, own in zip(prefixes, of_node) if before is not None])


def calls_of_pprof(path: Path) -> set[Pair]:
    message = list(fields_of(gzip.decompress(path.read_bytes())))
    texts = [value.decode() for number, value in message if number == 6]
    functions = {each[1]: texts[each[2]] for each in (dict(fields_of(it)) for number, it in message if number == 5)}
    names = {}
    for number, value in message:
        if number == 4:
            location = dict(fields_of(value))
            names[location[1]] = functions[dict(fields_of(location[4]))[1]]
    samples = [dict(fields_of(value)).get(1, b"") for number, value in message if number == 2]
    return pairs([[names[place] for place in reversed(varints(sample))] for sample in samples])


def calls_of_pstats(path: Path) -> set[Pair]:
    stats: dict[Any, Any] = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    return pairs([[caller[2], name] for (_, _, name), (*_, callers) in stats.items() for caller in callers])


def calls_of_parquet(path: Path) -> set[Pair]:
    stacks = pyarrow.parquet.read_table(path)["frames"].to_pylist()
    return pairs([[python_name(frame) for frame in stack] for stack in stacks])


def python_name(label: str) -> str:
    found = PYTHON_FRAME.fullmatch(label)
    return found["name"] if found else ""


def pairs(stacks: list[list[str]]) -> set[Pair]:
    """(caller, callee); the root comes first."""
    return {pair for stack in stacks for pair in zip(stack, stack[1:]) if all(pair)}


@pytest.mark.parametrize("name", ["training", "service", "tasks", "pools", "at_first"])
@pytest.mark.parametrize(
    "read", [calls_of_speedscope, calls_of_gecko, calls_of_pprof, calls_of_pstats, calls_of_parquet]
)
def test_who_calls_whom_is_the_same_in_each_format(folder: Path, name: str, read: Callable[[Path], set[Pair]]) -> None:
    recording = folder / f"{name}.bpfprof"
    wanted = calls_of_collapsed(made(recording, "collapsed"))
    found = read(made(recording, read.__name__.removeprefix("calls_of_")))
    assert len(wanted) > 2 and not wanted - found


@every_recording
def test_timelines_have_all_of_the_wall_time(folder: Path, name: str) -> None:
    recording = folder / f"{name}.bpfprof"
    wall = sum(times(recording))
    speedscope = json.loads(made(recording, "speedscope").read_text())
    frames = len(speedscope["shared"]["frames"])
    for each in speedscope["profiles"]:
        assert len(each["samples"]) == len(each["weights"]) and each["unit"] == "nanoseconds"
        assert all(0 <= frame < frames for stack in each["samples"] for frame in stack)
    assert sum(speedscope["profiles"][0]["weights"]) == wall
    threads = [each for each in speedscope["profiles"][1:] if " / thread " in each["name"]]
    assert sum(sum(each["weights"]) for each in threads) == wall
    gecko = json.loads(made(recording, "gecko").read_text())
    stacks, names = len(gecko["shared"]["stackTable"]["frame"]), len(gecko["meta"]["categories"])
    assert all(prefix is None or prefix < place for place, prefix in enumerate(gecko["shared"]["stackTable"]["prefix"]))
    assert all(category < names for category in gecko["shared"]["frameTable"]["category"])
    samples = [thread["samples"] for thread in gecko["threads"]]
    assert all(stack is None or stack < stacks for each in samples for stack in each["stack"])
    assert sum(sum(each["weight"]) for each in samples) * 1e6 == pytest.approx(wall, rel=1e-6)
    events = json.loads(made(recording, "chrome").read_text())["traceEvents"]
    states = ("cpu", "ready", "wait", "short")
    spent = sum(event["dur"] for event in events if event["ph"] == "X" and event["cat"] in states)
    assert ns(spent / 1e6) == pytest.approx(wall, abs=1000 * len(events))


@every_recording
def test_pictures_are_documents_that_have_all_time(folder: Path, name: str) -> None:
    recording = folder / f"{name}.bpfprof"
    totals = as_json(recording)["totals"]
    cpu, waiting, ready, wait, idle = (
        ns(totals[f"{kind}_s"]) for kind in ("cpu", "cpu_waiting", "ready", "wait", "idle")
    )
    cpu, wait = cpu + waiting, wait - waiting  # in pictures what only waits on a CPU is there, and so is who lacks one
    svg = ElementTree.parse(made(recording, "flamegraph")).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    drawn = json.loads(svg.findtext("{*}script[@id='frame-data']") or "")
    found = [drawn["unit"] * drawn[column][0] for column in ("cpu", "wait", "idle")]
    assert found == pytest.approx([cpu, ready + wait, idle], abs=drawn["unit"])
    head, columns = numbers_of(made(recording, "html").read_text())
    spent = values(columns, "duration") + values(columns, "more")
    is_idle = columns["flags"] & 1 > 0
    of_kind = {
        kind: int(spent[(columns["kind"] == place) & ~is_idle].sum()) for place, kind in enumerate(head["kinds"])
    }
    assert of_kind.pop("cpu") == cpu and (of_kind["ready"] > ready if waiting else of_kind["ready"] == ready)
    assert (sum(of_kind.values()), int(spent[is_idle].sum())) == (ready + wait, idle)


def test_the_page_of_a_training_loop_is_small(folder: Path) -> None:
    """At most 5 MB for 10 s."""
    recording = folder / "training.bpfprof"
    seconds = max(thread["wall_s"] for thread in as_json(recording)["threads"])
    size = made(recording, "html").stat().st_size
    print(f"{size / 1e6:.2f} MB of {seconds:.1f} s")
    assert size <= 500_000 * seconds


@every_recording
def test_no_text_acts_on_a_terminal(folder: Path, name: str, capsys) -> None:
    recording = folder / f"{name}.bpfprof"
    few = ("markdown", "table", "waits")
    texts = [made(recording, it.name).read_text() for it in TEXT_FORMATS if it.name in few or name == "names"]
    if name in ("names", "tasks", "steps"):
        texts += [said(capsys, "report", recording, "--by", by) for by in (*GROUPINGS, "waker", "task", "step", "call")]
        texts += [said(capsys, "offcpu", recording, "--by", by) for by in ("reason", "thread", "waker", "lock")]
    for text in texts:
        assert text and all(char.isprintable() for char in text if char != "\n")


def test_what_got_slower_is_told_and_has_its_exit_code(folder: Path, capsys) -> None:
    before, after = folder / "even.bpfprof", folder / "slower.bpfprof"
    rows = json.loads(said(capsys, "diff", before, after, "-f", "json"))["rows"]
    assert rows[0]["function"].startswith("f") and rows[0]["difference_s"] > 2 * rows[0]["error_s"] > 0
    assert run("diff", before, after, "--fail-over", "5") == 6
    assert run("diff", before, before, "--fail-over", "5") == 0


def test_a_cut_recording_is_shown_as_far_as_it_goes(folder: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "cut.bpfprof"
    path.write_bytes(content("gil")[:-2000])
    assert run("report", path) == 5
    captured = capsys.readouterr()
    assert "hog_1" in captured.out and captured.err.startswith("bpfprof: ")


def test_another_version_of_the_format_is_refused_by_name(folder: Path, capsys) -> None:
    assert content(OF_ANOTHER_VERSION)[: len(MAGIC)] == MAGIC[:-1] + b"\x01"
    for command in ("report", "offcpu"):
        assert run(command, folder / f"{OF_ANOTHER_VERSION}.bpfprof") == 5
        captured = capsys.readouterr()
        assert captured.out == "" and "format 1" in captured.err
    with pytest.raises(RecordingError, match="version"):
        read_recording(io.BytesIO(content(OF_ANOTHER_VERSION)))


@pytest.mark.parametrize("name", NAMES)
def test_they_say_nothing_of_the_machine_they_were_made_on(name: str) -> None:
    file = io.BytesIO(content(name))
    file.seek(len(MAGIC))
    while chunk := decode(file):
        text = json.dumps(chunk.fields)
        assert not [own for own in ("/root", "/home", "/work/", "/build") if own in text]
        assert chunk.fields.get("host_name", "host") == "host"


def test_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < 3 << 20
