"""The spans of a profile one by one, some at a time, also where those that are alike are kept as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bpfprof import array_types as npt
from bpfprof.model.profile import Profile
from bpfprof.model.rows import Rows, blocks, picked
from bpfprof.model.spans import PIECE_DTYPE

Ints = npt.NDArray[np.int64]

_OF_PIECES = tuple(name for name in PIECE_DTYPE.names or () if name != "span")


def single_spans(profile: Profile) -> Iterator[tuple[Rows, Ints]]:
    """(rows of SPAN_DTYPE, of each the place in Profile.spans of what it is a part of), by thread and time.

    Of a profile that was built with its spans, and either in their order or with pieces. holder_stack says nothing.
    """
    assert profile.spans is not None
    if profile.pieces is None:
        yield profile.spans, np.arange(len(profile.spans))
        return
    for pieces in blocks(profile.pieces):
        place = pieces["span"].astype(np.int64)
        spans = picked(profile.spans, place)
        for name in _OF_PIECES:
            spans[name] = pieces[name]
        yield spans, place


def single_pieces(profile: Profile) -> Iterator[Rows]:
    """The same as rows of PIECE_DTYPE, which are not as wide; all of them, also those that are hidden."""
    assert profile.spans is not None
    if profile.pieces is not None:
        yield from blocks(profile.pieces)
        return
    at = 0
    for spans in blocks(profile.spans):
        yield pieces_of(spans, at)
        at += len(spans)


def pieces_of(spans: Rows, at: int = 0) -> Rows:
    """Single spans, the first of which has this place, as rows of PIECE_DTYPE."""
    pieces = np.zeros(len(spans), PIECE_DTYPE)
    for name in _OF_PIECES:
        pieces[name] = spans[name]
    pieces["span"] = np.arange(at, at + len(spans))
    return pieces


def longest_and_last(profile: Profile) -> tuple[Ints, Ints]:
    """For each of Profile.spans how long the longest single one is that is part of it, and when the last one ends."""
    assert profile.spans is not None
    if profile.pieces is None:
        return profile.spans["duration_ns"], profile.spans["start_ns"] + profile.spans["duration_ns"]
    longest_ns, end_ns = np.zeros((2, len(profile.spans)), np.int64)
    for pieces in blocks(profile.pieces):
        np.maximum.at(longest_ns, pieces["span"], pieces["duration_ns"])
        np.maximum.at(end_ns, pieces["span"], pieces["start_ns"] + pieces["duration_ns"])
    return longest_ns, end_ns
