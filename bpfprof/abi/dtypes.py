"""The layouts of `ebpf/abi.h` as numpy dtypes (`STRUCTS` by name)."""

from __future__ import annotations

import numpy as np

from bpfprof.abi import LAYOUTS, SCALARS, Field

STRUCTS: dict[str, np.dtype[np.void]] = {}


def _column(field: Field) -> tuple[str, object, tuple[int, ...]]:
    scalar = SCALARS.get(field.type_name)
    return field.name, f"<{scalar}" if scalar else STRUCTS[field.type_name], (field.length,) if field.length else ()


for _name, _fields in LAYOUTS.items():
    # align=True gives the C layout; that no padding is implied is what the test of this module checks.
    STRUCTS[_name] = np.dtype([_column(field) for field in _fields], align=True)

EVENT_DTYPE = STRUCTS["bp_event"]
CODE_COPY_DTYPE = STRUCTS["bp_code_copy"]
STACK_DTYPE = STRUCTS["bp_stack"]
PYTHON_FRAME_DTYPE = STRUCTS["bp_python_frame"]
THREAD_DTYPE = STRUCTS["bp_thread"]
MAPPING_DTYPE = STRUCTS["bp_mapping"]
CALLS_DTYPE = STRUCTS["bp_calls"]
CALL_KEY_DTYPE = STRUCTS["bp_call_key"]
CALL_SUM_DTYPE = STRUCTS["bp_call_sum"]
FILE_DTYPE = STRUCTS["bp_file"]
RULE_DTYPE = STRUCTS["bp_rule"]
