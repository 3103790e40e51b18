"""Nodes of a flame graph -> their CSS classes; the style and the patterns of these, and what the legend says of them.

For each reason for a wait the pattern is its own, and the colour that of its kind: colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.model.states import is_reason
from bpfprof.query.code.origins import GENERATED, OWN_CODE, STDLIB, is_runtime, origins
from bpfprof.render.page_spans import KINDS as KIND_NAMES
from bpfprof.render.page_spans import kind_of_reason
from bpfprof.render.palette import CHANGES, FRAMES, HIT, INK, KINDS, PAPER, STROKES, Color

_REASONS = tuple(filter(is_reason, STROKES))
_NATIVE = (FrameKind.NATIVE, FrameKind.INLINED)
# Looks that are no kind of code and no reason: (what is behind, the marks on it).
_MARKS: dict[str, tuple[Color, Color]] = {
    "runqueue": KINDS["ready"],
    "not-sampled": (FRAMES["stdlib"], ("#7a5a20", "#d3b06a")),
    "short-waits": KINDS["sleep"],
    "truncated": KINDS["lost"],
    "woken-by": (("#9fd8c4", "#1f5a49"), ("#9fd8c4", "#1f5a49")),
}

# (look, what the legend says of it), in the order of the legend.
LOOKS = (
    ("own", "your own code"),
    ("library", "libraries"),
    ("stdlib", "standard library"),
    ("native", "native"),
    ("inlined", "inlined native"),
    ("kernel", "kernel"),
    ("runqueue", "ready, no CPU"),
    *((f"wait-{reason}", f"wait: {'GIL' if reason == 'gil' else reason}") for reason in _REASONS),
    ("wait-other", "wait: other"),
    ("truncated", "stack cut off here"),
    ("not-sampled", "on CPU, not sampled"),
    ("short-waits", "waits too short for a stack"),
    ("woken-by", "who ended the wait; its stack below"),
    ("more", "▲ more time than before"),
    ("less", "▼ less"),
    ("maybe-more", "▲ more, as may be by chance"),
    ("maybe-less", "▼ less, as may be by chance"),
    ("same", "the same"),
)


def looks_of(frames: Sequence[Frame | None]) -> list[str]:
    """One a frame; None: all, a process or a thread."""
    known = [frame for frame in frames if frame is not None]
    libraries = iter([origin.library for origin in origins(known)])
    return ["base" if frame is None else _look_of(frame, next(libraries)) for frame in frames]


def are_plumbing(frames: Sequence[Frame | None]) -> list[bool]:
    """Whether each is code that starts and runs others."""
    known = [frame for frame in frames if frame is not None]
    libraries = iter([origin.library for origin in origins(known)])
    return [frame is not None and is_runtime(next(libraries)) and frame.kind in _NATIVE for frame in frames]


def python_look(frame: Frame, library: str) -> str:
    """Of a Python function of this library. What is in no file is the user's (`python -c`, a template, a cell of a
    notebook), but for methods of dataclasses and the like.
    """
    if library == GENERATED:
        return "stdlib" if frame.name.rpartition(".")[2].startswith("__") else "own"
    return "own" if library == OWN_CODE else "stdlib" if library == STDLIB else "library"


def wait_reason(frame: Frame) -> str:
    """Of a wait, whose name may have that of its lock."""
    return frame.name.partition(" #")[0]


def _look_of(frame: Frame, library: str) -> str:
    if frame.kind == FrameKind.PYTHON:
        return python_look(frame, library)
    if frame.kind == FrameKind.WAIT:
        reason = wait_reason(frame)
        return f"wait-{reason}" if reason in _REASONS else "wait-other"
    return {FrameKind.AWAIT: "wait-other"}.get(frame.kind, frame.kind.name.lower().replace("_", "-"))


def _styles() -> dict[str, tuple[Color, Color, str]]:
    """Look -> what is behind, the marks on it, the name of its strokes or ""."""
    found = {name: (color, color, "") for name, color in FRAMES.items() if name not in ("mark", "group")}
    found["base"] = (FRAMES["group"], FRAMES["group"], "")
    for reason in (*_REASONS, "other"):
        found[f"wait-{reason}"] = (*KINDS[KIND_NAMES[kind_of_reason(reason)]], reason)
    for name, colors in {**_MARKS, **CHANGES}.items():
        strokes = "ready" if name == "runqueue" else name
        found[name] = (*colors, strokes if strokes in STROKES else "")
    return found


PATTERNED = frozenset(look for look, (_, _, strokes) in _styles().items() if strokes)


def patterns() -> str:
    """The definitions that the style refers to."""
    return "".join(
        f'<pattern id="{look}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="{look}-back" width="8" height="8"/>'
        f'<path class="{look}-line" d="{STROKES[strokes][0]}" stroke-width="{STROKES[strokes][1]}" fill="none"/>'
        "</pattern>"
        for look, (_, _, strokes) in _styles().items()
        if strokes
    )


def style() -> str:
    """CSS of all looks."""
    always: list[str] = []
    light: list[str] = []
    dark: list[str] = []
    for look, (back, marks, strokes) in _styles().items():
        if strokes:
            always.append(f".{look}{{fill:url(#{look})}}")
        for rules, place in ((light, 0), (dark, 1)):
            if strokes:
                rules.append(f".{look}-back{{fill:{back[place]}}}.{look}-line{{stroke:{marks[place]}}}")
            else:
                rules.append(f".{look}{{fill:{back[place]}}}")
    for rules, place in ((light, 0), (dark, 1)):
        rules.append(f"svg{{background:{PAPER[place]}}}#page,.bar{{fill:{PAPER[place]}}}text{{fill:{INK[place]}}}")
        rules.append(f"#frames g.hit>rect{{stroke:{HIT[place]}}}#frames g.thin.hit>rect{{fill:{HIT[place]}}}")
    return "\n".join([*always, *light, "@media screen and (prefers-color-scheme: dark) {", *dark, "}"]) + "\n"
