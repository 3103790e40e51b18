"""The numbers of an HTML page, as its script unpacks them."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import numpy as np


def unpacked(html: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(the head, the columns)"""
    found = re.search(r'id="data">([^<]*)<', html)
    assert found is not None
    content = gzip.decompress(base64.b64decode(found[1]))
    size = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + size])
    columns = {
        name: np.frombuffer(content, f"<{kind}", count, 4 + size + offset)
        for name, (kind, offset, count) in head["columns"].items()
    }
    return head, columns


def values(columns: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A column that is kept in two halves."""
    return columns[f"{name}_low"].astype(np.int64) + (columns[f"{name}_high"].astype(np.int64) << 32)
