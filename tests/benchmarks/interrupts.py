"""Signals at random moments of every command that records: what is left, and what is said. Run as root.

The first argument is how many runs get SIGINT (of ten, three get SIGTERM or SIGHUP instead; of three, one gets a second
signal), the second how many are killed; the third, for the same moments again, a seed. Each run is stopped at a moment
from its start to a little after its end. Whatever the moment, no traceback is shown, a recording opens, with what was
recorded, or is not there, and no process, temporary file or pinned BPF object is left. Exits with 1 if it is not so.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
MARK = "BPFPROF_INTERRUPTED_RUN"  # in the environment of all that a run starts
LONGEST_S = 60.0  # of a run that is to end: this machine may be busy
ENDED_BY_ITSELF = (0, 4, 5)  # 4: nothing was seen yet; 5: what there is, is not whole
AT_ONCE = 2
TARGET = """import threading, time
def burn(): sum(range(2000)); time.sleep(0.002)
def work():
    while True: burn()
for _ in range(4): threading.Thread(target=work, daemon=True).start()
print("ready", flush=True); work()"""
SHORT = "import time; end = time.monotonic() + 0.4\nwhile time.monotonic() < end: time.sleep(0.001)"
# Compiles anew: its cache is empty, and a file system of its own.
EMPTY_CACHE = 'mkdir -p /var/cache/bpfprof && mount -t tmpfs none /var/cache/bpfprof && exec "$@"'


@dataclass(frozen=True)
class Case:
    """A command line; `output` is the file it writes, if any, `before` what runs bpfprof."""

    name: str
    arguments: tuple[str, ...]
    output: str = ""
    before: tuple[str, ...] = ()


def cases(pid: int, recorded: Path) -> list[Case]:
    """The command lines that are interrupted; those with `pid` record it, that with `recorded` reports."""
    target, short, recording = ("--pid", str(pid)), ("-d", "0.4"), ("-o", "x.bpfprof")
    fresh = ("unshare", "-m", "sh", "-c", EMPTY_CACHE, "sh")
    return [
        Case("record --pid", ("record", *target, *short, *recording), "x.bpfprof"),
        Case("record -- COMMAND", ("record", *recording, "--", sys.executable, "-c", SHORT), "x.bpfprof"),
        Case("record -a", ("record", "-a", *short, *recording), "x.bpfprof"),
        Case("record -o x.svg", ("record", *target, *short, "-o", "x.svg"), "x.svg"),
        Case("record, compiling", ("record", *target, *short, *recording), "x.bpfprof", fresh),
        Case("offcpu", ("offcpu", *target, *short, *recording), "x.bpfprof"),
        Case("top --batch", ("top", *target, "--batch", "-n", "2", "-d", "0.2")),
        Case("dump", ("dump", str(pid))),
        Case("report -o x.svg", ("report", str(recorded), "-o", "x.svg"), "x.svg"),
    ]


@dataclass
class Tally:
    """What came of the runs of one case."""

    runs: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One run: signals with their moments, in seconds from its start and then from the one before.

    from_output: the first from when there is something in its output. How long that takes differs with what else runs.
    """

    case: Case
    moments: tuple[tuple[float, signal.Signals], ...]
    from_output: bool

    def judge(self) -> tuple[str, list[str]]:
        """(how it ended, what is wrong with that)"""
        with tempfile.TemporaryDirectory(prefix="bpfprof-interrupted-") as name:
            folder = Path(name)
            for part in ("work", "temporary"):
                (folder / part).mkdir()
            said, status = self.end(folder)
            faults = [] if self._is_due(status) else [f"exit status {status}"]
            if "Traceback" in said or "internal error" in said or "Exception ignored" in said:
                faults.append("traceback")
            outcome, wrong = self._look_at_output(folder / "work") if self.case.output else ("", "")
            faults += [wrong] if wrong else []
            # A recording whose report a second signal has ended is kept, and said to be.
            left_over = [left for left in self._left_over(folder) if f"the recording so far is in {left}" not in said]
            faults += [f"left over: {left}" for left in left_over]
        if "traceback" in faults and "/bpfprof/" not in said:  # no line of it: it had not begun
            faults.remove("traceback")
            if "Fatal Python error: init" in said and status == 1:  # what it ends with then
                faults = [it for it in faults if it != "exit status 1"]
            outcome = "traceback of Python's own start"
        when = ", ".join(f"{number.name} after {moment:.4f} s" for moment, number in self.moments)
        ending = outcome or ("ended by the signal" if status < 0 else "ended in order")
        return ending, [f"{fault} ({when}): {said[-1500:]}" for fault in faults]

    def end(self, folder: Path) -> tuple[str, int]:
        """(what it said, its exit status)"""
        environment = {**os.environ, MARK: folder.name, "TMPDIR": str(folder / "temporary")}
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*self.case.before, BPFPROF, *self.case.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd=folder / "work",
                env=environment,
            )
            output = folder / "work" / self.case.output
            while self.from_output and process.poll() is None and not (output.is_file() and output.stat().st_size):
                time.sleep(0.001)
            for moment, number in self.moments:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                process.send_signal(number)
            try:
                status = process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait() - 1000
            said.seek(0)
            return said.read().decode(errors="replace"), status

    def _look_at_output(self, folder: Path) -> tuple[str, str]:
        """(what there is, what is wrong with it)"""
        path = folder / self.case.output
        if not path.exists():
            return "no file", ""
        is_killed = signal.SIGKILL in (number for _, number in self.moments)
        if not path.stat().st_size:
            return "empty file", "" if is_killed else "an empty file"
        if path.suffix == ".svg":
            try:
                ElementTree.parse(path)
            except ElementTree.ParseError:
                return "part of a picture", "" if is_killed else "a part of a picture"
            return "whole file", ""
        done = subprocess.run([BPFPROF, "report", str(path)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return "whole file", ""
        if done.returncode != 5 or "Traceback" in done.stderr or "internal error" in done.stderr:
            return "", f"report ends with {done.returncode}: {done.stderr}"
        return ("file without its end" if "quality:" in done.stdout else "file of a start only"), ""

    def _is_due(self, status: int) -> bool:
        numbers = {number for _, number in self.moments}
        by_signal = {-number for number in numbers} | {128 + number for number in numbers}
        return status in ENDED_BY_ITSELF or status in by_signal

    def _left_over(self, folder: Path) -> Iterator[str]:
        deadline = time.monotonic() + 10  # a launched command and a compiler may go on for a moment after a kill
        while left := list(_processes(f"{MARK}={folder.name}".encode())):
            if time.monotonic() > deadline:
                yield from left
                break
            time.sleep(0.02)
        yield from (path.name for path in (folder / "temporary").iterdir())
        yield from (path.name for path in (folder / "work").iterdir() if path.name != self.case.output)
        if os.path.ismount("/sys/fs/bpf"):
            yield from (path.name for path in Path("/sys/fs/bpf").iterdir() if "bpfprof" in path.name)


def _processes(mark: bytes) -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                yield f"{path.parent.name} {(path.parent / 'comm').read_text().strip()}"


def length_s(case: Case) -> float:
    """Of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory(prefix="bpfprof-interrupted-") as name:
        folder = Path(name)
        for part in ("work", "temporary"):
            (folder / part).mkdir()
        begin = time.monotonic()
        Run(case, ((LONGEST_S, signal.SIGKILL),), False).end(folder)
        return time.monotonic() - begin


def moments(length: float, is_killed: bool) -> tuple[tuple[float, signal.Signals], ...]:
    """Of one run."""
    first = random.uniform(0, 1.05 * length)
    if is_killed:
        return ((first, signal.SIGKILL),)
    numbers = random.choices((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), (70, 15, 15), k=2)
    all_of_them = ((first, numbers[0]), (random.uniform(0, 0.3), numbers[1]))
    return all_of_them[: random.choice((1, 1, 2))]


def judged(listed: list[Case], count: int, is_killed: bool, lengths: dict[str, float]) -> dict[str, Tally]:
    """Tallies by the name of the case."""
    chosen = [listed[number % len(listed)] for number in range(count)]
    runs = [
        Run(case, moments(lengths[case.name], is_killed), case.output.endswith(".bpfprof") and random.random() < 0.5)
        for case in chosen
    ]
    tallies = {case.name: Tally() for case in listed}
    lock = threading.Lock()

    def judge(run: Run) -> None:
        ending, faults = run.judge()
        with lock:
            tally = tallies[run.case.name]
            tally.runs += 1
            tally.endings[ending] += 1
            tally.faults += faults

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(judge, runs))
    return tallies


def show(what: str, tallies: dict[str, Tally]) -> bool:
    """Prints a table; whether nothing was wrong."""
    for name, tally in tallies.items():
        endings = ", ".join(f"{count} {ending}" for ending, count in tally.endings.most_common())
        print(f"{what:9} {name:18} {tally.runs:4} runs, {len(tally.faults)} faults: {endings}")
        for fault in tally.faults:
            print(f"    {fault}")
    runs = sum(tally.runs for tally in tallies.values())
    faults = sum(len(tally.faults) for tally in tallies.values())
    print(f"{what}_faults {faults} of_{runs}", flush=True)
    return faults == 0


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    killed_count = int(sys.argv[2]) if len(sys.argv) > 2 else count // 10
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    print(f"seed {seed} of_the_moments")
    random.seed(seed)
    target = subprocess.Popen([sys.executable, "-c", TARGET], stdout=subprocess.PIPE)
    folder = tempfile.mkdtemp(prefix="bpfprof-interrupted-")
    try:
        assert target.stdout is not None
        target.stdout.readline()
        recorded = Path(folder) / "x.bpfprof"
        command = [BPFPROF, "record", "--pid", str(target.pid), "-d", "2", "-o", str(recorded)]
        subprocess.run(command, check=True, capture_output=True)
        listed = cases(target.pid, recorded)
        lengths = {case.name: length_s(case) for case in listed}
        is_right = show("interrupted", judged(listed, count, False, lengths))
        is_right &= show("killed", judged(listed, killed_count, True, lengths))
    finally:
        target.kill()
        target.wait()
        shutil.rmtree(folder)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
