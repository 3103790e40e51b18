"""Interpreters of Python that are not CPython, by the files their processes map: a file in, what to call it out.

Their own stacks are not read. PyPy's library exports what an embedding program calls, so it is known under any name;
the others go by the names of their programs and libraries.
"""

from __future__ import annotations

import os
import re

from bpfprof.elf.image import PF_W, ElfImage

# pypy/interpreter/app_main and rpython/translator/c/src/entrypoint.c: in every PyPy since 2.5.
_PYPY_FUNCTION = "pypy_main_startup"
# What sys.version ends with: pypy/module/sys/version.py. It lies in writable data, as all objects of RPython do.
_VERSION_START = b"[PyPy "
_PYPY_VERSION = re.compile(rb"\d{1,2}(?:\.\d{1,3}){1,2}(?:-(?:alpha|beta|rc|candidate)\d{0,3})?")
_DATA_LIMIT_BYTES = 64 << 20  # of a file; PyPy 7.3.11 has 18 MiB of it
_START_LIMIT = 256  # in one segment; PyPy 7.3.11 has one

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
    room = _DATA_LIMIT_BYTES
    for segment in image.segments:
        if not segment.flags & PF_W or segment.file_size > room:
            continue
        room -= segment.file_size
        data = image.read(segment.address, segment.file_size) or b""
        for text in data.split(_VERSION_START, _START_LIMIT)[1:]:
            if found := _PYPY_VERSION.match(text):
                return f"PyPy {found[0].decode()}"
    return "PyPy"
