"""CPython 3.6 to 3.10 in the whole machine's recording, launched, and stripped."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.cpython.gil import static_gil
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import Pid
from tests.integration.recorded import (
    OLD_INTERPRETERS,
    Folded,
    bpfprof,
    collapsed,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = [
    needs_root,
    pytest.mark.skipif(not OLD_INTERPRETERS, reason="no CPython 3.6 to 3.10 under ~/.pyenv/versions"),
]
WINDOW_S = 5


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folded]:
    """Version -> what a recording of all processes has of known.py on it."""
    path = tmp_path_factory.mktemp("all") / "x.bpfprof"
    with ExitStack() as stack:
        pids = {
            name: stack.enter_context(running(python, program("known.py"))).pid
            for name, python in OLD_INTERPRETERS.items()
        }
        with recording("-a", "-r", 499, "-o", path) as recorder:
            time.sleep(WINDOW_S)  # the length of the recording
            done = recorder.end()
            assert done.returncode == 0, done.stderr
    folded = collapsed(path)
    return {name: folded.of_process(pid) for name, pid in pids.items()}


@pytest.mark.parametrize("name", OLD_INTERPRETERS)
def test_functions_of_a_process_among_all(everything: dict[str, Folded], name: str) -> None:
    """On a CPU in Python and in C below it, asleep, and (the other thread, all the time) waiting for a lock."""
    found = everything[name]
    assert found.total_us("count", "cpu") > 0
    assert found.total_us("nap", "off") > 0
    # Those with a mark are from before the process was looked at. A CPython without OpenSSL has a module of its own.
    stacks = [it for _, _, it, _ in found.lines if not it[0].startswith("[truncated: ")]
    in_c = [it for it in stacks if "(libcrypto" in it[-1] or "(_sha256" in it[-1]]
    assert in_c
    assert not [it for it in in_c if not any(frame.startswith("digest (known.py:") for frame in it)]
    waits = sum(weight for _, _, frames, weight in found.lines if frames[-1] == "[off-cpu: lock]")
    assert found.total_us("wait_for", "off") > 0.9 * waits > 0.7e6 * WINDOW_S


@pytest.mark.parametrize("name", OLD_INTERPRETERS)
def test_launched(name: str, tmp_path: Path) -> None:
    # A busy machine may keep bpfprof from finding its interpreter for half a second.
    script = "import time\ndef work():\n while time.process_time() < 2: sum(range(1000))\nwork()"
    bpfprof("record", "-o", tmp_path / "x.txt", "--", OLD_INTERPRETERS[name], "-c", script)
    assert Folded.read(tmp_path / "x.txt").total_us("work", "cpu") > 300_000


@pytest.mark.skipif(
    "3.6" not in OLD_INTERPRETERS or shutil.which("strip") is None, reason="no CPython 3.6, or no strip"
)
def test_the_gil_of_a_stripped_3_6(tmp_path: Path) -> None:
    """It lies in static variables, which the code that initialises them tells where they have no names."""
    python = Path(OLD_INTERPRETERS["3.6"])
    (library,) = python.resolve().parents[1].glob("lib/libpython3.6m.so.1.0")
    subprocess.run(["strip", "-o", tmp_path / library.name, library], check=True)
    path = tmp_path / "x.bpfprof"
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(program("before_3_8")))}
    with running(str(python), program("gil_fight.py"), "2", env=environment) as target:
        assert str(tmp_path) in Path(f"/proc/{target.pid}/maps").read_text()
        found = find_interpreter(Pid(target.pid))
        assert isinstance(found, Interpreter) and found.version_text.startswith("3.6.")
        with ElfImage.open(str(library)) as image:
            by_name = static_gil(image, 0)
            assert by_name is not None and by_name.size
            assert found.gil == static_gil(image, found.gil.current - by_name.current)
        bpfprof("record", "-p", target.pid, "-d", 2, "-o", path)
    folded = collapsed(path)
    for function in ("hog_0", "hog_1"):
        assert folded.total_us(function, "cpu") > 0
        assert folded.total_us(function, "off") > 0
    leaves = {frames[-1] for _, _, frames, _ in folded.lines if any("hog_" in frame for frame in frames)}
    assert "[off-cpu: gil]" in leaves and "[off-cpu: lock]" not in leaves
