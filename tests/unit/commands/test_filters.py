"""Options that choose what is shown, in every format of `report` and `offcpu`."""

from __future__ import annotations

import gzip
import json
import marshal
import re
from collections import Counter
from pathlib import Path

import pytest

from bpfprof.commands.filters import parse_window
from bpfprof.profile.options import OPEN_END_NS
from bpfprof.render.formats import FORMATS
from tests.unit.commands.command import run, written
from tests.unit.profile.test_filters import mixed
from tests.unit.render.unpacked import unpacked, values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(mixed(), tmp_path)


FOR_PROGRAMS = ("pprof", "callgrind", "pstats", "csv", "parquet", "chrome", "gecko")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command that ends well prints."""
    assert run(*arguments) == 0
    return capsys.readouterr().out


def by_thread(collapsed: str) -> dict[str, int]:
    """Microseconds of each thread."""
    found: Counter[str] = Counter()
    for line in collapsed.splitlines():
        found[line.split(";")[1]] += int(line.rpartition(" ")[2])
    return dict(found)


@pytest.mark.parametrize(
    ("arguments", "report_us", "offcpu_us"),
    [
        (["--time", "5ms..25ms"], [20_000, 20_000, 20_000], [10_000, 8_000, 6_000]),
        (["--process", "train"], [60_000, 60_000], [30_000, 33_000]),
        (["--thread", r"worker \(200\)$"], [60_000], [41_000]),
        (["--function", "^take$"], [12_000, 30_000], [10_000, 30_000]),
        (["--cpu"], [28_000, 27_000, 9_000], None),
        (["--offcpu"], [32_000, 33_000, 51_000], [30_000, 33_000, 41_000]),
        (["--reason", "gil"], [20_000], [20_000]),
        (["--reason", "disk", "--reason", "syscall fsync"], [3_000], [3_000]),
        (["-g"], [10_000, 18_000], [3_000]),
        (["--state", "D"], [3_000], [3_000]),
        (["--min-block", "15000"], [20_000, 30_000, 40_000], [20_000, 30_000, 40_000]),
        (["--hide-idle"], [60_000, 60_000, 20_000], [30_000, 33_000, 1_000]),
        (["--thread", "io", "--time", "..18ms", "--offcpu"], [3_000], [3_000]),
    ],
)
def test_what_is_shown(
    arguments: list[str], report_us: list[int], offcpu_us: list[int] | None, path: Path, capsys
) -> None:
    asked = (path, *arguments, "-f", "collapsed")
    assert list(by_thread(shown(capsys, "report", *asked)).values()) == report_us
    if offcpu_us is not None:
        assert list(by_thread(shown(capsys, "offcpu", *asked)).values()) == offcpu_us


@pytest.mark.parametrize("window", ["5ms..25ms", "7123us..27.123ms"])
def test_a_window_is_filled_in_files_for_other_programs(window: str, path: Path, tmp_path: Path) -> None:
    """60 ms of three threads; what pprof files hold is in tests/unit/render/test_read_back.py."""
    for name in FOR_PROGRAMS:
        assert run("report", path, "--time", window, "-f", name, "-o", tmp_path / name) == 0
    stats = marshal.loads((tmp_path / "pstats").read_bytes())
    assert sum(own_s for _, _, own_s, _, _ in stats.values()) == pytest.approx(0.06, abs=1e-9)
    totals = re.search(r"^totals: (\d+) (\d+) (\d+)$", (tmp_path / "callgrind").read_text(), re.M)
    assert totals is not None and sum(map(int, totals.groups())) == 60_000
    assert gzip.decompress((tmp_path / "pprof").read_bytes())
    assert (tmp_path / "csv").read_text().startswith("function,")
    events = json.loads((tmp_path / "chrome").read_text())["traceEvents"]
    states = [event for event in events if event.get("cat") in ("cpu", "ready", "wait", "lost")]
    assert round(sum(event["dur"] for event in states) * 1000) == 60_000_000
    threads = json.loads((tmp_path / "gecko").read_text())["threads"]
    assert round(sum(sum(thread["samples"]["weight"]) for thread in threads) * 1e6) == 60_000_000
    begin_ns, end_ns = parse_window(window)
    assert {thread["samples"]["time"][0] for thread in threads} == {begin_ns / 1e6}
    assert {thread["samples"]["time"][-1] for thread in threads} == {end_ns / 1e6}


@pytest.mark.parametrize(
    "known", [each for each in FORMATS if each.name not in FOR_PROGRAMS], ids=lambda known: known.name
)
@pytest.mark.parametrize("window", ["5ms..25ms", "7123us..27.123ms"])
def test_a_window_is_filled_in_every_format(window: str, known, path: Path, capsys) -> None:
    """20 ms of each of three threads, in flame graphs and collapsed stacks to the microsecond."""
    text = shown(capsys, "report", path, "--time", window, "-f", known.name, "--details")
    begin_ns, end_ns = parse_window(window)
    if known.name == "collapsed":
        assert list(by_thread(text).values()) == [20_000] * 3
        return
    if known.name == "speedscope":
        whole, *threads = json.loads(text)["profiles"]
        assert (whole["startValue"], sum(whole["weights"])) == (0, 60_000_000)
        for thread in threads:
            assert (thread["startValue"], sum(thread["weights"])) == (begin_ns, 20_000_000)
            assert thread["endValue"] == end_ns
        return
    if known.name == "html":
        head, columns = unpacked(text)
        assert head["filter"] == f"from {begin_ns / 1e9:g} s to {end_ns / 1e9:g} s"
        assert int(values(columns, "duration").sum() + values(columns, "more").sum()) == 60_000_000
        return
    if known.name == "json":
        assert [thread["wall_s"] for thread in json.loads(text)["threads"]] == [0.02] * 3
        return
    assert f"from {begin_ns / 1e9:g} s to {end_ns / 1e9:g} s" in text
    if known.name == "flamegraph":
        data = json.loads(re.search(r'id="frame-data"[^>]*>(?:<!\[CDATA\[)?(\{.*?\})', text, re.S)[1])
        assert abs(data["cpu"][0] + data["wait"][0] + data["idle"][0] - 60_000) <= 1  # each is rounded
        return
    assert re.search(r"of 60\.00 ms (wall time )?accounted", " ".join(text.split()))
    if known.name not in ("summary", "tree", "markdown"):
        assert len(re.findall(r"0\.020 +0\.020 +0 ns ", text)) == 3


def test_what_was_asked_for_is_said(path: Path, capsys) -> None:
    asked = (path, "--thread", "io", "--reason", "disk", "--min-block", "1000")
    said = "thread io, reason disk, of 1,000 us or more"
    assert f"\nonly {said}\n" in shown(capsys, "report", *asked)
    assert f"\nwaits by reason and stack, {said}: 3.00 ms in 1 group\n" in shown(capsys, "offcpu", *asked)
    assert f">only {said}<" in shown(capsys, "report", *asked, "-f", "svg")
    assert "\nonly what is not idle\n" in shown(capsys, "report", path, "--hide-idle")
    for command in (["offcpu", path], ["report", path, "-f", "waits"]):
        text = shown(capsys, *command, "--hide-idle")
        assert "\nwaits by reason and stack: 63.00 ms in 4 groups; idle ones hidden, 40.00 ms\n" in text
    assert "\nonly " not in shown(capsys, "report", path)


def test_figures_of_the_whole_recording_are_no_part_of_what_is_shown(path: Path, capsys) -> None:
    assert "1 wait: time counted, no stack;" in shown(capsys, "report", path, "--details", "--thread", "main").replace(
        "\n ", ""
    )
    assert "1 wait: time counted, no stack (0.6% of wall time);" in shown(capsys, "report", path, "--details").replace(
        "\n ", ""
    )


@pytest.mark.parametrize("option", [["--thread", "main"], ["--process", "train", "--reason", "lock"]])
def test_wakers_of_other_threads_are_kept(option: list[str], path: Path, capsys) -> None:
    text = shown(capsys, "offcpu", path, *option, "--by", "reason")
    assert "    woken by thread io (101) in hog (a.py), 100%\n" in text
    assert "      why it was late: disk in sync (a.py), ended by an interrupt, 100%\n" in text
    assert "\ndisk" not in text and "\nsleep" not in text
    stacks = shown(capsys, "offcpu", path, *option, "--waker", "-F", "-f", "collapsed")
    assert "take (a.py);[off-cpu: lock];[woken by thread io (101)];hog (a.py);[woken by interrupt] 10000\n" in stacks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2s..5s", (2e9, 5e9)),
        ("500ms..", (5e8, OPEN_END_NS)),
        ("..1.5", (0, 1.5e9)),
        ("0...5", (0, 5e8)),
        ("1m..90", (6e10, 9e10)),
        (" 1us .. 2us ", (1e3, 2e3)),
        ("..", (0, OPEN_END_NS)),
    ],
)
def test_windows(text: str, found: tuple[float, float]) -> None:
    assert parse_window(text) == found


@pytest.mark.parametrize("command", ["report", "offcpu"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--time", "2s"], "is no window of time"),
        (["--time", "5..2"], "ends before it begins"),
        (["--time", "1..1"], "ends before it begins"),
        (["--time", "-1..2"], "is no window of time"),
        *[(["--time", text], "is no window of time") for text in ("1.2.3..4", "1e9..2e9", "...", f"..{'9' * 400}")],
        (["--thread", "("], "--thread"),
        (["--process", "*"], "--process"),
        (["--function", "[a"], "--function"),
        (["--reason", "boredom"], "'boredom' is no reason"),
        (["--reason", "syscall nothing"], "is no reason"),
        (["--state", "Q"], "no state of a waiting thread"),
        (["--min-block", "-5"], "--min-block"),
        (["--cpu", "--offcpu"], "leave nothing"),
    ],
)
def test_nonsense_is_refused(command: str, arguments: list[str], words: str, path: Path, capsys) -> None:
    assert run(command, path, *arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report"], ["report", "-f", "tree"], ["report", "-f", "json"], ["offcpu"]])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--thread", "nosuch"], ["no thread has nosuch in `NAME (TID)`", "there are main, io, worker"]),
        (["--process", "train", "--thread", "worker"], ["no thread has worker in `NAME (TID)`", "there are main, io"]),
        (["--process", r"\(300\)"], [r"no process has \(300\) in `NAME (PID)`", "there are train, serve"]),
        (["--process", "serve", "--thread", "main"], ["no thread has main in `NAME (TID)`", "there is worker"]),
    ],
)
def test_what_is_not_there_is_said(
    command: list[str], arguments: list[str], said: list[str], path: Path, capsys
) -> None:
    """And nothing else: a report of nothing would look like one of a program that does nothing."""
    assert run(command[0], path, *command[1:], *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.split("\n") == [f"bpfprof: {said[0]}", f"  {said[1]}", ""]


@pytest.mark.parametrize("command", [["report"], ["report", "--by", "lock"], ["report", "-f", "svg"], ["offcpu"]])
def test_a_function_that_is_not_there_is_said(command: list[str], path: Path, capsys) -> None:
    for pattern, hint in (("nosuch", "--by function has those that there are"), ("stop", "did you mean step?")):
        assert run(command[0], path, *command[1:], "--function", pattern) == 2
        assert capsys.readouterr() == ("", f"bpfprof: no function has {pattern} in its name\n  {hint}\n")


def test_of_a_function_that_is_there_nothing_may_be_left(path: Path) -> None:
    assert run("report", path, "--function", "hog", "--thread", "io", "--reason", "disk") == 0


def test_threads_by_the_hundred_are_named_by_their_roles(tmp_path: Path, capsys) -> None:
    made = mixed()
    for index, name in enumerate(("worker_3", "worker_17", "worker_4")):
        made.threads[index]["name"] = name
    assert run("report", written(made, tmp_path), "--thread", "nosuch") == 2
    assert "  there are worker_3..17\n" in capsys.readouterr().err


def test_a_diff_is_of_what_is_in_one_of_them(path: Path, tmp_path: Path, capsys) -> None:
    other = mixed()
    other.threads[1]["name"] = "other"
    (tmp_path / "other").mkdir()
    assert run("diff", path, written(other, tmp_path / "other"), "--thread", "other") == 0


def test_waits_are_never_on_a_cpu(path: Path, capsys) -> None:
    assert run("offcpu", path, "--cpu") == 2
    assert "--cpu leaves no waits" in capsys.readouterr().err
