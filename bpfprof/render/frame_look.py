"""A node of the flame graph -> its CSS class; the patterns that tell waits from CPU without colour."""

from __future__ import annotations

import zlib

from bpfprof.model.frames import FrameKind
from bpfprof.render.call_tree import Label

_PYTHON_HUES = 10
_WAIT_LOOKS = {
    "gil": "wait-gil",
    "lock": "wait-lock",
    "child": "wait-lock",
    "sleep": "wait-idle",
    "poll": "wait-idle",
    "disk": "wait-io",
    "net": "wait-io",
    "pipe": "wait-io",
    "device": "wait-io",
    "pagefault": "wait-io",
}
_OTHER_WAIT = "wait-other"

# (looks, what the legend says of them), in the order of the legend.
LOOKS = (
    (tuple(f"py{hue}" for hue in range(_PYTHON_HUES)), "Python (shade: file)"),
    (("native",), "native"),
    (("inlined",), "inlined native"),
    (("kernel",), "kernel"),
    (("wait-gil",), "wait: GIL"),
    (("wait-lock",), "wait: lock, child"),
    (("wait-idle",), "wait: sleep, poll"),
    (("wait-io",), "wait: disk, net, pipe, device"),
    ((_OTHER_WAIT,), "wait: other"),
    (("runqueue",), "run queue (ready, no CPU)"),
    (("truncated",), "stack cut off here"),
    (("not-sampled",), "on CPU, not sampled"),
    (("short-waits",), "waits too short for a stack"),
    (("woken-by",), "who ended the wait; its stack above"),
)


def look_of(label: Label) -> str:
    """The CSS class of a node; the colour of a Python frame comes from its file, so neighbours in a file look alike."""
    frame = label.frame
    if frame is None:
        return "base"
    if frame.kind == FrameKind.PYTHON:
        return f"py{zlib.crc32(frame.file.encode('utf-8', 'replace')) % _PYTHON_HUES}"
    if frame.kind == FrameKind.WAIT:
        return _WAIT_LOOKS.get(frame.name, _OTHER_WAIT)
    return frame.kind.name.lower().replace("_", "-")


_HATCH = '<path class="{}-line" d="M0 0V7" stroke-width="2"/>'
_DOT = '<circle class="{}-line" cx="3.5" cy="3.5" r="0.9"/>'


def _pattern(look: str, mark: str, angle: int = 0) -> str:
    return (
        f'<pattern id="{look}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate({angle})">'
        f'<rect class="{look}-back" width="7" height="7"/>{mark.format(look)}</pattern>'
    )


PATTERNS = "".join(
    [_pattern(look, _HATCH, 45) for look in sorted({*_WAIT_LOOKS.values(), _OTHER_WAIT})]
    + [_pattern("runqueue", _HATCH, -45), _pattern("not-sampled", _DOT), _pattern("short-waits", _DOT)]
)
