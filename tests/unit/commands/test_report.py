"""The proof that each thread's time adds up, and that it fails where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from bpfprof.query.accounting import unaccounted

from bpfprof import cli
from bpfprof.model.profile import Profile
from bpfprof.profile.build import build_profile
from bpfprof.recording.format import Chunk
from bpfprof.render.quality import quality_line
from tests.unit.recording.hand_made import FUTEX, MS, START_NS, HandMade, Story, array, chunk_of, file_bytes, read

TOLERANCE = 0.01


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


def in_two_chunks(made: HandMade) -> list[Chunk]:
    """The recording with its waits in two chunks: what is lost by accident is lost by the chunk."""
    chunks = made.chunks()
    place = chunks.index(chunk_of(chunks, "waits"))
    dtype = chunks[place].arrays["rows"].dtype
    parts = made.waits[:5], made.waits[5:]
    chunks[place : place + 1] = [Chunk("waits", {}, {"rows": array(part, dtype)}) for part in parts]
    return chunks


def without(chunks: list[Chunk], kind: str) -> list[Chunk]:
    """Without the last chunk of this kind."""
    lost = [chunk for chunk in chunks if chunk.kind == kind][-1]
    return [chunk for chunk in chunks if chunk is not lost]


def profile_of(chunks: list[Chunk]) -> Profile:
    return build_profile(read(chunks))


def test_what_is_whole_adds_up() -> None:
    profile = profile_of(in_two_chunks(two_threads()))
    assert [thread.accounted_ns for thread in profile.threads] == [100 * MS, 100 * MS]
    assert unaccounted(profile, TOLERANCE) == []
    assert "100.00% of 200.0 ms wall time accounted for, exact in every thread" in quality_line(profile)


def test_lost_waits_are_missing_from_the_wall_time() -> None:
    profile = profile_of(without(in_two_chunks(two_threads()), "waits"))
    main, other = profile.threads
    assert (main.on_cpu_ns, main.runqueue_ns, main.off_cpu_ns, main.wall_ns) == (30 * MS, 5 * MS, 30 * MS, 100 * MS)
    assert main.off_by_reason == (("sleep", 30 * MS),)
    assert unaccounted(profile, TOLERANCE) == [main] and other.accounted_ns == other.wall_ns
    assert "82.50% of 200.0 ms wall time accounted for, worst thread main (100) -35.00 ms" in quality_line(profile)


def test_lost_sums_of_short_waits_are_missing_too() -> None:
    made = HandMade(start={"min_block_us": 100}, end={"end_ns": START_NS + 10 * MS})
    made.process()
    Story.begin(made).run(4 * MS).block_short(2 * MS, syscall=FUTEX).run(4 * MS).total()
    assert unaccounted(profile_of(made.chunks()), TOLERANCE) == []
    made.short_waits.clear()
    assert [thread.accounted_ns for thread in unaccounted(profile_of(made.chunks()), TOLERANCE)] == [8 * MS]


def test_check_fails_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, lossy = tmp_path / "whole.bpfprof", tmp_path / "lossy.bpfprof"
    chunks = in_two_chunks(two_threads())
    whole.write_bytes(file_bytes(chunks))
    lossy.write_bytes(file_bytes(without(chunks, "waits")))
    assert cli._run(["report", str(whole), "--check"], False, False) == 0
    assert capsys.readouterr().err == "every thread within 1%\n"
    assert cli._run(["report", str(lossy), "--check"], False, False) != 0
    told = capsys.readouterr()
    assert "not within 1% of their wall time: 1 of 2 threads" in told.err
    assert "thread main (100) of process python (100): 65.00 ms accounted, 100.0 ms wall" in told.err
    (line,) = [line for line in told.out.splitlines() if "-35.00 ms  sleep" in line]
    assert line.split()[:5] == ["main", "100", "0.065", "0.100", "-35.00"]


def test_a_recording_that_ends_before_its_threads_begin() -> None:
    """Cut after its first chunks: there is no time that could be missing."""
    made = HandMade()
    made.process()
    made.thread(first_ns=START_NS + 3 * MS)
    (thread,) = build_profile(made.recording()).threads
    assert (thread.wall_ns, thread.accounted_ns) == (0, 0)
    assert unaccounted(build_profile(made.recording()), TOLERANCE) == []
