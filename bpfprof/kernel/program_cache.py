"""Compiled programs kept between runs, for the compiler takes most of the time it takes to start.

The name of a file is a hash of everything that went into the compiler; what is loaded into the kernel is only ever what
this user compiled (see private_cache).
"""

from __future__ import annotations

import hashlib
import json
import os

from bpfprof import __version__
from bpfprof.private_cache import PrivateCache
from bpfprof.private_cache import cache_directory as cache_directory

_CACHE = PrivateCache("", file_limit_bytes=1 << 22)


def cache_key(text: str, flags: list[str]) -> str:
    """Name for what the compiler makes of this text with these flags on this kernel."""
    parts = [__version__, os.uname().release, os.uname().machine, *flags, text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str) -> dict[str, bytes] | None:
    """The programs kept under this key; None when there are none, or they are not ours or not whole."""
    content = _CACHE.load(key)
    if content is None:
        return None
    try:
        return {name: bytes.fromhex(code) for name, code in json.loads(bytes(content)).items()}
    except (ValueError, AttributeError, TypeError):
        return None


def store(key: str, programs: dict[str, bytes]) -> None:
    """Keeps programs; where that is not possible they are compiled again next time."""
    _CACHE.store(key, json.dumps({name: code.hex() for name, code in programs.items()}).encode())
