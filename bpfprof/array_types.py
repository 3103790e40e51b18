"""`NDArray` as `numpy.typing` has it from NumPy 1.21 on; before, a stand-in for aliases, which are evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["NDArray"]

if TYPE_CHECKING:
    from numpy.typing import NDArray
else:
    from collections.abc import Sequence as NDArray  # only subscripted
