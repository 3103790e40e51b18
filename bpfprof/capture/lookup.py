"""Numbers to numbers through a dictionary, for arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_MANY = 4096  # from here on finding the distinct ones first is quicker


def look_up(keys: npt.NDArray[np.integer], value_of_key: Mapping[int, int], missing: int) -> npt.NDArray[np.int64]:
    """The value of each key, `missing` where there is none."""
    if len(keys) < _MANY:
        return np.array([value_of_key.get(key, missing) for key in keys.tolist()], np.int64)
    unique, inverse = np.unique(keys, return_inverse=True)
    return np.array([value_of_key.get(key, missing) for key in unique.tolist()], np.int64)[inverse]
