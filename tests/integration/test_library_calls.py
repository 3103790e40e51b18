"""record --cuda, against a library in place of CUDA's whose calls, their sizes and how long they take are known."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bpfprof.recording.reader import read_recording
from tests.integration.recorded import (
    BPFPROF,
    PYTHON,
    Folded,
    assert_told,
    bpfprof,
    checked,
    completed,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root
KIB = 1 << 10
COPIES = 20 + 30
Row = dict[str, Any]


@dataclass
class Called:
    """A recording of cuda_calls.py; `truth`: "TID FUNCTION" -> calls, nanoseconds around them, least nanoseconds."""

    path: Path
    summary: str
    truth: dict[str, list[int]]
    libraries: tuple[Path, Path]

    def rows(self, *filters: str) -> dict[tuple[str, str | None], Row]:
        """(function, direction) -> its row; those of calls inside others, or that had not returned, have a mark."""
        content = json.loads(bpfprof("report", self.path, "-f", "json", "--by", "call", *filters).stdout)
        marks = {(True, True): "inside ", (False, False): "open ", (False, True): ""}
        return {
            (marks[row["inside_another"], row["returned"]] + row["function"], row["direction"]): row
            for row in content["calls"]["rows"]
        }


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    first, second = folder / "libcudart.so.12", folder / "libnccl.so.2"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", first, program("cuda.c")], check=True)
    shutil.copy(first, second)
    return first, second


def wait_for_links(pid: int, count: int) -> None:
    """Until bpfprof has so many: for each library one of the ends of calls and one of their begins."""
    deadline_s = time.monotonic() + 30
    while sum("probe_multi\n" in text_of(path) for path in Path(f"/proc/{pid}/fdinfo").iterdir()) < count:
        assert time.monotonic() < deadline_s, "the library is not probed"
        time.sleep(0.01)


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it was closed meanwhile
        return ""


@pytest.fixture(scope="module")
def called(libraries: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Called:
    path = tmp_path_factory.mktemp("calls") / "calls.bpfprof"
    with running(PYTHON, program("cuda_calls.py"), *map(str, libraries)) as target:
        with recording("-p", target.pid, "--cuda", "-o", path) as recorder:
            target.tell("go")
            assert target.answer() == "loaded\n"
            wait_for_links(recorder.process.pid, 4)
            target.tell("go on")
            truth = json.loads(target.answer())
            done = recorder.end()
        assert done.returncode == 0, done.stderr
        return Called(path, done.stdout, truth, libraries)


def test_every_call_is_counted_with_its_bytes(called: Called) -> None:
    """Those of a library that was mapped after the recording began, too."""
    rows = called.rows()
    expected = {
        ("cudaMemcpy", "HtoD"): (COPIES, COPIES * 2000 * KIB),
        ("inside cudaMemcpyAsync", "HtoD"): (COPIES, COPIES * 2000 * KIB),
        ("cudaMemcpyAsync", "DtoH"): (COPIES, COPIES * 500 * KIB),
        ("cudaMemcpy2D", "DtoH"): (COPIES, COPIES * 320 * KIB),
        ("cudaMemset", None): (COPIES, COPIES * 100 * KIB),
        ("inside cudaMemsetAsync", None): (COPIES, COPIES * 100 * KIB),
        ("cudaStreamSynchronize", None): (10, 0),
        ("cudaLaunchKernel", None): (5011, 0),
        ("ncclAllReduce", None): (15, 15 * 1000 * KIB),
        ("open cudaStreamSynchronize", None): (1, 0),
    }
    assert {key: (row["count"], row["bytes"]) for key, row in rows.items()} == expected


def test_times_are_those_of_the_calls(called: Called) -> None:
    """They are not longer than they seemed from outside, and not shorter than what they slept."""
    rows, by_function = called.rows(), dict[str, list[int]]()
    for key, found in called.truth.items():
        sums = by_function.setdefault(key.split()[1], [0, 0, 0])
        by_function[key.split()[1]] = [one + more for one, more in zip(sums, found)]
    for (function, _), row in rows.items():
        if function not in by_function or function == "cudaLaunchKernel":  # a thread calls that outside of the truth
            continue
        _, around_ns, least_ns = by_function[function]
        assert least_ns <= 1e9 * row["total_s"] <= around_ns, function
        assert row["total_s"] / row["count"] <= row["longest_s"] <= row["total_s"]
        assert row["median_s"] <= row["p99_s"] <= row["longest_s"]
    copy = rows["cudaMemcpy", "HtoD"]
    assert copy["median_s"] >= 0.002 / 1.23
    assert rows["inside cudaMemcpyAsync", "HtoD"]["total_s"] < copy["total_s"]


def test_each_thread_has_its_own(called: Called) -> None:
    for key, (count, _, _) in called.truth.items():
        tid, function = key.split()
        rows = called.rows("--thread", rf"\({tid}\)")
        (found,) = (row for (name, _), row in rows.items() if name == function)
        assert (found["count"], found["tids"]) == (count, [int(tid)]), key


def test_calls_that_never_return_are_told(called: Called) -> None:
    with called.path.open("rb") as file:
        end = read_recording(file).end
    assert end["call_libraries"] == {str(called.libraries[0]): 9, str(called.libraries[1]): 1}
    assert end["problems"]["calls of libraries that never returned"] == COPIES
    assert not end["lost"]


def test_stacks_lead_through_functions_that_are_probed(called: Called) -> None:
    """Where their return address lies the kernel has another one meanwhile."""
    checked(called.path)
    lines = Folded.parse(bpfprof("report", called.path, "-f", "collapsed", "-F").stdout).lines
    waits = [(frames, weight) for _, _, frames, weight in lines if frames[-1] == "[off-cpu: device]"]
    whole = [weight for frames, weight in waits if "copies (cuda_calls.py)" in frames and frames[0][0] != "["]
    copied = [weight for frames, weight in waits if any(frame.startswith("cudaMemcpy") for frame in frames)]
    assert sum(whole) > 50_000 * 2 * 0.95
    assert sum(copied) - sum(whole) < 0.02 * sum(copied)


def test_the_terminal_shows_a_table(called: Called) -> None:
    for text in (
        called.summary,
        bpfprof("report", called.path).stdout,
        bpfprof("report", called.path, "--by", "call").stdout,
    ):
        assert "calls of libraries, 10 functions of " in text
        before, _, after = text.partition("made by these calls, and in their times:\n")
        after, _, unfinished = after.partition("had not returned when the recording ended:\n")
        assert "cudaMemcpy HtoD\n" in before and "cudaMemcpyAsync HtoD\n" in after
        assert re.match(r" +1 .* cudaStreamSynchronize\n", unfinished), text


def test_functions_are_what_they_were_when_it_has_ended(libraries: tuple[Path, Path], tmp_path: Path) -> None:
    """And a program without such a library is told of."""
    with running(PYTHON, program("cuda_calls.py"), *map(str, libraries)) as target:
        with recording("-p", target.pid, "--cuda", "-o", tmp_path / "a.bpfprof") as recorder:
            assert first_bytes(target.pid, libraries[0]) == b"\xcc"
            recorder.end()
        for _ in range(1000):  # the kernel takes its probes back by and by
            if (found := first_bytes(target.pid, libraries[0])) != b"\xcc":
                break
            time.sleep(0.01)
        assert found not in (b"", b"\xcc")
    done = bpfprof("record", "--cuda", "-o", tmp_path / "b.bpfprof", "--", "sleep", "0.2")
    assert "no CUDA, NCCL or HIP library was mapped by any target" in done.stderr


def first_bytes(pid: int, library: Path) -> bytes:
    """What a process has where the code of cudaEventSynchronize begins."""
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    (address,) = (int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" cudaEventSynchronize"))
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    start = min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(library)))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(start + address)
        return memory.read(1)


def test_what_it_cannot_be_with_is_told(tmp_path: Path) -> None:
    output = ("-o", tmp_path / "a.bpfprof")
    for options in (("--no-native",), ("--push", "http://127.0.0.1:1/")):
        done = bpfprof("record", "--cuda", *options, *(() if "--push" in options else output), "--", "true", check=None)
        assert_told(done, 2, "--cuda", options[0])
    path = tmp_path / "plain.bpfprof"
    bpfprof("record", "-o", path, "--", "true")
    assert "record --cuda does that" in bpfprof("report", path, "--by", "call").stdout
    assert_told(bpfprof("report", path, "--by", "call", "-f", "csv", check=None), 2, "calls are no rows of time")


WITHOUT_ADMIN = ("setpriv", "--bounding-set", "-sys_admin")


def test_by_links_it_needs_no_more_than_any_recording(libraries: tuple[Path, Path], tmp_path: Path) -> None:
    """Also of a library that is mapped when most privileges were given up."""
    path = tmp_path / "a.bpfprof"
    call_late = f"""
import ctypes, time
function = ctypes.CDLL({str(libraries[0])!r}).cudaEventSynchronize
address, end_s = ctypes.cast(function, ctypes.c_void_p).value, time.monotonic() + 30
while ctypes.string_at(address, 1) != b"\\xcc" and time.monotonic() < end_s:
    time.sleep(0.01)
for _ in range(100): # those at the begin of calls come a moment after those at their end
    function(None)
    time.sleep(0.01)
"""
    completed([*WITHOUT_ADMIN, *BPFPROF, "record", "--cuda", "-o", str(path), "--", PYTHON, "-c", call_late], 0)
    (row,) = json.loads(bpfprof("report", path, "-f", "json").stdout)["calls"]["rows"]
    assert row["function"] == "cudaEventSynchronize" and row["count"] >= 1


def test_by_perf_events_it_says_what_it_lacks() -> None:
    """As on kernels before 6.6."""
    ask = """
from bpfprof.kernel import probes
probes.has_uprobe_links = lambda types: False
try:
    probes.check_probes()
except Exception as error:
    print(error, error.exit_code)
"""
    done = completed([*WITHOUT_ADMIN, PYTHON, "-c", ask], 0)
    assert done.stdout == "this kernel lets nobody set uprobes without CAP_SYS_ADMIN 3\n"
    assert completed([PYTHON, "-c", ask], 0).stdout == ""
