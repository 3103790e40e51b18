"""What runs in control groups and containers: chosen by `--cgroup` and `--container`, named from inside, shown apart.

The container is a root of another distribution (tests/sid.py) in namespaces of its own, below a cgroup that is named as
docker names them. The host has other files at the same paths.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfprof.recording.reader import read_recording
from bpfprof.recording.tables import RecordedProcess
from tests import sid
from tests.integration.eu_stack import wait_until_asleep
from tests.integration.recorded import (
    PYTHON,
    Folded,
    Target,
    assert_told,
    bpfprof,
    collapsed,
    let_run,
    needs_root,
    program,
    recording,
    running,
)

pytestmark = needs_root
ID = "3f2a9c0d1e4b5a6978695a4b3c2d1e0f3f2a9c0d1e4b5a6978695a4b3c2d1e0f"
OTHER_ID = "3f2b" + ID[4:]
TOGETHER_S = 3

# Its mounts are seen nowhere else; ids of users inside are others than outside, too.
ENTER = """
mount --bind {root} {root} && mount -t proc proc {root}/proc && mount -t tmpfs none {root}/tmp
mount --bind {programs} {root}/home
exec unshare --user --map-root-user chroot {root} /usr/bin/python3.14 -B /home/made_inside.py
"""


def hierarchies() -> list[Path]:
    """Where cgroups are made: v2, and one of v1, as far as there are."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    v1 = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup" and fields[1].endswith(("pids", "freezer"))]
    return unified[:1] + v1[:1]


@contextmanager
def cgroup(directory: Path) -> Iterator[Path]:
    """A cgroup for a while; nothing is left in it."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        until = time.monotonic() + 30
        for path in made:
            while path.exists():
                try:
                    path.rmdir()
                except OSError:  # those in it were killed, and are about to go
                    assert time.monotonic() < until, f"somebody stays in {path}"
                    time.sleep(0.01)


def inside(directory: Path, *command: str) -> list[str]:
    """A command line that joins a cgroup and then becomes the command."""
    return ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(directory), *command]


def processes(path: Path) -> dict[int, RecordedProcess]:
    with open(path, "rb") as file:
        return {process.pid: process for process in read_recording(file).processes}


# --- the container


@dataclass
class Contained:
    """A recording by `--container` and one of the whole machine. `pid` is that of the program inside."""

    folder: Path
    pid: int
    folded: Folded
    summary: str
    summary_of_all: str


@pytest.fixture(scope="module")
def contained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contained]:
    if not sid.pythons():
        pytest.skip("no root of Debian sid: python -m tests.sid makes it")
    folder = tmp_path_factory.mktemp("contained")
    script = ENTER.format(root=sid.folder(), programs=Path(program("made_inside.py")).parent)
    namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child")
    with ExitStack() as stack:
        directory = stack.enter_context(cgroup(hierarchies()[0] / "docker" / ID))
        stack.enter_context(cgroup(hierarchies()[0] / "docker" / OTHER_ID))
        stack.enter_context(running(*inside(directory, "unshare", *namespaces, "sh", "-c", script)))
        pids = [int(word) for word in (directory / "cgroup.procs").read_text().split()]
        (pid,) = (pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "python3.14\n")
        stack.enter_context(running(PYTHON, program("part_time.py")))  # it is outside
        done = bpfprof("record", "--container", ID[:4], "--details", "-d", 2, "-o", folder / "x.bpfprof")
        of_all = bpfprof("record", "-a", "--details", "-d", 1, "-o", folder / "all.bpfprof")
        told = bpfprof("record", "--container", ID[:3], "-d", 1, "-o", folder / "y.bpfprof", check=None)
        assert_told(told, 4, "2 containers begin with 3f2", "docker 3f2a9c0d1e4b", "docker 3f2b9c0d1e4b")
        yield Contained(folder, pid, collapsed(folder / "x.bpfprof"), done.stdout, of_all.stdout)


def test_only_the_container_is_recorded(contained: Contained) -> None:
    names = {process.split()[1] for process, *_ in contained.folded.lines}
    assert names == {"unshare", "python3.14"}, names


def test_its_own_files_perf_map_and_jitdump_are_read(contained: Contained) -> None:
    """The interpreter and the C library are at paths where the host has others, or nothing."""
    folded = contained.folded.of_process(contained.pid)
    assert {"turn", "rest"} <= folded.functions()
    for name in ("spin_in_container", "dumped_in_container"):
        assert folded.total_us(name) > 0.2e6
    frames = {frame for _, _, stack, _ in folded.lines for frame in stack}
    assert any(frame.endswith("(libc.so.6)") for frame in frames), frames
    assert not any("libc.so.6+0x" in frame for frame in frames), frames
    cut = [(stack, us) for _, _, stack, us in folded.lines if stack[0].startswith("[truncated")]
    # On a busy machine it may wait for a CPU as the recording begins, for longer than these five percent.
    cut_us = sum(us for stack, us in cut if stack[0] != "[truncated: stack not taken]")
    assert cut_us < 0.05 * folded.total_us(), cut


def test_both_pids_and_the_cgroup_are_known(contained: Contained) -> None:
    process = processes(contained.folder / "x.bpfprof")[contained.pid]
    assert process.namespace_pid == 1 and process.cgroup == f"/docker/{ID}" and process.version.startswith("3.14")
    assert any(line.startswith(f"process python3.14 ({contained.pid});") for line in lines_of(contained))
    for text in (contained.summary, contained.summary_of_all):
        assert "docker 3f2a9c0d1e4b" in text and f"python3.14 ({contained.pid}, 1 inside)" in text


def lines_of(contained: Contained) -> list[str]:
    return bpfprof("report", contained.folder / "x.bpfprof", "-f", "collapsed").stdout.splitlines()


def test_the_whole_machine_has_a_row_a_container(contained: Contained) -> None:
    rows = [line for line in contained.summary_of_all.splitlines() if line.startswith(("docker ", "kernel threads "))]
    assert len(rows) == 2, rows
    waits = bpfprof("offcpu", contained.folder / "all.bpfprof", "--by", "container").stdout
    assert "waits by container" in waits and "\ndocker 3f2a9c0d1e4b\n" in waits, waits


# --- cgroups


@pytest.mark.parametrize("top", hierarchies(), ids=str)
def test_those_in_a_cgroup_below_it_and_those_that_join(top: Path, tmp_path: Path) -> None:
    """Moved while it runs, moved and then another program, and born inside. Those outside are left alone."""
    # 10 ms of each 100, in which a clock of 499 Hz comes five times; one of 99 Hz may come between them each time.
    path, known = tmp_path / "x.bpfprof", (program("part_time.py"), "--busy-ms", "10")
    with ExitStack() as stack:
        directory = stack.enter_context(cgroup(top / f"bpfprof-test-{tmp_path.name}"))
        below = stack.enter_context(cgroup(directory / "below"))

        def begin(*command: str) -> Target:
            return stack.enter_context(running(*command))

        there, deep = begin(*inside(directory, PYTHON, *known)), begin(*inside(below, PYTHON, *known))
        outside, moved = begin(PYTHON, *known), begin(PYTHON, *known)
        recorder = stack.enter_context(recording("--cgroup", directory.name, "-r", 499, "-o", path))
        (below / "cgroup.procs").write_text(str(moved.pid))
        joined = begin(*inside(below, PYTHON, *known))
        time.sleep(TOGETHER_S)  # since the last is there, which on a busy machine takes some seconds
        done = recorder.end()
        assert_told(done, 0, f"cgroup /{directory.name}")
    folded = collapsed(path)
    for target in (there, deep, moved, joined):
        assert folded.of_process(target.pid).functions() >= {"main", "turn"}, target
    assert not folded.of_process(outside.pid).lines
    assert folded.of_process(joined.pid).total_us() > 1e6 and folded.of_process(moved.pid).total_us() > 1e6


def test_a_recording_ends_with_its_cgroup(tmp_path: Path) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(cgroup(hierarchies()[0] / f"bpfprof-test-{tmp_path.name}"))
        with running(*inside(directory, PYTHON, program("part_time.py"))) as target:
            recorder = stack.enter_context(recording("--cgroup", str(directory), "-o", tmp_path / "x.bpfprof"))
        directory.rmdir()
        assert_told(recorder.end(None), 0)
    assert collapsed(tmp_path / "x.bpfprof").of_process(target.pid).lines


@pytest.mark.gate
def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with cgroup(hierarchies()[0] / "bpfprof-test-here"):
        done = bpfprof("record", "--cgroup", "bpfprof-test-her", cwd=tmp_path, check=None)
        assert_told(done, 4, "there is no cgroup bpfprof-test-her", "/bpfprof-test-here")
    done = bpfprof("record", "--container", "0123", cwd=tmp_path, check=None)
    assert_told(done, 4, "there is no container 0123")
    done = bpfprof("record", "--cgroup", "/", "-a", cwd=tmp_path, check=None)
    assert_told(done, 2, "--all already includes")
    assert not any(tmp_path.iterdir())


@pytest.mark.gate
def test_it_never_begins_a_program(tmp_path: Path) -> None:
    """A cgroup without processes is recorded until somebody comes."""
    with cgroup(hierarchies()[0] / f"bpfprof-test-{tmp_path.name}") as directory:
        done = bpfprof("record", "--cgroup", directory.name, "-d", 0.5, "-o", tmp_path / "x.bpfprof", check=None)
    assert_told(done, 4, "before anything was seen")
    assert subprocess.run(["ls", directory], capture_output=True, check=False).returncode


# --- frozen


def freezers() -> list[Path]:
    """Where cgroups are made that can be frozen: v2, and the freezer of v1, as far as there are."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    v1 = [Path(mount) for _, mount, kind, options, *_ in mounts if kind == "cgroup" and "freezer" in options.split(",")]
    return [Path(mount) for _, mount, kind, *_ in mounts if kind == "cgroup2"][:1] + v1[:1]


@contextmanager
def frozen(directory: Path, of_all: bool = True) -> Iterator[None]:
    """Those in a cgroup are stopped meanwhile: all, or as many as can be."""
    unified = directory / "cgroup.freeze"
    switch, on, off = (unified, "1", "0") if unified.exists() else (directory / "freezer.state", "FROZEN", "THAWED")
    state, told = (directory / "cgroup.events", "frozen 1") if unified.exists() else (switch, "FROZEN")
    if not switch.exists():
        pytest.skip("groups of this hierarchy cannot be frozen (v2 before Linux 5.2)")
    switch.write_text(on)
    try:
        until = time.monotonic() + 30
        while of_all and told not in state.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        yield
    finally:
        switch.write_text(off)


@pytest.mark.gate
@pytest.mark.parametrize("top", freezers(), ids=str)
@pytest.mark.parametrize("where", ["itself", "above"])
def test_a_frozen_group_is_stopped(top: Path, where: str, tmp_path: Path) -> None:
    """Its threads are where they were, and the kernel calls them asleep."""
    path = tmp_path / "x.bpfprof"
    with ExitStack() as stack:
        above = stack.enter_context(cgroup(top / f"bpfprof-test-{tmp_path.name}"))
        directory = stack.enter_context(cgroup(above / "below"))
        target = stack.enter_context(running(*inside(directory, PYTHON, program("stuck.py"), "held")))
        wait_until_asleep(target.pid)
        stack.enter_context(frozen(above if where == "above" else directory))
        bpfprof("record", "-p", target.pid, "-d", 1.5, "-o", path)
        said = json.loads(bpfprof("dump", "-j", target.pid).stdout)["processes"][0]["threads"]
    report = json.loads(bpfprof("report", path, "--state", "T", "-f", "json").stdout)
    assert "for being continued, in held (" in report["verdict"]["sentence"]
    assert {thread["name"] for thread in report["threads"] if thread["stuck"]} == {"MainThread", "holder"}
    assert "stopped" in {thread["reason"] for thread in said}


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE")
@pytest.mark.parametrize("top", freezers(), ids=str)
def test_of_a_group_that_is_frozen_in_part_those_are_stopped_that_are(top: Path, tmp_path: Path) -> None:
    folder, path = tmp_path / "mounted", tmp_path / "x.bpfprof"
    folder.mkdir()
    with ExitStack() as stack:
        directory = stack.enter_context(cgroup(top / f"bpfprof-test-{tmp_path.name}"))
        target = stack.enter_context(running(PYTHON, program("half_frozen.py"), str(folder)))
        pid = target.first_line.split()[1]
        (directory / "cgroup.procs").write_text(pid)
        stack.enter_context(frozen(directory, of_all=False))
        wanted, reasons = {"MainThread": "stopped", "sleeps": "stopped", "reads": "disk"}, dict[str, str]()
        until = time.monotonic() + 30
        while reasons != wanted and time.monotonic() < until:
            (process,) = json.loads(bpfprof("dump", "-j", pid).stdout)["processes"]
            reasons = {thread["name"]: thread["reason"] for thread in process["threads"]}
        bpfprof("record", "-p", pid, "-d", 1.5, "-o", path)
    assert reasons == wanted
    report = json.loads(bpfprof("report", path, "--state", "T", "-f", "json").stdout)
    assert {thread["name"] for thread in report["threads"] if thread["stuck"]} == {"MainThread", "sleeps"}


# --- limits

SPINS = "import sys\nprint('ready', flush=True)\nwhile True: sum(range(1000))"


def cpu_hierarchy() -> Path | None:
    """Where cgroups with a CPU quota are made."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(mount)
        if kind == "cgroup2" and "cpu" in (Path(mount) / "cgroup.subtree_control").read_text().split():
            return Path(mount)
    return None


def set_quota(directory: Path, quota_us: int, period_us: int) -> None:
    if (directory / "cpu.max").exists():
        (directory / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        (directory / "cpu.cfs_period_us").write_text(str(period_us))
        (directory / "cpu.cfs_quota_us").write_text(str(quota_us))


@pytest.mark.gate
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("one",), id="one process", marks=pytest.mark.second_tier),
        pytest.param(("one", "two"), id="two in one group"),
    ],
)
def test_a_cpu_limit_above_is_named(names: tuple[str, ...], tmp_path: Path) -> None:
    """2 ms of each 50, which they get on a busy machine, too: the limit is of the group above theirs."""
    top, path = cpu_hierarchy(), tmp_path / "x.bpfprof"
    if top is None:
        pytest.skip("no hierarchy of control groups limits CPU time here")
    with ExitStack() as stack:
        directory = stack.enter_context(cgroup(top / f"bpfprof-test-{tmp_path.name}"))
        below = stack.enter_context(cgroup(directory / "below"))
        # Set when they are ready, for to start takes CPU time; and lifted before they are killed, which does, too.
        targets = [stack.enter_context(running(*inside(below, PYTHON, "-c", SPINS))) for _ in names]
        set_quota(directory, 2000, 50_000)
        pids = [word for target in targets for word in ("--pid", target.pid)]
        with recording(*pids, "-o", path) as recorder:
            let_run(targets[0].pid, 0.06)
            recorder.end()
        live = bpfprof("top", *pids, "--batch", "-n", 2, "-d", 2).stdout
        set_quota(directory, 50_000, 50_000)
    assert "Stopped by a CPU limit: " in live
    found = json.loads(bpfprof("report", path, "-f", "json").stdout)["verdict"]
    assert found["bound"] == "ready"
    assert found["sentence"].startswith("Stopped by a CPU limit: ready 9")
    assert f"control group /{directory.name} may use 0.04 CPUs, and had used that up in " in found["sentence"]
    assert directory.name in found["advice"]
    assert "stopped by a CPU limit" in bpfprof("report", path).stdout
