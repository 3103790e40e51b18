"""Interpreters of Python that are not CPython, by the files their processes map: a file in, what to call it out.

Their own stacks are not read. PyPy's library exports what an embedding program calls, so it is known under any name;
the others go by the names of their programs and libraries.
"""

from __future__ import annotations

import os
import re

from bpfprof.elf.image import PF_X, ElfImage

# pypy/interpreter/app_main and rpython/translator/c/src/entrypoint.c: in every PyPy since 2.5.
_PYPY_FUNCTION = "pypy_main_startup"
# What sys.version ends with: pypy/module/sys/version.py. It lies in writable data, as all objects of RPython do.
_PYPY_VERSION = re.compile(rb"\[PyPy (\d{1,2}(?:\.\d{1,3}){1,2}(?:-(?:alpha|beta|rc|candidate)\d{0,3})?)")
_DATA_LIMIT_BYTES = 64 << 20  # PyPy 7.3.11 has 18 MiB of it

_FILE_NAMES = {
    "micropython": "MicroPython",
    "graalpy": "GraalPy",
    "libpythonvm.so": "GraalPy",
    "rustpython": "RustPython",
}


def other_python(image: ElfImage, path: str) -> str:
    """`PyPy 7.3.11`, or a name without a version; "" when the file is none of these."""
    if image.find_symbol(_PYPY_FUNCTION, dynamic_only=True) is None:
        return _FILE_NAMES.get(os.path.basename(path), "")
    for segment in image.segments:
        if segment.flags & PF_X or segment.file_size > _DATA_LIMIT_BYTES:
            continue
        found = _PYPY_VERSION.search(image.read(segment.address, segment.file_size) or b"")
        if found:
            return f"PyPy {found[1].decode()}"
    return "PyPy"
