"""What the code of a file tells of its variables: programs that make a GIL as CPython 3.6 does, however built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bpfprof.cpython.old_files import gil_variables
from bpfprof.elf.image import ElfImage

SOURCE = """
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t switch_mutex, gil_mutex;
static pthread_cond_t gil_cond, switch_cond;
static volatile int gil_locked = -1;
static volatile pthread_t main_thread;
static HOW void create_gil(void)
{
    if (pthread_mutex_init(&gil_mutex, NULL) || pthread_mutex_init(&switch_mutex, NULL)
        || pthread_cond_init(&gil_cond, NULL) || pthread_cond_init(&switch_cond, NULL))
        abort();
    gil_locked = 0;
}
void PyEval_InitThreads(void)
{
    if (gil_locked >= 0)
        return;
    create_gil();
    main_thread = pthread_self();
}
int main(void)
{
    PyEval_InitThreads();
    return pthread_mutex_lock(&gil_mutex) | pthread_cond_signal(&switch_cond);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("strip") is None, reason="needs cc and strip")
@pytest.mark.parametrize("inlined", ["noinline", "always_inline"])
@pytest.mark.parametrize("options", [("-fno-pic", "-no-pie"), ("-fpic", "-pie")], ids=["fixed", "pie"])
def test_variables_of_a_stripped_file(options: tuple[str, ...], inlined: str, tmp_path: Path) -> None:
    source, program, stripped = (tmp_path / name for name in ("source.c", "program", "stripped"))
    source.write_text(SOURCE)
    attribute = f"-DHOW=__attribute__(({inlined}))" + (" inline" if inlined == "always_inline" else "")
    words = ["cc", "-O2", "-pthread", "-rdynamic", *options, attribute, "-o", str(program), str(source)]
    subprocess.run(words, check=True)
    subprocess.run(["strip", "-o", stripped, program], check=True)
    with ElfImage.open(str(program)) as named, ElfImage.open(str(stripped)) as nameless:
        found = gil_variables(nameless)
        assert found == gil_variables(named) and len(found) == 4


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("strip") is None, reason="needs cc and strip")
def test_another_program_has_none(tmp_path: Path) -> None:
    source, program = tmp_path / "source.c", tmp_path / "program"
    source.write_text("int PyEval_InitThreads(void) { return 1; } int main(void) { return PyEval_InitThreads(); }")
    subprocess.run(["cc", "-O2", "-rdynamic", "-s", "-o", str(program), str(source)], check=True)
    with ElfImage.open(str(program)) as image:
        assert gil_variables(image) == {}
