"""An hour of `record -a` beside churn, hostile programs and targets that are killed, as root:
soak.py [SECONDS] [FOLDER].

Meanwhile: churn.py (20 threads and 5 processes each 100 ms), a training loop and a ring of threads that switches 500
times a second, each killed by SIGKILL now and then and started again; and the programs of tests/hostile in turn, 20 s
each, which are killed, too. Prints every minute what bpfprof is, then the figures: memory of the last sixth against
that after the first third, CPU time for each event in six parts, and what `report` says at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from figures import PROGRAMS, python, show

from bpfprof.recording.reader import read_recording

BPFPROF = str(Path(sys.executable).with_name("bpfprof"))
PARTS, HOSTILE_S, KILL_S, LOOK_S = 6, 20.0, 15.0, 5.0
HONEST = (
    ("churn.py", "--seconds", "100000"),
    ("training_loop.py",),
    ("token_ring.py", "--threads", "4", "--rate", "500"),
)


def start(*command: str) -> subprocess.Popen[bytes]:
    """A program with an input that stays open; churn.py begins when it is told to. Others on the machine go first."""
    process = subprocess.Popen(
        ["nice", "-n", "19", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already
        process.stdin.write(b"go\n")
        process.stdin.flush()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def attacks(folder: Path) -> Iterator[list[str]]:
    """The command lines of the hostile programs, again and again."""
    built = folder / "hostile_addresses"
    subprocess.run(["cc", "-O1", "-pthread", "-o", built, PROGRAMS / "hostile_addresses.c"], check=True)
    named = [
        [python(), str(PROGRAMS / "hostile.py"), name, str(folder)]
        for name in ("names", "tables", "notes", "mappings", "exec")
    ]
    return itertools.cycle([*named, [str(built), "2"]])


def looks(process: subprocess.Popen[bytes], seconds: float, folder: Path) -> list[tuple[float, float, int]]:
    """(monotonic seconds, CPU seconds, KiB of memory) of bpfprof, while programs live and die around it."""
    draw, hostile, found = random.Random(1), attacks(folder), []
    honest = [start(python(), str(PROGRAMS / name), *rest) for name, *rest in HONEST]
    attack = start(*next(hostile))
    begin = time.monotonic()
    next_attack, next_kill, next_line = begin + HOSTILE_S, begin + KILL_S, begin
    try:
        while (now := time.monotonic()) < begin + seconds and process.poll() is None:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found.append((now, (int(fields[11]) + int(fields[12])) / 100, 4 * int(fields[21])))
            if now >= next_attack:
                end(attack)
                attack, next_attack = start(*next(hostile)), now + HOSTILE_S
            if now >= next_kill:
                at = draw.randrange(len(HONEST))
                end(honest[at])
                honest[at], next_kill = start(python(), str(PROGRAMS / HONEST[at][0]), *HONEST[at][1:]), now + KILL_S
            if now >= next_line:
                print(f"{now - begin:.0f} s: {found[-1][2] / 1024:.0f} MB, {found[-1][1]:.1f} s of CPU", flush=True)
                next_line += 60
            time.sleep(LOOK_S)
    finally:
        for each in (*honest, attack):
            end(each)
    return found


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "soak.bpfprof"
        process = subprocess.Popen([BPFPROF, "record", "-a", "-o", str(path)], stdout=subprocess.DEVNULL)
        found = np.array(looks(process, seconds, folder))
        process.send_signal(signal.SIGINT)
        show("soak_exit_status", process.wait(), "")
        show("soak_file", path.stat().st_size / 2**20, "MB")
        third, last = found[len(found) // 3 :], found[-len(found) // PARTS :]
        at_third = float(np.median(third[: len(found) // PARTS, 2]))
        show("soak_memory_after_a_third", at_third / 1024, "MB")
        show("soak_memory_growth_to_the_last_sixth", 100 * (float(np.median(last[:, 2])) / at_third - 1), "%")
        with open(path, "rb") as file:
            recording = read_recording(file)
        times_s = np.sort(np.concatenate([recording.samples["time_ns"], recording.waits["time_ns"]])) / 1e9
        for number, part in enumerate(np.array_split(found, PARTS)):
            events = np.searchsorted(times_s, part[-1, 0]) - np.searchsorted(times_s, part[0, 0])
            show(f"soak_cpu_per_event_{number}", 1e6 * (part[-1, 1] - part[0, 1]) / max(1, int(events)), "us")
        subprocess.run([BPFPROF, "report", str(path)], check=False)


if __name__ == "__main__":
    main()
