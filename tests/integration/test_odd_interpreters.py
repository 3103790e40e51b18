"""Python that is started, named, packed or shut away in odd ways: its stacks are merged as those of any other.

The program is always c_calls.py, whose threads each spend their time in C below one Python function.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.one_file import child_of, packed
from tests.integration.recorded import (
    BPFPROF,
    INTERPRETERS,
    LOADER,
    PYTHON_FRAME,
    Folded,
    collapsed,
    completed,
    needs_root,
    program,
    running,
)
from tests.looks import Look

FUNCTIONS = ("compress_all", "derive_keys", "sleep_by_ctypes", "sort_all")
# map_files of /proc needs one of these; containers that may load BPF programs often have neither.
WITHOUT_MAP_FILES = ["setpriv", "--bounding-set=-sys_admin,-checkpoint_restore"]
# Each thread of c_calls.py that computes has tens of samples in a second, and none once in e^30 recordings by chance
# alone; more often where others have the CPUs for most of that second.
RECORD_S = 1
# What was seen before a stack could be walked: the busier the machine, the longer that takes.
EARLY = ("[truncated: stack not taken]", "[truncated: unwind table not ready yet]")

pytestmark = needs_root
with_and_without_map_files = pytest.mark.parametrize(
    "prefix", [[], WITHOUT_MAP_FILES], ids=["map_files", "no_map_files"]
)

# Run in a mount namespace of its own: an overlay of the machine, as a container has it. $1 is an empty folder.
CONTAINER = """
set -e
mount -t tmpfs tmpfs $1
mkdir $1/upper $1/work $1/root
mount -t overlay overlay -o lowerdir=/,upperdir=$1/upper,workdir=$1/work $1/root
cd $1/root
mkdir -p opt/service old
cp $2 opt/service/python3; cp $3 opt/service/program.py
mount -t proc proc proc
pivot_root . old
umount -l old
exec /opt/service/python3 /opt/service/program.py
"""


@pytest.fixture(params=["debian-3.11", "3.12"], ids=["static", "libpython"])
def python(request: pytest.FixtureRequest) -> Path:
    """The program of an interpreter: one that holds all of Python, and one that loads libpython."""
    return interpreter(request.param)


def interpreter(name: str) -> Path:
    if name not in INTERPRETERS:
        pytest.skip(f"no CPython {name}")
    return Path(INTERPRETERS[name]).resolve()


def record(folder: Path, *arguments: str | int, prefix: Sequence[str] = ()) -> Folded:
    """Stacks of a recording with these arguments."""
    path = folder / "odd.bpfprof"
    completed([*prefix, *BPFPROF, "record", "-o", str(path), *map(str, arguments)], 0)
    return collapsed(path)


def attached(folder: Path, pid: int, times: int, prefix: Sequence[str] = ()) -> Folded:
    return record(folder, "-p", pid, "-d", times * RECORD_S, prefix=prefix)


def assert_merged(folded: Folded) -> None:
    """Each function was seen in C, below the function that starts threads, which C called; few walks ended early."""
    whole = [line[2] for line in folded.lines if line[2] and not line[2][0].startswith("[truncated")]
    for function in FUNCTIONS:
        assert any(is_merged(frames, function) for frames in whole), (function, folded.lines)
    ended = [(line[2][0], line[3]) for line in folded.lines if line[2] and line[2][0].startswith("[truncated")]
    assert sum(us for reason, us in ended if reason not in EARLY) < 0.05 * folded.total_us(), ended


def is_merged(frames: tuple[str, ...], function: str) -> bool:
    numbers = [number for number, frame in enumerate(frames) if PYTHON_FRAME.fullmatch(frame)]
    names = [frames[number].partition(" (")[0] for number in numbers]
    if names != ["Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", function]:
        return False
    above = frames[numbers[-1] + 1 :]
    return numbers[0] > 0 and bool(above) and not above[0].startswith("[")


def test_started_through_the_loader(python: Path, tmp_path: Path, look: Look) -> None:
    """Then /proc/PID/exe is the loader."""
    with running(LOADER, str(python), program("c_calls.py")) as target:
        assert "ld-linux" in os.readlink(f"/proc/{target.pid}/exe")
        look(lambda times: assert_merged(attached(tmp_path, target.pid, times)))


def test_launched_through_the_loader(python: Path, tmp_path: Path, look: Look) -> None:
    command = LOADER, str(python), program("c_calls.py")
    look(lambda times: assert_merged(record(tmp_path, "--", *command, "--seconds", 2 * times)))


def test_under_another_name(python: Path, tmp_path: Path, look: Look) -> None:
    renamed = shutil.copy(python, tmp_path / "myservice")
    with running(renamed, program("c_calls.py"), env={"PYTHONHOME": str(python.parent.parent)}) as target:
        look(lambda times: assert_merged(attached(tmp_path, target.pid, times)))
    assert collapsed(tmp_path / "odd.bpfprof").lines[0][0] == f"process myservice ({target.pid})"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to chroot() into, with the distribution's Python and what it loads."""
    folder, python = tmp_path_factory.mktemp("root"), interpreter("debian-3.11")
    library = Path("/usr/lib/python3.11")
    shutil.copytree(library, f"{folder}{library}", symlinks=True, ignore=shutil.ignore_patterns("config-*"))
    for line in completed(["ldd", str(python), *map(str, library.glob("lib-dynload/*.so"))], 0).stdout.splitlines():
        for path in (word for word in line.split() if word.startswith("/") and not word.endswith(":")):
            (folder / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path[1:])
    shutil.copy(python, folder / "python3")
    shutil.copy(program("c_calls.py"), folder / "program.py")
    return folder


@with_and_without_map_files
def test_below_another_root(root: Path, tmp_path: Path, prefix: list[str], look: Look) -> None:
    with running("chroot", str(root), "/python3", "/program.py") as target:
        look(lambda times: assert_merged(attached(tmp_path, target.pid, times, prefix)))


@with_and_without_map_files
def test_in_a_container(tmp_path: Path, prefix: list[str], look: Look) -> None:
    python = interpreter("debian-3.11")
    (tmp_path / "container").mkdir()
    spaces = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child"]
    inside = ["sh", "-c", CONTAINER, "sh", str(tmp_path / "container")]
    with running(*spaces, *inside, str(python), program("c_calls.py")) as target:
        pid = child_of(target.pid)
        assert not os.path.exists(os.readlink(f"/proc/{pid}/exe"))
        look(lambda times: assert_merged(attached(tmp_path, pid, times, prefix)))


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """c_calls.py as one program, made by PyInstaller."""
    return packed(Path(program("c_calls.py")), tmp_path_factory.mktemp("pyinstaller"))


@contextmanager
def running_one_file(one_file: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """The pids of the process that unpacks the program and of its child, which runs it."""
    with running(str(one_file), env={"TMPDIR": str(folder)}) as target:
        child = child_of(target.pid)
        assert f"{folder}/_MEI" in Path(f"/proc/{child}/maps").read_text()
        yield target.pid, child
        target.end()  # it takes away what it unpacked


def test_one_file_by_its_first_process(one_file: Path, tmp_path: Path, look: Look) -> None:
    with running_one_file(one_file, tmp_path) as (parent, child):

        def judge(times: int) -> None:
            folded = attached(tmp_path, parent, times)
            assert_merged(folded.of_process(child))
            waits_for_child = folded.of_process(parent)
            assert waits_for_child.lines and waits_for_child.total_us(kind="off") > 0.9 * waits_for_child.total_us()

        look(judge)


def test_one_file_by_the_process_that_runs_it(one_file: Path, tmp_path: Path, look: Look) -> None:
    with running_one_file(one_file, tmp_path) as (_, child):
        look(lambda times: assert_merged(attached(tmp_path, child, times)))


def test_one_file_launched(one_file: Path, tmp_path: Path, look: Look) -> None:
    def judge(times: int) -> None:
        folded = record(tmp_path, "--", str(one_file), "--seconds", 2 * times)
        assert len({line[0] for line in folded.lines}) == 2
        assert_merged(folded)

    look(judge)
