"""What a recording says of sleeping threads, frame by frame against eu-stack (elfutils) on the same threads.

The threads wake once after the recording began and then sleep for good, so what bpfprof saw is what eu-stack finds
afterwards. eu-stack stops its target; so it comes after the recording.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.model.ids import Pid
from bpfprof.model.samples import NO_FILE
from bpfprof.model.statuses import LastState
from bpfprof.proc.maps import open_mapped_file, read_maps
from bpfprof.proc.memory import ProcessMemory
from bpfprof.recording.contents import Recording
from bpfprof.recording.reader import read_recording
from tests.integration.eu_stack import eu_stacks, wait_until_asleep
from tests.integration.recorded import INTERPRETERS, Target, bpfprof, needs_root, program, recording, running

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        shutil.which("eu-stack") is None or shutil.which("cc") is None, reason="needs eu-stack (elfutils) and cc"
    ),
]
BLOCKED = int(LastState.BLOCKED)


def send_to_sleep(target: Target) -> None:
    """The line that the program waits for, until every thread is in its place."""
    target.tell("go")
    assert target.answer() == "asleep\n"
    wait_until_asleep(target.pid)


def biases(pid: int) -> dict[str, int]:
    """Path of each mapped file -> how far its addresses in the process are from those in the file."""
    found = {}
    for mapping in read_maps(Pid(pid)):
        if not mapping.is_executable:
            continue
        try:
            if mapping.path == "[vdso]":
                memory = ProcessMemory(Pid(pid))
                image = ElfImage.from_bytes(memory.read(mapping.start, mapping.end - mapping.start), "vdso")
            elif mapping.is_file:
                image = ElfImage(open_mapped_file(Pid(pid), mapping))
            else:
                continue
            bias = image.bias_of(mapping.start, mapping.offset, mapping.permissions)
        except ElfError:
            continue
        if bias is not None:
            found[mapping.path] = bias
    return found


def recorded_stacks(recording: Recording, pid: int) -> dict[int, list[int]]:
    """For each thread that sleeps at the end, the runtime addresses of its last stack, leaf first."""
    native_ends = np.cumsum(recording.stacks["native_count"] + recording.stacks["kernel_count"].astype(np.int64))
    bias_of, stacks = biases(pid), {}
    last = {int(row["thread"]): row for row in recording.totals}
    for thread, row in last.items():
        stack = int(row["stack"])
        if row["state"] != BLOCKED or not stack:
            continue
        item = recording.stacks[stack - 1]
        end = int(native_ends[stack - 1]) - int(item["kernel_count"])
        numbers = recording.native_frames["native"][end - int(item["native_count"]) : end]
        addresses = []
        for native in recording.natives[numbers - 1]:
            number = int(native["file"])
            bias = 0 if number == NO_FILE else bias_of.get(recording.files[number].path, 0)
            addresses.append(int(native["address"]) + bias)
        stacks[recording.threads[thread].tid] = addresses
    return stacks


# eu-stack does not look into the mount namespace of sid's.
PYTHONS = {name: path for name, path in INTERPRETERS.items() if not name.startswith("sid-")}
COMMANDS = {name: (python, program("sleep_places.py")) for name, python in PYTHONS.items()}
# How C is compiled decides what unwind tables look like.
C_OPTIONS = {
    "C": ("-O2", "-fomit-frame-pointer"),
    "C static": ("-O2", "-static"),
    "C -O0": ("-O0", "-mstackrealign"),
    "C frame pointers": ("-O2", "-fno-omit-frame-pointer"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agreement")


def command_of(name: str, folder: Path) -> tuple[str, ...]:
    """One of COMMANDS, or the C program built as C_OPTIONS says."""
    if name in COMMANDS:
        return COMMANDS[name]
    built = str(folder / "sleep_places")
    subprocess.run(["cc", *C_OPTIONS[name], "-pthread", "-o", built, program("sleep_places.c")], check=True)
    return (built,)


@pytest.mark.parametrize("name", [*COMMANDS, *C_OPTIONS])
def test_every_frame_of_every_thread(name: str, folder: Path) -> None:
    command, path = command_of(name, folder), folder / "x.bpfprof"
    with running(*command) as target:
        with recording("-p", target.pid, "-o", path) as recorder:
            send_to_sleep(target)
            done = recorder.end()
            assert done.returncode == 0, done.stderr
        with open(path, "rb") as file:
            read_back = read_recording(file)
        ours, theirs = recorded_stacks(read_back, target.pid), eu_stacks(target.pid)
    assert len(theirs) >= 37
    missing = set(theirs) - set(ours)
    wrong = [tid for tid, frames in ours.items() if [hex(it) for it in frames] != [hex(it) for it in theirs[tid]]]
    frames = sum(len(frames) for frames in ours.values())
    print(
        f"{name}: {len(ours) - len(wrong)} of {len(theirs)} threads the same, {frames} frames, {len(missing)} missing"
    )
    for tid in wrong:
        print(tid, [hex(it) for it in ours[tid]], [hex(it) for it in theirs[tid]], sep="\n")
    assert not missing and not wrong


@pytest.mark.gate
@pytest.mark.parametrize("name", [*COMMANDS, "C", "C frame pointers"])
def test_threads_that_slept_before_the_recording(name: str, folder: Path) -> None:
    """Their stacks are taken from user space, where rbp is not known: one that needs it first ends where it can't be
    told from rsp."""
    command, path = command_of(name, folder), folder / "before.bpfprof"
    with running(*command) as target:
        send_to_sleep(target)
        # Not by a signal, after which what is left to look at has half a second, too little on a busy machine.
        bpfprof("record", "-p", target.pid, "-d", 2, "-o", path)
        with open(path, "rb") as file:
            read_back = read_recording(file)
        ours, theirs = recorded_stacks(read_back, target.pid), eu_stacks(target.pid)
    assert set(ours) == set(theirs)
    wrong = [tid for tid, frames in ours.items() if tuple(frames) != theirs[tid][: len(frames)]]
    whole = [tid for tid, frames in ours.items() if tuple(frames) == theirs[tid]]
    print(f"{name}: {len(whole)} of {len(theirs)} threads the same, {len(wrong)} others, the rest cut")
    assert not wrong and len(whole) >= (0.3 if name == "C" else 0.9) * len(theirs)
