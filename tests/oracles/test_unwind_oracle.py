"""Stacks of real blocked threads, by our rows, frame by frame against eu-stack (elfutils).

Registers come from a small helper that stops one thread with ptrace; /proc tells ip and sp only. Only tests do that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.model.ids import Pid
from bpfprof.proc.maps import open_mapped_file, read_maps
from bpfprof.proc.tasks import list_threads
from bpfprof.unwind.interpret import MappedFile, Registers, Stop, Walk, walk
from bpfprof.unwind.rows import FileRows, RuleTable, compact
from tests.integration.eu_stack import eu_stacks, wait_until_asleep
from tests.integration.interpreters import MACHINE_PYTHONS
from tests.integration.recorded import running

needs_tools = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("eu-stack") is None or shutil.which("cc") is None,
    reason="needs root, eu-stack (elfutils) and cc",
)
pytestmark = needs_tools

REGISTERS_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
int main(int count, char **tids)
{
	for (int i = 1; i < count; i++) {
		struct user_regs_struct r;
		int tid = atoi(tids[i]), status;
		if (ptrace(PTRACE_SEIZE, tid, 0, 0) || ptrace(PTRACE_INTERRUPT, tid, 0, 0))
			return 1;
		if (waitpid(tid, &status, __WALL) != tid || ptrace(PTRACE_GETREGS, tid, 0, &r))
			return 2;
		printf("%d %llu %llu %llu %llu\n", tid, r.rip, r.rsp, r.rbp, r.r10);
		ptrace(PTRACE_DETACH, tid, 0, 0);
	}
	return 0;
}
"""

SLEEPERS_SOURCE = r"""
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>
#include <poll.h>
static sem_t never;
static __attribute__((noinline)) int down(int depth)
{
	volatile char room[64 + depth];
	room[0] = depth;
	if (depth == 0)
		return usleep(600000000);
	if (depth == 1)
		return sem_wait(&never);
	if (depth == 2)
		return poll(0, 0, -1);
	return down(depth - 3) + room[0];
}
static void *body(void *depth) { return (void *)(long)down((long)depth); }
int main(void)
{
	pthread_t thread;
	sem_init(&never, 0, 0);
	for (long i = 0; i < 60; i++)
		pthread_create(&thread, 0, body, (void *)i);
	puts("ready");
	fflush(stdout);
	return down(30);
}
"""

# Each comparison sorts again, so qsort and comparison alternate; the innermost one waits in a signal handler.
QSORT_SOURCE = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static __thread int depth;
static void handler(int number) { for (;;) pause(); }
static int compare(const void *a, const void *b)
{
	int again[3] = { 3, 1, *(const int *)a };
	if (depth-- > 0)
		qsort(again, 3, sizeof(int), compare);
	raise(SIGUSR1);
	return *(const int *)a - *(const int *)b + again[0];
}
static void *body(void *count)
{
	int numbers[4] = { 4, 2, 1, 3 };
	depth = (long)count;
	qsort(numbers, 4, sizeof(int), compare);
	return (void *)(long)numbers[0];
}
int main(void)
{
	pthread_t thread;
	signal(SIGUSR1, handler);
	for (long i = 0; i < 20; i++)
		pthread_create(&thread, 0, body, (void *)i);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
"""

PYTHON_SOURCE = """
import ctypes, functools, json, re, threading, time
def down(depth):
    if depth:
        return down(depth - 1)
    time.sleep(600)
def by_sorted(depth):
    sorted([2, 1], key=lambda item: down(depth))
def by_regular_expression(depth):
    re.sub("x", lambda match: str(down(depth)), "x")
def by_reduce(depth):
    functools.reduce(lambda a, b: by_sorted(depth), [1, 2, 3])
def by_ctypes(depth):
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    numbers = (ctypes.c_int * 3)(3, 2, 1)
    ctypes.CDLL(None).qsort(numbers, 3, 4, kind(lambda a, b: by_reduce(depth) or 0))
def by_json(depth):
    json.loads("[{}]", object_hook=lambda pairs: down(depth))
def by_lock(depth):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
kinds = (down, by_sorted, by_regular_expression, by_reduce, by_json, by_lock, by_ctypes)
for index in range(24):
    threading.Thread(target=kinds[index % len(kinds)], args=(index % 7,), daemon=True).start()
time.sleep(0.3)
print("ready", flush=True)
down(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unwind")


def build(folder: Path, name: str, source: str, *options: str) -> str:
    (folder / f"{name}.c").write_text(source)
    command = ["cc", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", *options, "-pthread"]
    subprocess.run([*command, "-o", str(folder / name), str(folder / f"{name}.c")], check=True)
    return str(folder / name)


@contextmanager
def blocked(*command: str) -> Iterator[int]:
    """A program that is ready and all of whose threads wait; its pid."""
    with running(*command) as target:
        wait_until_asleep(target.pid)
        yield target.pid


def registers_of(helper: str, pid: int) -> dict[int, Registers]:
    tids = [str(tid) for tid in list_threads(Pid(pid))]
    lines = subprocess.run([helper, *tids], capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        tid, ip, sp, bp, r10 = (int(word) for word in line.split())
        found[tid] = Registers(ip, sp, bp, {10: r10})
    return found


def mapped_files(pid: int, table: RuleTable) -> list[MappedFile]:
    loaded: dict[str, FileRows] = {}
    found = []
    for mapping in read_maps(Pid(pid)):
        if not mapping.is_executable or not mapping.is_file:
            continue
        try:
            with ElfImage(open_mapped_file(Pid(pid), mapping)) as image:
                bias = image.bias_of(mapping.start, mapping.offset, mapping.permissions)
                if mapping.path not in loaded:
                    frames = read_call_frames(image)
                    loaded[mapping.path] = table.adopt(compact(frames), frames.rules)
        except ElfError:
            continue
        if bias is not None:
            found.append(MappedFile(mapping.start, mapping.end, bias, loaded[mapping.path]))
    return found


def our_stacks(helper: str, pid: int) -> dict[int, Walk]:
    table = RuleTable()
    files = mapped_files(pid, table)
    registers = registers_of(helper, pid)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:

        def read_word(address: int) -> int | None:
            try:
                data = os.pread(memory.fileno(), 8, address)
            except (OSError, OverflowError):
                return None
            return int.from_bytes(data, "little") if len(data) == 8 else None

        return {tid: walk(item, read_word, files, table.records) for tid, item in registers.items()}


def compare(helper: str, pid: int, name: str) -> tuple[int, int]:
    """(threads, frames) that were compared; every one is the same and every walk ends at the end of its stack."""
    ours = our_stacks(helper, pid)
    wait_until_asleep(pid)  # a thread that was stopped calls anew what it waits in, once it gets a CPU
    theirs = eu_stacks(pid)
    assert set(ours) == set(theirs)
    for tid, found in ours.items():
        assert [hex(pc) for pc in found.pcs] == [hex(pc) for pc in theirs[tid]], f"thread {tid}: {found.stop.name}"
    frames = sum(len(found.pcs) for found in ours.values())
    print(f"{name}: {len(ours)} threads, {frames} frames, {Counter(found.stop.name for found in ours.values())}")
    assert all(found.stop == Stop.END_OF_STACK for found in ours.values())
    return len(ours), frames


@pytest.fixture(scope="module")
def helper(folder: Path) -> str:
    return build(folder, "registers", REGISTERS_SOURCE)


@pytest.mark.parametrize("options", [(), ("-static",), ("-mstackrealign",)], ids=["plain", "static", "realigned"])
def test_sleeping_c_threads(options: tuple[str, ...], helper: str, folder: Path) -> None:
    with blocked(build(folder, "sleepers" + "".join(options), SLEEPERS_SOURCE, *options)) as pid:
        threads, frames = compare(helper, pid, f"sleepers {' '.join(options)}")
    assert threads == 61 and frames > 400


def test_callbacks_of_qsort_below_a_signal(helper: str, folder: Path) -> None:
    with blocked(build(folder, "sorter", QSORT_SOURCE)) as pid:
        threads, frames = compare(helper, pid, "qsort")
    assert threads == 21 and frames > 21 * 12


@pytest.mark.parametrize("name", MACHINE_PYTHONS)
def test_python_threads(name: str, helper: str) -> None:
    with blocked(MACHINE_PYTHONS[name], "-c", PYTHON_SOURCE) as pid:
        threads, frames = compare(helper, pid, name)
    assert threads == 25 and frames > 25 * 8
