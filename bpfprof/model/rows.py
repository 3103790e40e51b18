"""Rows of tables with many columns, moved as bytes.

For `rows[which]`, copies and concatenations numpy goes through the columns of each row one by one (numpy 2.4.6:
_strided_to_strided_field_transfer, numpy/_core/src/multiarray/dtype_transfer.c), which takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bpfprof import array_types as npt

Rows = npt.NDArray[np.void]


def picked(rows: Rows, which: npt.NDArray[Any]) -> Rows:
    """`rows[which]`, which are places, or of each row whether it is picked."""
    return np.asarray(rows.compress(which) if which.dtype == np.bool_ else rows.take(which))


def copied(rows: Rows) -> Rows:
    """`rows.copy()`."""
    return rows.view(_bytes_of(rows.dtype)).copy().view(rows.dtype)


def one_after_another(dtype: np.dtype[np.void], parts: Iterable[Rows]) -> Rows:
    """`np.concatenate()` of parts of one dtype, of which there may be none."""
    as_bytes = _bytes_of(dtype)
    views = []
    for part in parts:
        if part.dtype != dtype:
            raise ValueError("rows of different tables cannot stand in one")
        views.append(part.view(as_bytes))
    return np.concatenate([np.zeros(0, as_bytes), *views]).view(dtype)


def _bytes_of(dtype: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype((np.void, dtype.itemsize))
