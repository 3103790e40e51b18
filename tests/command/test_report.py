"""`bpfprof report`: every format, without root and without BCC, and the text contract of collapsed stacks."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.reader import read_recording
from bpfprof.render.formats import Format
from tests.integration.recorded import (
    AS_NOBODY,
    BPFPROF,
    COLLAPSED_LINE,
    PYTHON_FRAME,
    TEXT_FORMATS,
    bpfprof,
    collapsed,
    completed,
    needs_root,
    open_folder,
    skip_unless_nobody_can_run,
)
from tests.recordings.kept import unpacked


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of many kinds in one recording: processes, threads, waits of many kinds and C threads."""
    return unpacked("many", tmp_path_factory.mktemp("report"))


# In the gate one of each kind; unit/render asks for all of them.
GATE_FORMATS = ("flamegraph", "json", "summary")
# Formats that have room for few functions, and one whose data is compressed.
WITHOUT_ALL_NAMES = ("summary", "table", "waits", "markdown", "html")


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(chosen, id=chosen.name, marks=() if chosen.name in GATE_FORMATS else pytest.mark.second_tier)
        for chosen in TEXT_FORMATS
    ],
)
@needs_root
def test_an_ordinary_user_without_bcc_gets_every_format(recorded: Path, chosen: Format, tmp_path: Path) -> None:
    skip_unless_nobody_can_run()
    with open_folder() as folder:
        (folder / "shadow" / "bcc").mkdir(parents=True)
        (folder / "shadow" / "bcc" / "__init__.py").write_text("raise SystemExit('bcc was imported')")
        shutil.copy(recorded, folder / "x.bpfprof")
        (folder / "out").mkdir()
        os.chown(folder / "out", AS_NOBODY["user"], AS_NOBODY["group"])
        for path in (folder / "x.bpfprof", *folder.glob("shadow/**/*")):
            path.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(folder / "shadow")}
        report = [*BPFPROF, "report", str(folder / "x.bpfprof"), "-f", chosen.name]
        printed = completed(report, 0, **AS_NOBODY, env=environment)
        written = completed([*report, "-o", str(folder / "out" / "y")], 0, **AS_NOBODY, env=environment)
        assert printed.stderr == "" and written.stdout == ""
        assert (folder / "out" / "y").read_text() == printed.stdout
        assert (folder / "out" / "y").stat().st_uid == AS_NOBODY["user"]
    assert "compress_all" in printed.stdout or chosen.name in WITHOUT_ALL_NAMES


@pytest.mark.second_tier
def test_suffixes_and_synonyms_give_the_same(recorded: Path, tmp_path: Path) -> None:
    for chosen in TEXT_FORMATS:
        plain = bpfprof("report", recorded, "-f", chosen.name).stdout
        for suffix in chosen.suffixes[:1]:
            bpfprof("report", recorded, "-o", tmp_path / f"x{suffix}")
            assert (tmp_path / f"x{suffix}").read_text() == plain
    assert bpfprof("report", recorded, "-f", "RAW").stdout == bpfprof("report", recorded, "-f", "collapsed").stdout
    assert bpfprof("report", recorded).stdout == bpfprof("report", recorded, "-f", "summary").stdout
    assert bpfprof("report", recorded, "--details").stdout == bpfprof("report", recorded, "-f", "table").stdout


def test_every_line_follows_the_contract(recorded: Path) -> None:
    for options in ([], ["-F"], ["--full-filenames"], ["-F", "--full-filenames"], ["-t"]):
        text = bpfprof("report", recorded, "-f", "collapsed", *options).stdout
        assert len(text.splitlines()) > 50
        odd = [line for line in text.split("\n")[:-1] if not COLLAPSED_LINE.fullmatch(line)]
        assert odd == []


def test_lines_of_a_thread_add_up_to_its_wall_time(recorded: Path) -> None:
    with open(recorded, "rb") as file:
        profile = build_profile(read_recording(file))
    folded = collapsed(recorded)
    assert len(profile.threads) > 40
    for thread in profile.threads:
        seen_us = folded.of_thread(thread.tid).total_us()
        assert abs(seen_us - thread.wall_ns / 1000) <= 1, thread  # rounded once a thread


def test_no_gap_and_no_overlap_in_any_thread(recorded: Path) -> None:
    """Intervals follow each other from the first to the last moment, also of threads that no sample fell into."""
    with open(recorded, "rb") as file:
        profile = build_profile(read_recording(file), ProfileOptions(with_spans=True))
    assert profile.spans is not None
    wrong = []
    for index, thread in enumerate(profile.threads):
        rows = profile.spans[profile.spans["thread"] == index]
        start_ns = rows["start_ns"].astype(np.int64)
        gap_ns = start_ns[1:] - start_ns[:-1] - rows["duration_ns"][:-1].astype(np.int64)
        if np.any(np.abs(gap_ns) > 1000):
            wrong.append(
                f"{thread.thread_name} ({thread.tid}), {thread.sample_count} samples: {np.abs(gap_ns).max()} ns"
            )
    assert wrong == []


def test_function_option_leaves_out_lines_only(recorded: Path) -> None:
    with_lines, without = collapsed(recorded), collapsed(recorded, "-F")
    frames = {frame for _, _, stack, _ in without.lines for frame in stack if PYTHON_FRAME.fullmatch(frame)}
    own = {frame for frame in frames if not frame.startswith("evil")}  # that one has a line in its name
    assert own and not [frame for frame in own if re.search(r":\d+\)", frame)]
    assert any(re.search(r":\d+\)", frame) for _, _, stack, _ in with_lines.lines for frame in stack)
    assert without.functions() == with_lines.functions()
    for process in {line[0] for line in without.lines}:
        pid = int(process.rpartition("(")[2].rstrip(")"))
        assert without.of_process(pid).total_us() == with_lines.of_process(pid).total_us()


def test_full_filenames(recorded: Path) -> None:
    short, full = collapsed(recorded), collapsed(recorded, "--full-filenames")
    files = {
        match["file"]
        for _, _, stack, _ in full.lines
        for match in map(PYTHON_FRAME.fullmatch, stack)
        if match and not match["name"].startswith(("evil", "["))
    }
    assert "/srv/tests/programs/oracle.py" in files
    assert not [file for file in files if not file.startswith(("/", "<"))]
    assert any("(oracle.py:" in frame for _, _, stack, _ in short.lines for frame in stack)
    assert not any("(oracle.py:" in frame for _, _, stack, _ in full.lines for frame in stack)
    # Of two files with the same name, as much as tells them apart.
    threading_files = {file for file in files if file.endswith("/threading.py")}
    tails = {frame.rpartition(" (")[2] for _, _, stack, _ in short.lines for frame in stack if "threading.py:" in frame}
    assert len(threading_files) == 1 or not any(tail.startswith("threading.py:") for tail in tails)


def test_documents_are_well_formed(recorded: Path) -> None:
    svg = bpfprof("report", recorded, "-f", "flamegraph").stdout
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    speedscope = json.loads(bpfprof("report", recorded, "-f", "speedscope").stdout)
    frame_count = len(speedscope["shared"]["frames"])
    assert len(speedscope["profiles"]) > 40
    for profile in speedscope["profiles"]:
        assert all(0 <= frame < frame_count for stack in profile["samples"] for frame in stack)
        assert len(profile["samples"]) == len(profile["weights"])


def test_the_table_fits_a_terminal_and_ends_with_the_quality(recorded: Path) -> None:
    text = bpfprof("report", recorded, "--details").stdout
    assert max(map(len, text.splitlines())) <= 100
    *_, quality = text.rstrip("\n").split("\n\n")
    assert quality.startswith("quality: ")
    for word in ("wall time accounted for", "complete", "truncated", "lost", "bpfprof itself used"):
        assert word in " ".join(quality.split())
