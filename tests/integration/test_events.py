"""Events beside the clock, against what getrusage says of a program that knows which function had them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.recorded import (
    PYTHON,
    Folded,
    assert_told,
    bpfprof,
    checked,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root
HAS_COUNTERS = Path("/sys/bus/event_source/devices/cpu").exists()
EACH, SAMPLED = 0.01, 0.2  # how far counts may be off: with a sample each event, and with about 1,000 a second


@dataclass
class Counted:
    """A recording of counted.py; `truth`: function -> [faults, switches]."""

    path: Path
    summary: str
    truth: dict[str, list[int]]

    def count(self, event: str, function: str) -> int:
        """Events under a function."""
        lines = bpfprof("report", self.path, "-f", "collapsed", "-F", "--event", event).stdout
        frame = f"{function} (counted.py)"
        return sum(weight for _, _, frames, weight in Folded.parse(lines).lines if frame in frames)


def counted(path: Path, *options: str) -> Counted:
    with running(PYTHON, program("counted.py")) as target:
        with recording("-p", target.pid, "-o", path, "--details", *options) as recorder:
            target.tell("go")
            truth = json.loads(target.answer())
            done = recorder.end()
        assert done.returncode == 0, done.stderr
        return Counted(path, done.stdout, truth)


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """A sample each event."""
    return counted(tmp_path_factory.mktemp("events") / "each.bpfprof", "-e", "page-faults,cs", "-c", "1")


def test_every_page_fault_has_its_function(each: Counted) -> None:
    (touched, _), (other, _) = each.truth["touch"], each.truth["nap"]
    assert each.count("page-faults", "touch") == pytest.approx(touched, rel=EACH)
    assert each.count("page-faults", "nap") <= other + EACH * touched


def test_every_switch_has_its_function(each: Counted) -> None:
    for function in ("touch", "nap"):
        truth = each.truth[function][1]
        assert each.count("context-switches", function) == pytest.approx(truth, rel=EACH, abs=5), function


def test_time_is_accounted_for_as_without_events(each: Counted) -> None:
    checked(each.path)
    assert "none lost" in " ".join(each.summary.split()), each.summary


def test_a_column_for_each_event_and_their_ratio(each: Counted) -> None:
    assert "ratio: page-faults per context-switch" in each.summary
    rows = re.findall(
        r"^ *([\d,]+) +([\d,]+) +[<>]?([\d.]+)% +([\d.e+]+)  +(\w+) \(counted\.py\)$", each.summary, re.MULTILINE
    )
    by_name = {name: [float(column.replace(",", "")) for column in columns] for *columns, name in rows}
    faults, switches, share, ratio = by_name["touch"]
    assert share > 95 and ratio == pytest.approx(faults / switches, rel=0.01)
    assert by_name["nap"][3] < 0.1


def test_sampled_counts_are_near(tmp_path: Path) -> None:
    found = counted(tmp_path / "sampled.bpfprof", "-e", "minor-faults")
    truth = found.truth["touch"][0]
    assert found.count("minor-faults", "touch") == pytest.approx(truth, rel=SAMPLED)
    wrong = bpfprof("report", found.path, "-f", "collapsed", "--event", "cs", check=None)
    assert_told(wrong, 2, "did not count context-switches", "minor-faults")


def test_what_the_machine_does_not_have_is_refused_before_the_command_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = ("record", "-e", "instructions,cycles", "--details", "-o", tmp_path / "a.bpfprof", "--", "touch", ran)
    done = bpfprof(*command, check=None)
    if HAS_COUNTERS:
        assert done.returncode == 0 and "IPC: instructions per cycle" in done.stderr, done.stderr
        return
    assert_told(done, 3, "no hardware counters", "events that work here: page-faults, ")
    assert not ran.exists() and not (tmp_path / "a.bpfprof").exists()


def test_an_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    done = bpfprof("record", "-e", "page-fault", "-o", tmp_path / "a.bpfprof", "--", "true", check=None)
    assert_told(done, 2, "there is no event 'page-fault'", "page-faults", "cycles")
