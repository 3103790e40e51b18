"""C++ and Rust names as c++filt spells them, kept between runs: what a name stands for does not depend on its file.

To load the library takes 0.03 s, and each name some more: of a recording of PyTorch that is a tenth of a second.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from functools import cache, partial

from bpfprof.private_cache import PrivateCache

# Only these schemes are tried, and only on names that look like them: C has names of every other form.
_LANGUAGES = ("rust", "itanium")
# The longest name in libtorch_cpu 2.13 has 7 KiB. A short one can stand for terabytes: f(A<S, S>, A<S0, S0>, ...).
_INPUT_LIMIT = 16 << 10
_OUTPUT_LIMIT = 16 << 10
_CACHE = PrivateCache("names", file_limit_bytes=2 << 20, total_limit_bytes=4 << 20)
_VERSION = 1  # of the content: names and what they stand for by turns
_END, _ERRORS = "\0", "surrogatepass"  # no name has a zero byte
_MOST_CHARACTERS = 4 << 20  # in memory; then all is asked for again


class Demangled:
    """From mangled names to readable ones, for any thread; a name that is damaged or beyond the bounds stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] | None = None
        self._used: dict[str, str] = {}
        self._used_characters = self._new_count = 0

    def __call__(self, name: str) -> str:
        with self._lock:
            found = self._used.get(name)
            if found is not None:
                return found
            if self._known is None:
                self._known = _load()
            found = self._known.get(name)
            if found is None:
                found = _demangler()(name)
                self._new_count += 1
            self._used_characters += len(name) + len(found)
            if self._used_characters > _MOST_CHARACTERS:
                self._used, self._used_characters = {}, len(name) + len(found)
            self._used[name] = found
            return found

    def keep(self) -> None:
        """For later runs: what was asked for, and what was known before while there is room for both."""
        with self._lock:
            if not self._new_count or not (name := _cache_name()):
                return
            self._new_count = 0
            for names in ({**(self._known or {}), **self._used}, self._used):
                content = _END.join(text for pair in names.items() for text in pair).encode(errors=_ERRORS)
                if len(content) <= _CACHE.file_limit_bytes:
                    _CACHE.store(name, content)
                    return


def can_demangle() -> bool:
    """Whether C++ and Rust names become readable: the library for it needs Python 3.11."""
    return bool(_library())


@cache
def _library() -> str:
    """The path of its first file."""
    spec = importlib.util.find_spec("demangle") if sys.version_info >= (3, 11) else None
    return spec.origin or "?" if spec else ""


def _cache_name() -> str:
    """Another one for another library; "" where none can be told."""
    try:
        status = os.stat(_library())
    except OSError:
        return ""
    return f"{_VERSION}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _load() -> dict[str, str]:
    name = _cache_name()
    content = _CACHE.load(name) if name else None
    if content is None:
        return {}
    try:
        texts = str(content, "utf-8", _ERRORS).split(_END)
    except UnicodeDecodeError:
        return {}
    return dict(zip(texts[::2], texts[1::2]))


@cache
def _demangler() -> Callable[[str], str]:
    """Loaded when first needed: most reports of Python programs show few C++ functions, and some none."""
    if not can_demangle():
        return str
    import demangle as library

    limits = library.Limits(max_input=_INPUT_LIMIT, max_output=_OUTPUT_LIMIT)
    return partial(library.demangle, language=_LANGUAGES, style="gnu", limits=limits)
