"""Where a stripped CPython collects garbage: an `ElfImage` in, a range of ELF addresses out.

What begins a collection is a static function, which has no symbol then. `PyGC_Collect()` has one, and calls it with the
oldest generation, 2, and nothing else so: `NUM_GENERATIONS - 1` in Modules/gcmodule.c (v3.9.18 to v3.12.1), 2 in
Python/gc.c (v3.13.0). Collections that come by themselves are begun by the same function.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from bpfprof.elf.cfi.sections import function_starts
from bpfprof.elf.image import EM_X86_64, ElfError, ElfImage

_FUNCTION, _CODE_LIMIT_BYTES = "PyGC_Collect", 4096
# mov $2 to %edi or %esi, the first arguments; what else is made ready; call rel32. Intel SDM volume 2, "MOV", "CALL"
# (December 2023).
_CALL = re.compile(rb"[\xbe\xbf]\x02\0\0\0[^\xe8]{0,32}?\xe8(?=(....))", re.DOTALL)
_DISTANCE = struct.Struct("<i")


def collector(image: ElfImage, has_name: Callable[[int], bool]) -> range:
    """Empty where it is not found, or has a name; has_name: whether there is a symbol at an address.

    Never fails: what cannot be read is not found.
    """
    function = image.find_symbol(_FUNCTION) if image.machine == EM_X86_64 else None
    code = image.read(function.address, min(function.size, _CODE_LIMIT_BYTES)) if function else None
    if not function or not code:
        return range(0)
    called = [function.address + found.end() + 4 + _DISTANCE.unpack(found[1])[0] for found in _CALL.finditer(code)]
    if len(called) != 1:  # up to 3.8 the callbacks before and after it can have been called so instead
        return range(0)
    try:
        starts = function_starts(image)
    except ElfError:
        return range(0)
    place = int(np.searchsorted(starts, called[0]))
    if place + 1 >= len(starts) or starts[place] != called[0] or has_name(called[0]):
        return range(0)
    return range(called[0], int(starts[place + 1]))
