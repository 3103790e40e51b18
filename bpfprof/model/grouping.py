"""Rows that are alike in some columns, by numbers: what every sum over rows begins with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bpfprof import array_types as npt

_LARGE = 1 << 20  # of larger values the order is taken, not the values
_MOST = np.iinfo(np.int64).max


def group_numbers(columns: Iterable[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(place of the first row of each group, number of each row's group); columns of whole numbers, none below 0."""
    keys: npt.NDArray[np.int64] | None = None
    most = 0
    for column in columns:
        values = column
        if len(values) and int(values.max()) >= _LARGE:
            values = np.unique(values, return_inverse=True)[1]
        values, count = values.astype(np.int64), int(values.max(initial=0)) + 1
        if keys is not None and most > _MOST // count - 1:
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            most = int(keys.max(initial=0)) + 1
        keys = values if keys is None else keys * count + values
        most = (most + 1) * count
    assert keys is not None
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    return first, number
