"""The order in which call_order.py calls Python and C: frames in, root first; what is and what should be, out."""

from __future__ import annotations

import re

# Functions that stand for each way through C. Debian's python has no symbols for its static ones.
MARKERS = {
    "ctypes": {"_ctypes_callproc", "ffi_call"},
    "qsort": {"qsort_r", "msort_with_tmp.part.0", "msort_with_tmp", "qsort"},
    "sorted": {"list_sort", "list_sort_impl", "builtin_sorted", "list.sort"},
    "expat": {"XML_Parse", "XML_ParseBuffer", "PyExpat_XML_Parse", "PyExpat_XML_ParseBuffer"},
}


def name_of(frame: str) -> str:
    return frame.rpartition(" (")[0].rpartition(".<locals>.")[2]


def markers(frames: tuple[str, ...]) -> list[str]:
    """The marker functions of a stack, root first; C functions as their kind, several in a row as one."""
    found: list[str] = []
    for frame in frames:
        name = name_of(frame)
        kind = next((kind for kind, names in MARKERS.items() if name in names), name)
        if re.fullmatch(r"level_\d|busy", kind) or (kind in MARKERS and found[-1:] != [kind]):
            found.append(kind)
    return found


def expected(kinds: list[str], named: set[str]) -> list[str]:
    """`level_1 KIND level_2 ... busy`; kinds without a name in this interpreter are left out."""
    found = ["level_1"]
    for level, kind in enumerate(kinds, 2):
        # qsort is called by way of ctypes
        found += [it for it in (["ctypes", "qsort"] if kind == "qsort" else [kind]) if it in named]
        found.append(f"level_{level}")
    return [*found, "busy"]
