"""python -m tests.recordings.make [NAME...]: makes recordings anew, as root; README.md says what they are.

The programs run in namespaces of their own, with a host name, a root of control groups and folders that tell nothing
of the machine: /srv/tests has them, /opt the interpreters. What was recorded is looked through for the machine's names.
"""

from __future__ import annotations

import lzma
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from bpfprof.recording.format import MAGIC, decode
from tests.integration.recorded import ALL_INTERPRETERS, BPFPROF, ROOT, Recorder, Target, let_run, running
from tests.recordings.kept import HERE

_PREPARED = "BPFPROF_IN_NAMESPACES"
_CONTAINER = Path("/sys/fs/cgroup/cpu/docker") / ("3f" * 32)
_SYSTEMS = "/usr/bin/python3"


@dataclass(frozen=True)
class Recipe:
    """`cpu_s`: how much CPU time of its own the program gets while it is recorded."""

    program: str  # and its arguments; several have `&` between them
    cpu_s: float = 0.8
    seconds: float = 1.0  # for those that hardly compute: how long
    options: str = ""
    python: str = "3.12"  # of tests/integration/recorded.py; venv: with numpy; several programs take them in turn
    limited: bool = False  # to half a CPU, in a control group that is named as a container's
    commit: str = ""  # of the bpfprof that records; empty: this one


RECIPES = {
    "training": Recipe("training_loop.py", python="venv"),
    "steps": Recipe("marked.py --told /dev/null"),
    "service": Recipe("lock_service.py", cpu_s=0.2),
    "tasks": Recipe("blocked_loop.py", cpu_s=0.6, options="--async-rate 50", python="3.13"),
    "threads": Recipe("token_ring.py --threads 64 --rate 2000", options="-r 49"),
    "deadlock": Recipe("lock_orders.py deadlock", cpu_s=0),
    "lock_orders": Recipe("lock_orders.py cycle", cpu_s=0, python="debian-3.11"),
    "hung": Recipe("stuck.py no_answer", cpu_s=0, seconds=2.0),
    "gil": Recipe("gil_fight.py 3 --reader --sleeper --phases"),
    "pools": Recipe("workers.py fork", cpu_s=0.4),
    "spawned": Recipe("fork_exec.py", cpu_s=0, python="3.8"),
    "asleep": Recipe("sleepers.py --count 40", cpu_s=0, python="3.9"),
    "container": Recipe("bounds.py python", cpu_s=0.5, limited=True),
    "names": Recipe("hostile_names.py", cpu_s=0.3),
    "counted": Recipe("counted.py", cpu_s=0.3, options="-e page-faults -c 1"),
    "kernel": Recipe("fork_exec.py", cpu_s=0, options="--kernel --native-lines"),
    "many": Recipe(
        "fork_exec.py & c_calls.py & sleepers.py & oracle.py & hostile_names.py",
        cpu_s=0,
        options="--no-subprocesses",
        python="debian-3.11 3.12 3.13",
    ),
    "rest": Recipe(
        " & ".join(
            f"bottlenecks.py idle_{kind}" for kind in ("server", "asyncio", "cron", "worker", "prefork", "pool")
        ),
        cpu_s=0,
        seconds=10,
        python="debian-3.11 3.12 3.13",
    ),
    "even": Recipe("one_slower.py 25 0"),
    "slower": Recipe("one_slower.py 25 40"),
    "at_first": Recipe("gil_fight.py 2 --sleeper", commit="7229a46"),
    "before_limits": Recipe("fork_exec.py", cpu_s=0, commit="2e050d8"),
    "version_1": Recipe("gil_fight.py 2 --sleeper", cpu_s=0.1, commit="735b68d"),
}


def main() -> None:
    if not os.environ.get(_PREPARED):
        os.execvp("unshare", ["unshare", "--mount", "--uts", "--cgroup", *_command()])
    _prepare()
    for name in sys.argv[1:] or RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.bpfprof"
            _record(RECIPES[name], path)
            _tells_nothing(path)
            (HERE / f"{name}.bpfprof.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
        print(name, (HERE / f"{name}.bpfprof.xz").stat().st_size)


def _command() -> list[str]:
    return ["env", f"{_PREPARED}={platform.node()}", sys.executable, "-m", "tests.recordings.make", *sys.argv[1:]]


def _prepare() -> None:
    for folder in ("/srv", "/opt"):
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    _bind(ROOT / "tests", Path("/srv/tests"))
    _bind(ROOT / "bpfprof", Path("/srv/bpfprof"))
    _bind(Path(sys.prefix), Path("/opt/venv"))
    for name in {name for recipe in RECIPES.values() for name in recipe.python.split()} & ALL_INTERPRETERS.keys():
        _bind(Path(ALL_INTERPRETERS[name]).resolve().parents[1], Path("/opt") / name)
    subprocess.run(["hostname", "host"], check=True)


def _bind(source: Path, target: Path) -> None:
    target.mkdir()
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)


def _record(recipe: Recipe, path: Path) -> None:
    with ExitStack() as stack:
        programs = zip(recipe.program.split(" & "), cycle(recipe.python.split()))
        pids = [stack.enter_context(_program(*each)).pid for each in programs]
        command = stack.enter_context(_recorder(recipe.commit))
        if recipe.limited:
            stack.enter_context(_limited(pids[0]))
        asked = ["record", *(f"-p{pid}" for pid in pids), "-o", str(path), *recipe.options.split()]
        limit = [] if recipe.cpu_s else ["-d", str(recipe.seconds)]
        recorder = Recorder(subprocess.Popen([*command, *asked, *limit], bufsize=0, stdout=-1, stderr=-1))
        recorder.wait_until_it_records()
        let_run(pids[0], recipe.cpu_s)
        done = recorder.end(None if limit else signal.SIGINT)
        assert done.returncode == 0, done.stderr


def _program(words: str, interpreter: str) -> AbstractContextManager[Target]:
    python = _SYSTEMS if interpreter.startswith("debian") else f"/opt/{interpreter}/bin/python"
    name, *arguments = words.split()
    return running(
        python, f"/srv/tests/programs/{name}", *arguments, env={"LD_LIBRARY_PATH": f"/opt/{interpreter}/lib"}
    )


@contextmanager
def _recorder(commit: str) -> Iterator[list[str]]:
    if not commit:
        yield BPFPROF
        return
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], stdout=-1, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield ["env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", "bpfprof"]


@contextmanager
def _limited(pid: int) -> Iterator[None]:
    _CONTAINER.mkdir(parents=True)
    try:
        (_CONTAINER / "cpu.cfs_quota_us").write_text("50000")
        (_CONTAINER / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for moved in (_CONTAINER / "cgroup.procs").read_text().split():
            (_CONTAINER.parents[1] / "cgroup.procs").write_text(moved)
        _CONTAINER.rmdir()
        _CONTAINER.parent.rmdir()


def _tells_nothing(path: Path) -> None:
    """Names of this machine would be in the texts of chunks."""
    with open(path, "rb") as file:
        file.seek(len(MAGIC))
        while chunk := decode(file):
            text = str(chunk.fields)
            for own in ("/root", "/home", str(ROOT), f"'{os.environ[_PREPARED]}'", str(Path(sys.prefix))):
                assert own not in text, f"{own} is in {text[max(0, text.index(own) - 200) :][:400]}"


if __name__ == "__main__":
    main()
