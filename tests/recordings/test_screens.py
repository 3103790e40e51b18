"""The first screen of kept recordings in three sizes of a terminal: golden texts, and sums of what is printed.

Update as the others are: BPFPROF_UPDATE_GOLDEN=1 pytest tests/recordings; then read the diff.
"""

from __future__ import annotations

import io
import os
import re
from functools import cache

import pytest

from bpfprof.model.profile import Profile
from bpfprof.profile.build import ProfileOptions, build_profile
from bpfprof.query.answer.verdict import Verdict, verdict_of
from bpfprof.query.code.functions import function_of_frames
from bpfprof.query.work.places import places_of
from bpfprof.query.work.table import Work, work_of
from bpfprof.recording.reader import read_recording
from bpfprof.render.summary import summary_lines
from tests.recordings.kept import HERE, NAMES, content

pytestmark = pytest.mark.gate
KEPT = ("training", "service", "tasks", "threads", "deadlock", "asleep", "gil", "pools", "hung", "data_bound", "rest")
SIZES = ((80, 24), (100, 30), (60, 12))
READABLE = [name for name in NAMES if name != "version_1"]
_PART = re.compile(r"(?:^|  )([A-Za-z]+(?: threads)?)(?: █+)? (<1|>99|\d+)%")
_OF = re.compile(r"  of (\d+\.\d{3}) s of ")
_ROLE = re.compile(r" (<1%|>99%|\d+%|-) +(<1%|>99%|\d+%|-) +(<1%|>99%|\d+%|-) +(<1%|>99%|\d+%|-) [a-zGC]")


@cache
def read(name: str) -> tuple[Profile, Work, Verdict]:
    profile = build_profile(read_recording(io.BytesIO(content(name))), ProfileOptions(with_spans=True))
    work = work_of(profile)
    return profile, work, verdict_of(profile, work)


def screen(name: str, columns: int, rows: int) -> list[str]:
    """Beside the prompt."""
    return summary_lines(read(name)[0], columns, rows - 1)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("name", KEPT)
def test_a_screen_is_what_a_person_has_read(name: str, size: tuple[int, int]) -> None:
    text = "\n".join(screen(name, *size)) + "\n"
    golden = HERE / "screens" / f"{name}.{size[0]}x{size[1]}.txt"
    if os.environ.get("BPFPROF_UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [*SIZES, (80, 21), (140, 50)], ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("name", READABLE)
def test_title_and_verdict_stay_with_five_places(name: str, size: tuple[int, int]) -> None:
    lines, (profile, work, verdict) = screen(name, *size), read(name)
    assert len(lines) < size[1] and max(map(len, lines)) <= size[0]
    told = " ".join(" ".join(lines).split())
    assert verdict.sentence.split(". ")[0].removesuffix(".")[:150] in told
    if size[1] < 24:
        return
    places = [it for it in places_of(profile, work, verdict.whole.working) if it.own_ns * 1000 >= verdict.whole.ns]
    heading = next((number for number, line in enumerate(lines) if line.startswith("where")), len(lines))
    rows = lines[heading + 1 : [*lines, ""].index("", heading)] if heading < len(lines) else []
    assert len([row for row in rows if not row.startswith("threads")]) >= min(5, len(places))


@pytest.mark.parametrize("name", READABLE)
def test_what_is_printed_is_parts_of_one_time(name: str) -> None:
    """Rounding apart: shares are all of it, places no more, a thread's parts all of its time."""
    lines, (profile, work, verdict) = summary_lines(read(name)[0], 140, 60), read(name)
    if not verdict.whole.roles:
        assert verdict.bound == "idle"
        return
    whole_s = next((float(found[1]) for line in lines if (found := _OF.match(line))), 0.0)
    assert whole_s == pytest.approx(verdict.whole.ns / 1e9, abs=0.001)
    shares = next(
        (line for number, line in enumerate(lines) if lines[number + 1 : number + 2] and _OF.match(lines[number + 1])),
        "",
    )
    parts = [0.5 if text == "<1" else 99.5 if text == ">99" else float(text) for _, text in _PART.findall(shares)]
    assert sum(parts) == pytest.approx(100, abs=0.5 * len(parts) + 0.5), shares
    places = places_of(profile, work, verdict.whole.working)
    assert sum(it.own_ns for it in places) <= verdict.whole.ns + len(places)
    for line in lines[lines.index("", 4) :]:
        if found := _ROLE.search(line):
            of_it = [
                0.5 if it == "<1%" else 99.5 if it == ">99%" else float(it[:-1] if it != "-" else 0)
                for it in found.groups()
            ]
            assert sum(of_it) == pytest.approx(100, abs=2.5), line


@pytest.mark.parametrize("name", READABLE)
def test_the_place_of_the_verdict_is_the_first_row(name: str) -> None:
    profile, work, verdict = read(name)
    if verdict.where is None:
        return
    places = places_of(profile, work, verdict.whole.working, verdict.place)
    functions = function_of_frames(profile.frames)
    assert functions[places[0].frame] == functions[verdict.place]


@pytest.mark.parametrize("name", READABLE)
def test_a_share_in_the_sentence_is_the_one_of_the_line(name: str) -> None:
    """Of verdicts that are about one share; what native code and Python are parts of is CPU."""
    lines, (_, _, verdict) = summary_lines(read(name)[0], 140, 60), read(name)
    word = {"ready": "ready", "gil": "GIL", "lock": "lock", "sleep": "sleep", "net": "network", "disk": "disk"}.get(
        verdict.bound
    )
    said = re.search(r" (\d+)% of the time", verdict.sentence)
    if not word or not said or "main thread" in verdict.sentence:
        return
    line = next(line for number, line in enumerate(lines) if _OF.match(lines[number + 1]))
    shown = dict(_PART.findall(line))
    assert abs(int(shown[word]) - int(said[1])) <= 1, (line, verdict.sentence)
