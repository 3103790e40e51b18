"""All rows of real files against `readelf -wF` (binutils)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.cfi import tables as call_frames
from bpfprof.elf.cfi.rules import CallFrames
from bpfprof.elf.cfi.tables import read_call_frames
from bpfprof.elf.image import ElfImage
from tests import pyenv
from tests.unit.elf.readelf_frames import differences, readelf_rows, share_unsupported


def _real_files() -> dict[str, Path]:
    found = {}
    for folder in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64"):
        for name in ("libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6", "libcrypto.so.3"):
            if (Path(folder) / name).is_file():
                found.setdefault(name, Path(folder) / name)
    pythons = pyenv.paths("3.1*/lib/libpython3.1*.so.1.0")
    found |= {path.name: path for path in pythons[-1:]}
    wheel = sorted(Path(np.__file__).parents[1].glob("numpy.libs/lib*openblas*"))
    found |= {path.name[:16]: path for path in wheel[:1]}
    system = Path("/usr/bin/python3").resolve()
    return found | ({system.name: system} if system.is_file() else {})


REAL_FILES = _real_files()


@pytest.mark.skipif(shutil.which("readelf") is None or sys.platform != "linux", reason="no readelf")
@pytest.mark.parametrize("path", REAL_FILES.values(), ids=REAL_FILES)
def test_all_rows_are_those_of_readelf(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What we make of code itself: test_handwritten_code.py.
    monkeypatch.setattr(call_frames, "traced_rules", lambda *_arguments: CallFrames())
    with ElfImage.open(str(path)) as image:
        frames = read_call_frames(image)
        entry = image.entry
        tables = [section for name in (".plt", ".plt.sec", ".plt.got", ".iplt") if (section := image.section(name))]
    found, count = differences(frames, readelf_rows(path))
    # Rules that we give procedure linkage tables and the entry point without an FDE: test_unwritten_frames.py.
    known = [(entry, 128), *((it.address, it.size) for it in tables)]
    inside = [any(begin <= int(row.split(":")[0], 16) < begin + size for begin, size in known) for row in found]
    assert not [row for row, is_plt in zip(found, inside) if not is_plt][:5]
    assert count > 1000
    assert share_unsupported(frames) < 0.04  # the dynamic linker is the smallest: one of its few dozen
    assert (np.diff(frames.address.astype(np.int64)) > 0).all()
    assert (frames.rule[1:] != frames.rule[:-1]).all()


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("readelf") is None, reason="no cc or no readelf")
@pytest.mark.parametrize("options", [(), ("-gz=zlib",)], ids=["plain", "compressed"])
def test_debug_frame_of_a_compiler(options: tuple[str, ...], tmp_path: Path) -> None:
    source = "#include <stdlib.h>\nint f(int n) { volatile char *p = malloc(n); return n ? f(n - 1) + *p : 1; }\n"
    (tmp_path / "a.c").write_text(source + "int main(int n, char **v) { return f(n) + atoi(v[0]); }\n")
    command = ["cc", "-O1", "-g", "-fno-asynchronous-unwind-tables", *options, "-o", str(tmp_path / "a")]
    subprocess.run([*command, str(tmp_path / "a.c")], check=True)
    with ElfImage.open(str(tmp_path / "a")) as image:
        assert image.section(".debug_frame") is not None
        frames = read_call_frames(image)
        main = image.find_symbol("main")
    assert main is not None and main.address in frames.function_starts.tolist()
    found, count = differences(frames, readelf_rows(tmp_path / "a"))
    assert not found and count > 10
