"""Programs that know what they may be seen to do, recorded -> how much of their time has a whole and true stack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bpfprof.stacks.greenlets import is_greenlet_library
from tests import packages
from tests.integration.recorded import ALL_INTERPRETERS, PYTHON_FRAME, collapsed, program
from tests.oracles.corner_truths import BARE, BELOW, GREENLETS, INTERPRETERS, ONE_INTERPRETER
from tests.oracles.programs import Command, by_interpreter, chosen, record, show, started

VERSIONS = ("3.9", "3.11", "3.12", "3.13", "debian-3.11", "sid-3.14", "sid-3.15")
KINDS = (*(f"greenlets:{kind}" for kind in GREENLETS), *(f"interpreters:{kind}" for kind in INTERPRETERS))
RECORD_S = 2
RATE_HZ = 499
# What the programs are, and the threads that tests need to end them, which no kind is about.
_OWN_FILES = ("corner_greenlets.py", "corner_interpreters.py", "<string>")
_ENDS = "ends_with_input"
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^()]+)\)")
# A stack was not chosen to be taken: nothing that could be wrong.
_NOT_TAKEN = ("[not sampled]", "[short waits]")
_NOT_TAKEN_ROOT = "[truncated: stack not taken]"
_GREENLET = "G"


@dataclass
class Score:
    """Microseconds; the keys of `wrong` and `marked` say what was seen."""

    cpu_us: int = 0
    wait_us: int = 0
    true_cpu_us: int = 0
    true_wait_us: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)

    def add(self, frames: Sequence[str], us: int, is_true: bool, mark: str) -> None:
        is_wait = frames[-1].startswith("[off-cpu")
        self.wait_us += us * is_wait
        self.cpu_us += us * (not is_wait)
        self.true_wait_us += us * (is_wait and is_true)
        self.true_cpu_us += us * (is_true and not is_wait)
        if mark:
            self.marked[";".join(frames)] += us
        elif not is_true:
            self.wrong[";".join(frames)] += us

    def __format__(self, spec: str) -> str:
        shares = [f"{100 * part / whole:.1f}" if whole else "-" for part, whole in self._parts()]
        wrong = 100 * sum(self.wrong.values()) / max(self.cpu_us + self.wait_us, 1)
        return format("/".join(shares) + (f" *{wrong:.2f}" if wrong else ""), spec)

    def _parts(self) -> Iterator[tuple[int, int]]:
        yield self.true_cpu_us, self.cpu_us
        yield self.true_wait_us, self.wait_us


def run(words: Sequence[str], folder: Path, versions: Sequence[str] = VERSIONS) -> None:
    kinds = chosen(KINDS, words)
    found = by_interpreter(
        versions,
        lambda version: commands_of(version, kinds),
        lambda commands: recorded(folder / "x.bpfprof", commands, RECORD_S),
    )
    show("whole and true of CPU / of waits in %, *: % without a mark and wrong", found, kinds)
    for version, scores in found.items():
        for kind, score in scores.items():
            whole_us = score.cpu_us + score.wait_us
            for text, us in score.wrong.most_common(2):
                print(f"wrong: {kind} {version} {us} us {text[:200]} ... {text[-600:]}")
            for text, us in score.marked.most_common(1):
                print(f"marked: {kind} {version} {us} us of {whole_us} {text[:200]} ... {text[-600:]}")


def commands_of(version: str, kinds: Sequence[str]) -> dict[str, Command]:
    """By kind; those that this interpreter has not are left out."""
    number = version.rpartition("-")[2]
    is_old = tuple(map(int, number.split("."))) < (3, 11)
    commands: dict[str, Command] = {}
    for kind in kinds:
        group, _, name = kind.partition(":")
        if group == "interpreters" and is_old and name not in ONE_INTERPRETER:
            continue
        path = {"PYTHONPATH": packages.folder(number, GREENLETS[name][0])} if group == "greenlets" else {}
        path["EVENTLET_NO_GREENDNS"] = "yes"  # what it would import is too new for CPython 3.9
        commands[kind] = ([ALL_INTERPRETERS[version], program(f"corner_{group}.py"), name], path)
    return commands


def recorded(path: Path, commands: Mapping[str, Command], seconds: float) -> dict[str, Score]:
    """They run and are recorded at the same time; with and without the functions of CPython itself."""
    with started(commands) as targets:
        pids = {kind: target.pid for kind, target in targets.items()}
        record(path, pids.values(), seconds, "-r", RATE_HZ)
    scores = {kind: Score() for kind in commands}
    for options in ((), ("--show-interpreter",)):
        folded = collapsed(path, *options)
        for kind, pid in pids.items():
            for _, owner, frames, us in folded.of_process(pid).lines:
                if not owner.startswith("task "):
                    judge(scores[kind], kind, frames, us)
    return scores


def judge(score: Score, kind: str, frames: Sequence[str], us: int) -> None:
    """Adds one stack, root first."""
    if any(mark in frames for mark in _NOT_TAKEN) or frames[0] == _NOT_TAKEN_ROOT or frames[-1] == "[runqueue]":
        return
    path = _path(frames)
    if _ENDS in path:
        return
    marks = [it for it in frames if it.startswith("[") and not it.startswith("[off-cpu")]
    group, _, name = kind.partition(":")
    allowed = (BARE, *GREENLETS[name][1]) if group == "greenlets" else INTERPRETERS[name]
    is_true = (not marks and any(re.fullmatch(it, ">".join(path)) for it in allowed)) or (not path and not marks)
    score.add(frames, us, bool(is_true and _c_functions_are_right(frames)), marks[0] if marks else "")


def _path(frames: Sequence[str]) -> list[str]:
    """The program's own functions, and where a greenlet begins."""
    path: list[str] = []
    for place, frame in enumerate(frames):
        found = PYTHON_FRAME.fullmatch(frame)
        if found:
            if found["file"] in _OWN_FILES:
                path.append(found["name"].rpartition(".")[2])
        elif place == 0 and is_in_greenlet_library(frame) and re.search(r"bootstrap|initialstub|\+0x", frame):
            path.append(_GREENLET)
    return path


def is_in_greenlet_library(frame: str) -> bool:
    """Of a native frame's text."""
    found = _FRAME.fullmatch(frame)
    return is_greenlet_library(found["file"] if found else frame.partition("+0x")[0])


def _c_functions_are_right(frames: Sequence[str]) -> bool:
    """Each stands under the Python function that calls it."""
    python = ""
    for frame in frames:
        if found := PYTHON_FRAME.fullmatch(frame):
            python = found["name"].rpartition(".")[2]
        elif (found := _FRAME.fullmatch(frame)) and not re.fullmatch(BELOW.get(found["name"], ".*"), python):
            return False
    return True
