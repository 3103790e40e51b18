"""Which lock file a thread waits for that sleeps between two looks at it: its Python frames in, a path out.

Libraries that lock files do not wait for them, but try again and again: filelock (its acquire() has the path in a
variable, 3.0 to 4.3), portalocker (`self` of what waits has it, 2.0 to 4.4), fasteners (0.14 to 0.20).
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.cpython.code_objects import read_text
from bpfprof.cpython.frame_values import FrameValues
from bpfprof.cpython.futures import PlacedFrame
from bpfprof.cpython.objects import VAR_SIZE, Changed

# In the path of a library's files -> the variable that has the path, and what attribute of it does.
_PATH_IN = {
    "/filelock/": ("lock_filename", ""),
    "/portalocker/": ("self", "filename"),
    "/fasteners/": ("self", "path"),
}
_FRAMES, _PATH_LIMIT = 8, 4096  # innermost ones that are asked; PATH_MAX


def awaited_lock_file(frames: Sequence[PlacedFrame], values: FrameValues) -> str:
    """Of a thread that sleeps, innermost frame first; "": it waits for no lock file, or which is not known."""
    for frame, code, _, file in frames[:_FRAMES]:
        found = next((it for name, it in _PATH_IN.items() if name in file), None)
        if found is None:
            continue
        variable, attribute = found
        try:
            value = values.variables(frame, code).get(variable, 0)
            value = values.objects.attribute(value, attribute) if value and attribute else value
            path = _text(values, value) if value else ""
        except Changed:
            return ""
        if path:
            return path
    return ""


def _text(values: FrameValues, value: int) -> str:
    """Of a str, or of bytes."""
    objects = values.objects
    name = objects.name(objects.type_of(value))
    if name == "str":
        return read_text(objects.memory, objects.layout, value, _PATH_LIMIT) or ""
    if name != "bytes":
        return ""
    size = objects.member(value, VAR_SIZE)
    return objects.read(value + objects.layout.bytes_data, min(size, _PATH_LIMIT)).decode("utf-8", "surrogateescape")
