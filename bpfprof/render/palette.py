"""Colours and patterns of pictures, told once: of frames by whose code they are, of waits by their kind and reason.

Each colour is (light, dark). Text in INK has a contrast of 4.5 and more on all that it stands on.
"""

from __future__ import annotations

Color = tuple[str, str]

PAPER: Color = ("#ffffff", "#16181b")
INK: Color = ("#1b1f24", "#f0f2f4")
HIT: Color = ("#8b1f8b", "#f3a6f3")
FRAMES: dict[str, Color] = {
    "own": ("#eda25f", "#8a4b1c"),
    "library": ("#f4cf9f", "#6b4a2a"),
    "stdlib": ("#eadfcb", "#4a4438"),
    "native": ("#bdd5eb", "#2c4a66"),
    "inlined": ("#d6e5f3", "#233a50"),
    "kernel": ("#d6ccee", "#443866"),
    "mark": ("#ececef", "#33363b"),
    "group": ("#e4e6ea", "#343940"),
}
# Kind of time -> what is behind, the marks on it.
KINDS: dict[str, tuple[Color, Color]] = {
    "cpu": (("#e8924a", "#a2581f"), ("#e8924a", "#a2581f")),
    "ready": (("#f6d9ea", "#4a2140"), ("#b83280", "#e07ab8")),
    "gil": (("#f8d3d0", "#4d2322"), ("#c03a33", "#e5847d")),
    "lock": (("#cfe9e6", "#173a3a"), ("#2f8480", "#62b8b3")),
    "io": (("#dcebcf", "#26371b"), ("#5f8f38", "#8fbf66")),
    "sleep": (("#ebecef", "#2b2e33"), ("#8f96a3", "#7d8592")),
    "other": (("#ece4d2", "#37322a"), ("#96804a", "#b9a576")),
    "lost": (PAPER, ("#9aa1aa", "#656c75")),
    "hidden": (PAPER, PAPER),
}
# More and less time than before, beyond noise and not; orange and blue are told apart by those who see no red or green.
CHANGES: dict[str, tuple[Color, Color]] = {
    "more": (("#f3a383", "#8c3a1c"), ("#a93c12", "#ffb59a")),
    "less": (("#a9c8f0", "#1f4b86"), ("#1d5cb0", "#9cc7ff")),
    "maybe-more": (("#fae3d9", "#43302a"), ("#fae3d9", "#43302a")),
    "maybe-less": (("#dfeaf8", "#28323f"), ("#dfeaf8", "#28323f")),
    "same": (("#ececef", "#33363b"), ("#ececef", "#33363b")),
}

# Pictures of 8 by 8 px that are repeated: what is drawn in the colour of the marks, and how wide.
_UP, _DOWN = "M-2 2l4-4M0 8l8-8M6 10l4-4", "M-2 6l4 4M0 0l8 8M6-2l4 4"
STROKES: dict[str, tuple[str, float]] = {
    "ready": ("M1 1.5h1.6M5 5.5h1.6", 1.6),
    "gil": (_DOWN, 1.4),
    "lock": (_UP, 1.4),
    "file-lock": ("M1 7l2-2M5 3l2-2", 1.4),
    "kernel-lock": ("M0 8l8-8M-1 1l2-2M7 9l2-2M3 3l2 2", 1),
    "child": ("M2 0v8M6 0v8", 1),
    "disk": ("M0 2h8M0 6h8", 1),
    "net": ("M0 2h5M4 6h4M0 6h1", 1.2),
    "pipe": ("M0 3l2-2 2 2 2-2 2 2M0 7l2-2 2 2 2-2 2 2", 0.9),
    "device": ("M0 1.5h8M0 3.5h8", 1),
    "pagefault": ("M1 2h2M5 2h2M1 6h2M5 6h2", 1.2),
    "sleep": ("M3 4h1.6", 1.6),
    "poll": ("M2.5 4a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0", 0.8),
    "other": (_UP + _DOWN, 0.8),
    "not-sampled": ("M3 4h2M4 3v2", 0.9),
    "short-waits": ("M1 2h.8M5 2h.8M3 6h.8M7 6h.8", 0.8),
    "more": (_UP, 1.2),
    "less": ("M0 2h8M0 6h8", 1),
}

# As scripts have it.
PALETTE = {"paper": PAPER, "ink": INK, "hit": HIT, "frames": FRAMES, "kinds": KINDS, "changes": CHANGES}
