"""Small sound ELF files of many kinds, for the fuzz tests to damage."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

from tests.unit.elf.frame_builder import CODE, FrameBuilder

_LIBRARY = """
#include <stdlib.h>
static int hidden(int x) { return x * 3; }
int (*pointer)(int) = hidden;
int visible(int x) { volatile char *p = malloc(x); return rand() + pointer(x) + *p; }
__attribute__((alias("visible"))) int visible_too(int);
__thread int thread_local_data = 1;
#define F(n) int f##n(int x) { volatile char v[x + n]; v[x] = n; return x ? visible(x + n) + f##n(v[x]) : n; }
F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
__asm__(".text\\n bare:\\n nop\\n .globl bare\\n label_in_bare:\\n nop\\n");
"""
_PROGRAM = """
static int work(int n) { volatile int v[n + 1]; v[n] = n; return v[n] ? n : work(n - 1); }
void _start(void) { work(7); for (;;) {} }
"""
_LIBRARY_OPTIONS = {
    "gnu-hash": ("-Wl,--hash-style=gnu",),
    "sysv-hash": ("-Wl,--hash-style=sysv", "-s"),
    "ibt": ("-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,norelro", "-Wl,-z,noseparate-code"),
    "debug-frame": ("-g1", "-fno-asynchronous-unwind-tables", "-gz=none"),
    "compressed": ("-g1", "-fno-asynchronous-unwind-tables", "-gz=zlib"),
}
NAMES = ("visible", "hidden", "bare", "_start", "malloc", "no_such")  # to look for in each


def make_seed_files(folder: Path) -> dict[str, bytes]:
    """By kind; all below 50 KB. Needs gcc and objcopy. `folder`/debug is the debug file of the one with a link."""
    (folder / "a.c").write_text(_LIBRARY)
    (folder / "b.c").write_text(_PROGRAM)
    found = {kind: _compiled(folder, "a.c", "-shared", "-fPIC", *extra) for kind, extra in _LIBRARY_OPTIONS.items()}
    found["static"] = _compiled(folder, "b.c", "-static", "-nostdlib", "-nostartfiles")
    found["embedded"] = _with_debug_data(folder, found["gnu-hash"])
    found["bare"] = without_section_headers(found["gnu-hash"])
    builder = FrameBuilder()
    cie = builder.cie()
    for index in range(10):
        builder.fde(cie, CODE + index * 64, 64, b"\x41\x0e\x10\x86\x02\x0a\x43\x0d\x06\x44\x0b")
    return found | {"by hand": builder.elf()}


def without_section_headers(content: bytes) -> bytes:
    """e_shoff, e_shnum and e_shstrndx are zero."""
    return content[:40] + bytes(8) + content[48:60] + bytes(4) + content[64:]


def _compiled(folder: Path, source: str, *options: str) -> bytes:
    out = folder / "out"
    command = ["gcc", "-O1", "-Wl,--build-id=sha1", *options, "-o", str(out), str(folder / source)]
    subprocess.run(command, check=True)
    return out.read_bytes()


def _with_debug_data(folder: Path, library: bytes) -> bytes:
    """Stripped, with .gnu_debugdata and with a .gnu_debuglink to `folder`/debug."""
    whole, debug, packed, out = (folder / name for name in ("whole", "debug", "packed", "out"))
    whole.write_bytes(library)
    subprocess.run(["objcopy", "--only-keep-debug", str(whole), str(debug)], check=True)
    packed.write_bytes(lzma.compress(debug.read_bytes(), preset=1))
    sections = [f"--add-section=.gnu_debugdata={packed}", f"--add-gnu-debuglink={debug}"]
    subprocess.run(["objcopy", "--strip-all", *sections, str(whole), str(out)], check=True)
    return out.read_bytes()
