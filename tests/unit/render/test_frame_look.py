"""Of what kind a flame graph and the page show a Python function to be."""

from __future__ import annotations

import pytest

from bpfprof.model.frames import Frame, FrameKind
from bpfprof.render.frame_look import looks_of

LOOKS = (
    ("<string>", "crunch", "own"),  # python -c
    ("<string>", "<module>", "own"),
    ("<stdin>", "work", "own"),
    ("<template>", "root", "own"),
    ("<string>", "__init__", "stdlib"),  # of a dataclass
    ("<string>", "Point.__eq__", "stdlib"),
    ("<frozen importlib._bootstrap>", "_find_and_load", "stdlib"),
    ("/usr/lib/python3.11/json/decoder.py", "decode", "stdlib"),
    ("/usr/lib/python3/dist-packages/numpy/core/numeric.py", "ones", "library"),
    ("/srv/app.py", "serve", "own"),
)


@pytest.mark.parametrize(("file", "name", "look"), LOOKS)
def test_python(file: str, name: str, look: str) -> None:
    assert looks_of([Frame(FrameKind.PYTHON, name, file, 1), None]) == [look, "base"]
