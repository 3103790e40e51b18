"""`report`: any format, bytes as they are, and --check, which proves that each thread's time adds up."""

from __future__ import annotations

import io
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from bpfprof.commands import report
from bpfprof.commands.report import check_accounting
from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.render import formats
from bpfprof.render.formats import RenderOptions
from bpfprof.render.quality import quality_line
from tests.unit.account.invariants import assert_covers
from tests.unit.commands.command import run, written
from tests.unit.recording.hand_made import FUTEX, IOCTL, MS, START_NS, HandMade, Story, small
from tests.unit.render.profiles import ON_CPU, ProfileBuilder, python


def add_format(monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    """A format of a module of its own, with one line in the table."""
    module = types.ModuleType("words_format")

    def render(profile: Profile, options: RenderOptions) -> str | bytes:
        threads = " ".join(str(thread.tid) for thread in profile.threads)
        return content if isinstance(content, bytes) else content.format(threads)

    module.render = render  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "words_format", module)
    line = formats.Format("words", ("says",), (".words",), "how many threads", "words_format:render")
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, line))


def test_a_format_is_a_module_and_a_line(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(small(), tmp_path)
    assert run("report", path, "-f", "words") == 2
    add_format(monkeypatch, "threads größer als {}\n")
    for name in ("words", "says"):
        capsys.readouterr()
        assert run("report", path, "-f", name) == run("offcpu", path, "-f", name) == 0
        assert capsys.readouterr().out == "threads größer als 100 101\n" * 2
    assert run("report", path, "-o", tmp_path / "x.words") == 0
    assert (tmp_path / "x.words").read_text() == "threads größer als 100 101\n"


def test_bytes_reach_files_and_standard_output_unchanged(tmp_path: Path, monkeypatch) -> None:
    data, raw = bytes(range(256)) * 300, io.BytesIO()
    add_format(monkeypatch, data)
    path = written(small(), tmp_path)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    assert run("report", path, "-f", "words") == 0 and raw.getvalue() == data
    assert run("offcpu", path, "-o", tmp_path / "x.words") == 0 and (tmp_path / "x.words").read_bytes() == data


def test_a_format_says_which_package_it_needs(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is recorded, too."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = written(small(), tmp_path)
    for command in (("report", path, "-f", "parquet"), ("record", "-p", 1, "-o", tmp_path / "a.parquet")):
        assert run(*command) == 3
        assert "need pyarrow" in (said := capsys.readouterr().err) and "pip install 'bpfprof[parquet]'" in said
    assert not (tmp_path / "a.parquet").exists()


def test_parquet_is_a_folder_unless_its_suffix_says_a_file(tmp_path: Path) -> None:
    path = written(small(), tmp_path)
    for _ in range(2):  # what is there is written again
        assert run("report", path, "-f", "parquet", "-o", tmp_path / "rows") == 0
    assert [each.name for each in (tmp_path / "rows").iterdir()] == ["rows.parquet"]
    assert run("report", path, "-f", "parquet", "-o", tmp_path / "a.parquet") == 0
    assert (tmp_path / "a.parquet").read_bytes()[:4] == (tmp_path / "rows/rows.parquet").read_bytes()[:4] == b"PAR1"
    assert run("report", path, "-f", "parquet", "-o", tmp_path / "no" / "such") == 2


def two_threads() -> HandMade:
    """100 ms: one thread works and sleeps ten times, another computes."""
    made = HandMade(end={"end_ns": START_NS + 100 * MS})
    made.process()
    story = Story.begin(made)
    for _ in range(10):
        story.run(3 * MS).block(6 * MS, ready=MS)
    story.run(0).total()
    Story.begin(made, tid=101).run(100 * MS).total()
    return made


def lossy() -> HandMade:
    """The same without the last waits."""
    made = two_threads()
    del made.waits[5:]
    return made


def profile_of(made: HandMade, is_damaged: bool = False) -> Profile:
    recording = made.recording()
    assert_covers(recording, is_damaged)
    return build_profile(recording)


def test_what_is_whole_adds_up() -> None:
    profile = profile_of(two_threads())
    assert [thread.accounted_ns for thread in profile.threads] == [100 * MS, 100 * MS]
    assert check_accounting(profile) == ""
    assert "100.00% of 200.0 ms wall time accounted for, exact in every thread" in quality_line(profile)


def test_lost_waits_are_missing_from_the_wall_time() -> None:
    profile = profile_of(lossy(), is_damaged=True)
    main, other = profile.threads
    assert (main.on_cpu_ns, main.runqueue_ns, main.off_cpu_ns, main.wall_ns) == (30 * MS, 5 * MS, 30 * MS, 100 * MS)
    assert main.off_by_reason == (("sleep", 30 * MS),)
    assert "1 of 2 threads" in check_accounting(profile) and other.accounted_ns == other.wall_ns
    assert "82.50% of 200.0 ms wall time accounted for, worst thread main (100) -35.00 ms" in quality_line(profile)


def test_lost_sums_of_short_waits_are_missing_too() -> None:
    made = HandMade(start={"min_block_us": 100}, end={"end_ns": START_NS + 10 * MS})
    made.process()
    Story.begin(made).run(4 * MS).block_short(2 * MS, syscall=FUTEX).run(4 * MS).total()
    assert check_accounting(profile_of(made)) == ""
    made.short_waits.clear()
    assert "8.00 ms accounted, 10.00 ms wall" in check_accounting(profile_of(made, is_damaged=True))


def test_time_that_is_there_twice_is_told() -> None:
    made = two_threads()
    made.waits[3]["blocked_ns"] = 26 * MS
    profile = profile_of(made, is_damaged=True)
    assert "worst thread main (100) +20.00 ms (20.00% of its wall time)" in quality_line(profile)


@pytest.mark.parametrize("lost", [slice(10, 20), slice(38, 50), slice(0, 50, 4)])
def test_over_a_twentieth_of_the_time_lost_is_said_first_and_by_the_exit_code(
    lost: slice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = HandMade()
    made.process()
    story = Story.begin(made)
    for _ in range(50):
        story.run(10 * MS).block(10 * MS)
    story.run(10 * MS).total()
    made.end = {"end_ns": story.now_ns, "lost": {"ring buffer full": 3}}
    del made.waits[lost]
    path = written(made, tmp_path)
    assert run("report", path) == 5
    assert capsys.readouterr().out.splitlines()[1].startswith("INCOMPLETE: ")
    for verb in ("report", "offcpu"):
        assert run(verb, path, "-f", "json") == 5
        (loss,) = json.loads(capsys.readouterr().out)["quality"]["lost_processes"]
        assert loss["pid"] == 100 and loss["share"] > 0.05
    for options in (("--check",), ("-f", "collapsed"), ("-o", tmp_path / "x.svg")):
        assert run("report", path, *options) == 5
        assert "of the time of python (100) was lost" in capsys.readouterr().err or options == ("--check",)


def test_check_fails_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", written(two_threads(), tmp_path), "--check") == 0
    assert capsys.readouterr().err == "every thread within 1%\n"
    path = written(lossy(), tmp_path, "lossy")
    assert run("report", path, "--check") == 5
    told = capsys.readouterr()
    assert "not within 1% of their wall time: 1 of 2 threads" in told.err
    assert "thread main (100) of process python (100): 65.00 ms accounted, 100.0 ms wall" in told.err
    (line,) = [line for line in told.out.splitlines() if "-35.00 ms  sleep" in line]
    assert line.split()[:5] == ["main", "100", "0.065", "0.100", "-35.00"]
    assert run("report", path) == 0


@pytest.mark.parametrize(("part", "exit_code"), [(0.01, 0), (0.011, 5), (-0.02, 5)])
def test_check_allows_a_hundredth(
    part: float, exit_code: int, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ProfileBuilder()
    for tid, name in ((1, "right"), (2, "ga\x1bppy")):
        made.spend(made.thread(tid, name), ON_CPU, 1_000 * MS, [python("f")])
    made.threads[1] = replace(made.threads[1], on_cpu_ns=round(1_000 * MS * (1 - part)))
    monkeypatch.setattr(report, "build_profile", lambda *_: made.build())
    assert run("report", written(small(), tmp_path), "--check") == exit_code
    told = capsys.readouterr()
    assert ("thread ga?ppy (2) of process python (100): " in told.err) == (exit_code > 0)
    assert "right" not in told.err and "bug" not in told.err and "wall time accounted for" in told.out


def test_check_fails_when_the_kernel_did_not_tell_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = two_threads()
    made.end["switches_untold"] = 2
    assert run("report", written(made, tmp_path), "--check") == 5
    assert "\nbpfprof: 2 switches not told by the kernel: " in "\n" + capsys.readouterr().err


def test_a_recording_that_ends_before_its_threads_begin() -> None:
    """Cut after its first chunks: there is no time that could be missing."""
    made = HandMade()
    made.process()
    made.thread(first_ns=START_NS + 3 * MS)
    profile = profile_of(made)
    assert (profile.threads[0].wall_ns, profile.threads[0].accounted_ns) == (0, 0)
    assert check_accounting(profile) == ""


def test_a_table_by_function_or_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(small(), tmp_path)
    assert run("report", path, "--by", "library", "-n", "1") == 0
    text = capsys.readouterr().out
    assert "seconds by library" in text and "top functions" not in text and "more (--limit)" in text
    assert run("report", path, "--by", "function") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" Worker.run")]
    assert line.split()[5:] == ["own", "code", "a", "Worker.run"]
    assert run("report", path, "--by", "library", "-f", "collapsed") == 2


def test_weights_in_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(small(), tmp_path)
    assert run("report", path, "-f", "collapsed", "--event", "faults") == 0
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()] == ["40"]
    for wrong in (("--event", "faults"), ("-f", "collapsed", "--event", "cs"), ("--event", "nothing")):
        assert run("report", path, *wrong) == 2


def crew() -> HandMade:
    """Nine workers of one role, each on a CPU and waiting; the main thread sleeps."""
    made = HandMade(end={"end_ns": START_NS + 100 * MS})
    made.process()
    work = made.stack((made.code("work"), 0, 0))
    Story.begin(made).run(MS).block(98 * MS).run(MS).total()
    for number in range(9):
        story = Story.begin(made, tid=101 + number)
        made.threads[-1]["name"] = f"worker_{number}"
        story.run((10 + number) * MS, (MS, work)).block((90 - number) * MS, stack=work, syscall=IOCTL).run(0).total()
    return made


def test_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(crew(), tmp_path)

    def tree(*options: str) -> str:
        assert run("report", path, "-f", "tree", *options) == 0
        return capsys.readouterr().out

    assert "worker_0..8 (9 threads)" in tree() and "work  a.py:1" in tree() and "worker_0 (101)" not in tree()
    assert "worker_0 (101)" in tree("--merge", "none") and "all (10 threads)" in tree("--merge", "process")
    assert "1 smaller call left out" in tree("--limit", "1") and "a.py:" not in tree("--limit", "1")
    assert "0.802" not in tree("--cpu") and "work  /srv/a.py:1" in tree("--full-filenames")
    assert "work  a.py\n" in tree("-F", "--cpu") and "only thread worker_1" in tree("--thread", "worker_1")
    assert run("report", path, "-o", tmp_path / "tree.out", "-f", "tree") == 0
    assert "worker_0..8 (9 threads)" in (tmp_path / "tree.out").read_text()


def test_merged_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(crew(), tmp_path)

    def shown(*arguments: object) -> str:
        assert run(*arguments) == 0
        return capsys.readouterr().out

    by_thread = ("report", path, "--by", "thread")
    assert "worker_0..8 (9 threads)" in shown(*by_thread, "--merge", "role")
    assert '"thread": "worker_0..8 (9 threads)"' in shown(*by_thread, "--merge", "role", "-f", "json")
    assert '"thread": "worker_8 (109)"' in shown(*by_thread, "-f", "json")
    plain, merged = (shown("report", path, "-f", "collapsed", *options) for options in ((), ("--merge", "role")))
    assert "thread worker_3 (104);" in plain and "thread worker_0..8 (9 threads);work" in merged
    weights = [sum(int(line.rpartition(" ")[2]) for line in text.splitlines()) for text in (plain, merged)]
    assert weights == [1_000_000, 1_000_000]
    assert "worker_0..8 (9 threads)" in shown("report", path, "-f", "svg", "--merge", "role")
    assert "thread worker_0..8 (9 threads), process python (100)" in shown(
        *("offcpu", path, "--by", "thread", "--merge", "role")
    )
    diff = ("diff", path, path, "--by", "thread", "-f", "json")
    assert '"worker_8"' in shown(*diff) and '"worker_#"' in shown(*diff, "--merge", "role")
    for wrong in (("-f", "speedscope"), ("-f", "summary"), ("-f", "tree", "--merge", "nothing")):
        assert run("report", path, *wrong, *(("--merge", "role") if "nothing" not in wrong else ())) == 2


def test_order_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(crew(), tmp_path)

    def first(sort: str) -> str:
        assert run("report", path, "--by", "thread", "--sort", sort, "-n", "1") == 0
        lines = capsys.readouterr().out.splitlines()
        return lines[lines.index(next(line for line in lines if line.startswith("seconds by"))) + 2].split()[5]

    assert (first("cpu"), first("name")) == ("worker_8", "main")
    assert first("wait") == "worker_0"
    assert run("report", path, "--by", "thread", "--sort", "colour") == 2


def test_idle_waits_are_apart_shown_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(crew(), tmp_path)
    found = {}
    for options in ((), ("--idle",), ("--hide-idle",)):
        assert run("report", path, "-f", "tree", *options) == 0
        found[options] = capsys.readouterr().out
    assert "of waits for work (--idle shows them): main" in found[()]
    assert "waiting: work" in found[("--idle",)] and "waits for work" not in found[("--idle",)]
    assert "waits for work" not in found[("--hide-idle",)] + found[("--idle",)]
    assert run("offcpu", path, "--by", "thread", "--idle") == 0
    assert "idle" not in capsys.readouterr().out.partition("thread main")[0]
