"""How long a recording waits for functions that were not known: while more of them come, and hardly where none does."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfprof.capture.first_look import FirstLook
from bpfprof.model.ids import Pid


class Code:
    """Of one process with a large library; new_s: until when each look at its stacks finds a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, new_s: float) -> None:
        self.now_s, self._new_s, self._count, self.read_count = 100.0, 100.0 + new_s, 0, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self._sleep)
        self.map_of = {Pid(1): None}
        self.background = SimpleNamespace(open_count=0, add=self._add)
        self.files = SimpleNamespace(
            background=self.background, has_large=lambda: True, unmade=list, read_wanted=lambda: None
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.background.open_count = 0  # what was wanted is read meanwhile

    def _add(self, _priority: int, _work: object) -> None:
        self.read_count += 1
        self.background.open_count = 1

    def meet(self, _pid: Pid) -> int:
        self._count += self.now_s < self._new_s
        return self._count


@pytest.mark.parametrize(
    ("new_s", "least_s", "most_s"), [(0.0, 0.03, 0.04), (1e-3, 0.15, 0.2), (0.5, 0.65, 0.72), (9.0, 1.5, 1.53)]
)
def test_what_is_new_is_waited_for(
    new_s: float, least_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code(monkeypatch, new_s)
    look = FirstLook.of(None, [], at_python=False)
    look.meet(cast(Any, code))
    assert not look.go_on(0.0, lambda: True)
    assert least_s <= code.now_s - 100.0 <= most_s and (code.read_count > 0) == (new_s > 0)
