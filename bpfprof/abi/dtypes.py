"""The layouts of `ebpf/abi.h` as numpy dtypes (`STRUCTS` by name)."""

from __future__ import annotations

import numpy as np

from bpfprof.abi import LAYOUTS, Field

_SCALARS = {
    f"__{sign}{bits}": f"<{code}{bits // 8}" for sign, code in (("u", "u"), ("s", "i")) for bits in (8, 16, 32, 64)
}
STRUCTS: dict[str, np.dtype[np.void]] = {}


def _column(field: Field) -> tuple[str, object, tuple[int, ...]]:
    shape = (field.length,) if field.length else ()
    return field.name, _SCALARS.get(field.type_name) or STRUCTS[field.type_name], shape


for _name, _fields in LAYOUTS.items():
    # align=True gives the C layout; that no padding is implied is what the test of this module checks.
    STRUCTS[_name] = np.dtype([_column(field) for field in _fields], align=True)

EVENT_DTYPE = STRUCTS["bp_event"]
STACK_DTYPE = STRUCTS["bp_stack"]
PYTHON_FRAME_DTYPE = STRUCTS["bp_python_frame"]
THREAD_DTYPE = STRUCTS["bp_thread"]
MAPPING_DTYPE = STRUCTS["bp_mapping"]
FILE_DTYPE = STRUCTS["bp_file"]
RULE_DTYPE = STRUCTS["bp_rule"]
