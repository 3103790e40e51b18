"""Where programs that embed CPython 3.14 and 3.15 keep their thread states: libpython linked, and loaded late."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfprof.cpython.detect import Interpreter, find_interpreter
from bpfprof.cpython.thread_state import read_thread_states
from bpfprof.model.ids import Pid
from bpfprof.proc.memory import ProcessMemory
from tests import sid
from tests.integration.recorded import BPFPROF, collapsed, completed, running

pytestmark = pytest.mark.skipif(
    not sid.pythons(), reason="no CPython 3.14 and 3.15 of Debian sid: `python tests/sid.py` makes them, for root"
)
THREADS = 3
EMBEDS = r"""
#include <dlfcn.h>
static const char program[] = "import sys, threading\n"
    "def beat():\n"
    "    while not threading.Event().wait(0.01): pass\n"
    "[threading.Thread(target=beat, daemon=True).start() for _ in range(2)]\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n";
int main(int count, char **words)
{
    void *library = dlopen(count > 1 ? words[1] : 0, RTLD_NOW | RTLD_GLOBAL);
    void (*initialize)(void) = dlsym(library, "Py_Initialize");
    int (*run)(const char *) = dlsym(library, "PyRun_SimpleString");
    initialize();
    return run(program);
}
"""
# Run by sid's Python, for its compiler and libraries are where it is.
BUILD = """
import os, subprocess, sys
source, program, *words = sys.argv[1:]
libraries = [] if words else ["-Wl,--no-as-needed", "-lpython%d.%d" % sys.version_info[:2]]
subprocess.run(["cc", "-o", program, source, *libraries], check=True)
os.execv(program, [program, *words])
"""


@pytest.mark.parametrize("is_late", [False, True], ids=["linked", "loaded late"])
@pytest.mark.parametrize("version", sid.VERSIONS)
def test_a_program_that_embeds_python(version: str, is_late: bool, tmp_path: Path) -> None:
    (tmp_path / "embeds.c").write_text(EMBEDS)
    words = [f"libpython{version}.so.1.0"] if is_late else []
    command = (sid.pythons()[version], "-c", BUILD, str(tmp_path / "embeds.c"), str(tmp_path / "embeds"), *words)
    with running(*command) as target:
        found = find_interpreter(Pid(target.pid))
        assert isinstance(found, Interpreter), found
        # Loaded late, each thread has its variables somewhere else.
        assert (found.thread_slot.module > 0) == (is_late and version >= "3.15")
        with ProcessMemory(Pid(target.pid)) as memory:
            threads = read_thread_states(memory, found.layout, found.runtime_address)
            own = {found.thread_slot.read(memory, thread.pthread_id) for thread in threads}
        path = tmp_path / "embeds.bpfprof"
        completed([*BPFPROF, "record", "-p", str(target.pid), "-d", "1", "-o", str(path)], 0)
    assert own == {thread.address for thread in threads} and len(threads) == THREADS
    beats = [line[1] for line in collapsed(path).lines if any(frame.startswith("beat (") for frame in line[2])]
    assert len(set(beats)) == THREADS - 1, beats
