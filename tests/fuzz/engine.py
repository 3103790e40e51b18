"""What all fuzzers share: inputs that gave something new are damaged further, and each is bounded in what it may take.

A fuzzer reads bytes and says in short what it made of them: an answer that was not seen before makes its input a seed.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import damage

CPU_S = 2.0  # of one input. CPU time, so that a busy machine does not matter
MEMORY_BYTES = 300 << 20  # above what there is before the first
_MOST_SEEDS = 2000


class Fuzzer(ABC):
    """Something that reads bytes."""

    name = ""

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Sound ones."""

    @abstractmethod
    def read(self, data: bytes, rng: random.Random) -> object:
        """Any exception is a finding, unless it is the module's own word for a damaged input."""

    def mutant(self, data: bytes, other: bytes, rng: random.Random) -> bytes:
        """A damaged copy; `other` is another seed."""
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 3, 8, 20))):
            if changed:
                damage(rng, changed)
        if other and rng.random() < 0.1:
            at = rng.randrange(len(changed) + 1)
            begin = rng.randrange(len(other))
            changed[at : at + rng.randrange(64)] = other[begin : begin + rng.randrange(1, 65)]
        return bytes(changed)


@dataclass
class Found:
    """The first input that broke a bound, and how; and what there was in all."""

    count: int = 0
    seeds: int = 0
    cpu_s: float = 0  # the most of one
    memory_bytes: int = 0  # the most of all
    problem: str = ""
    data: bytes = b""


class TooLong(BaseException):
    """One input took more CPU time than it may."""


def run(fuzzer: Fuzzer, seed: int, seconds: float, count: int = sys.maxsize) -> Found:
    """So many inputs at most, for so many seconds of CPU time."""
    rng, found = random.Random(seed), Found()
    seeds, answers = fuzzer.seeds(), set[object]()
    for data in seeds:
        answers.add(fuzzer.read(data, rng))
    start_bytes, ends_s = _peak_bytes(), time.process_time() + seconds
    limit = _memory_in_use() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGPROF, _too_long)
    while found.count < count and time.process_time() < ends_s and not found.problem:
        data = fuzzer.mutant(rng.choice(seeds), rng.choice(seeds), rng)
        answer = _read(fuzzer, data, rng, found)
        found.count += 1
        if answer not in answers and len(seeds) < _MOST_SEEDS:
            answers.add(answer)
            seeds.append(data)
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    found.seeds, found.memory_bytes = len(seeds), _peak_bytes() - start_bytes
    return found


def _read(fuzzer: Fuzzer, data: bytes, rng: random.Random, found: Found) -> object:
    begin_s, answer = time.process_time(), None
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        answer = fuzzer.read(data, rng)
    except (Exception, TooLong):
        import traceback

        signal.setitimer(signal.ITIMER_PROF, 0)
        found.problem, found.data = traceback.format_exc(), data
    found.cpu_s = max(found.cpu_s, time.process_time() - begin_s)
    return answer


def _too_long(*_: object) -> None:
    raise TooLong(f"more than {CPU_S} s of CPU time")


def _memory_in_use() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10
