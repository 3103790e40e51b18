"""One interpreter measured: how it is started in, what a recording of known programs has right of it out.

Five programs are recorded at once: deep.py asleep and burning, call_order.py, call_chain.py, and gil_fight.py.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from bpfprof.cpython.old_files import interpreters_variable
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.model.ids import Pid
from bpfprof.model.spans import ThreadState
from bpfprof.proc.maps import open_mapped_file, read_maps
from bpfprof.profile.build import build_profile
from bpfprof.profile.options import ProfileOptions
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from bpfprof.recording.tables import RecordedProcess
from bpfprof.stacks.stitch import StackSource
from tests.integration.one_file import child_of
from tests.integration.recorded import completed, json_line, program
from tests.integration.whole_stacks import make_tables, reached, rows_of
from tests.oracles.interpreters import judges
from tests.oracles.interpreters.judges import Tally
from tests.oracles.interpreters.ways import Way
from tests.oracles.programs import record, started

WINDOW_S = 3
RATE_HZ = 499
COMMANDS = {
    "deep": ("deep.py",),
    "deep --burn": ("deep.py", "--burn"),
    "call_order": ("call_order.py",),
    "call_chain": ("call_chain.py", "--levels", "20"),
    "gil_fight": ("gil_fight.py", "1", "--reader"),
}
_ET_EXEC = 2  # System V ABI, "ELF Header"
_ABI_FLAGS = {"d": "debug", "t": "free-threaded"}
_TELL = """
import platform, sys
print(platform.python_implementation(), platform.python_version(), getattr(sys, "abiflags", ""), sep=",")
"""


@dataclass
class Figures:
    """Each pair: on a CPU, off it. `gil` counts us, None: there is none. `said` is the version as it was recorded."""

    said: str
    true: str
    build: str
    functions: list[Tally] = field(default_factory=lambda: [Tally(), Tally()])
    lines: list[Tally] = field(default_factory=lambda: [Tally(), Tally()])
    whole: list[Tally] = field(default_factory=lambda: [Tally(), Tally()])
    entries: Tally = field(default_factory=Tally)
    order: Tally = field(default_factory=Tally)
    gil: Tally | None = field(default_factory=Tally)
    wrong: Counter[str] = field(default_factory=Counter)


def measure(way: Way, names: tuple[str, ...], folder: Path) -> Figures:
    """Raises AssertionError with what was said where a program does not start or is not recorded."""
    (folder / "tell.py").write_text(_TELL)
    path = folder / "x.bpfprof"
    environment = {**os.environ, **way.environment}
    told = completed([*way.command, str(folder / "tell.py")], 0, env=environment).stdout.strip().split(",")
    own = {name: [program(COMMANDS[name][0]), *COMMANDS[name][1:]] for name in names}
    with started({name: ((*way.command, *words), way.environment) for name, words in own.items()}) as targets:
        ready = {name: target.first_line for name, target in targets.items()}
        pids = {name: child_of(it.pid) if way.runs_in_child else it.pid for name, it in targets.items()}
        for pid in pids.values():
            make_tables(Pid(pid))
        build, has_symbols = _build(pids["deep"])
        record(path, pids.values(), WINDOW_S, "-r", RATE_HZ)
    with open(path, "rb") as file:
        read_back = read_recording(file)
    process = next(it for it in read_back.processes if it.pid == pids["deep"])
    true = f"{told[0]} {told[1]}"
    builds = [build, *(name for flag, name in _ABI_FLAGS.items() if flag in told[2])]
    figures = Figures(_said(process), true, ", ".join(filter(None, builds)))
    _judge(figures, read_back, ready, pids, has_symbols)
    return figures


def _said(process: RecordedProcess) -> str:
    if process.interpreter == "cpython":
        return f"CPython {process.version}" + (f", {process.build}" if process.build else "")
    return process.note or "nothing"


def _build(pid: int) -> tuple[str, bool]:
    """What kind of file holds CPython's runtime, and whether that has the names of its static functions."""
    for mapping in read_maps(Pid(pid)):
        if not (mapping.is_executable and mapping.is_file):
            continue
        try:
            with ElfImage(open_mapped_file(Pid(pid), mapping)) as image:
                if image.find_symbol("_PyRuntime") is None and interpreters_variable(image) is None:
                    continue
                has_symbols = image.section(".symtab") is not None
                kind = "shared library"
                if image.section(".interp") is not None:
                    kind = "static" if image.type == _ET_EXEC else "static in a PIE"
                return kind + ("" if has_symbols else ", stripped"), has_symbols
        except (ElfError, OSError):
            continue
    return "", False


def _judge(
    figures: Figures, read_back: Recording, ready: dict[str, str], pids: dict[str, int], has_symbols: bool
) -> None:
    source, with_interpreter = StackSource(read_back), StackSource(read_back, show_interpreter=True)
    for place, rows in enumerate((read_back.samples, read_back.waits)):
        for name, pid in pids.items():
            found = reached(read_back, pid, rows, with_interpreter)
            figures.whole[place].add(found.whole, found.count)
            figures.wrong.update({f"{name}: {reason}": count for reason, count in found.reasons.items()})
            mine = rows_of(read_back, pid, rows)
            if name.startswith("deep"):
                truth = judges.Deep(json_line(ready[name])["threads"], "burn" if "--burn" in name else "rest")
                truth.judge(source, read_back, mine, figures.functions[place], figures.lines[place])
                figures.wrong.update(truth.wrong)
            elif name == "call_order":
                kinds = {int(tid): it for tid, it in json_line(ready[name])["threads"].items()}
                judges.judge_order(source, read_back, mine, kinds, has_symbols, figures.order, figures.wrong)
                judges.judge_entries(read_back, mine, figures.entries, figures.wrong)
    if "gil_fight" in pids:
        figures.gil = _gil(read_back, pids["gil_fight"], figures.wrong)


def _gil(read_back: Recording, pid: int, wrong: Counter[str]) -> Tally | None:
    """Of the time that `reader` waited, which is for the GIL alone: as a wait for the GIL that hog_0 held, in us."""
    process = next(it for it in read_back.processes if it.pid == pid)
    profile = build_profile(read_back, ProfileOptions())
    places = {thread.thread_name: index for index, thread in enumerate(profile.threads) if thread.pid == pid}
    reader, hog = (places.get(name, -2) for name in ("reader", "hog-0"))
    off = profile.weights[(profile.weights["thread"] == reader) & (profile.weights["state"] == ThreadState.OFF_CPU)]
    waits = profile.gil_waits[profile.gil_waits["thread"] == reader]
    if process.build and not len(waits):
        return None
    tally = Tally(0, int(off["total_ns"].sum()) // 1000)
    for row in waits:
        names = {profile.frames[it].name for it in profile.stacks[row["stack"] - 1]} if row["stack"] else set()
        is_right = row["holder"] == hog and "hog_0" in names
        tally.right += int(row["ns"]) // 1000 * is_right
        if not is_right:
            wrong[f"gil: us held by thread {row['holder']} in {' '.join(sorted(names))}"] += int(row["ns"]) // 1000
    wrong["gil: us that are no wait for it"] += tally.total - int(waits["ns"].sum()) // 1000
    return tally
