"""The spans that a profile keeps, in their order, and the times of waits that were added up."""

from __future__ import annotations

from typing import Any

import numpy as np

from bpfprof import array_types as npt
from bpfprof.account.added_up import AddedUp
from bpfprof.account.spans import Spans
from bpfprof.model.grouping import group_numbers
from bpfprof.model.rows import FiledRows, GrowingRows, picked
from bpfprof.model.spans import (
    PIECE_DTYPE,
    SPAN_DTYPE,
    SPAN_HOLDER_DTYPE,
    WAIT_TIME_DTYPE,
    How,
    ThreadState,
    times_of,
)
from bpfprof.model.states import reason_number
from bpfprof.profile.filters import wait_lengths
from bpfprof.profile.weights import OF_SUMS, added_up_by

_OF_WAITS = (*OF_SUMS, "lock", "object", "waker", "waker_stack")
_OF_PIECES = tuple(name for name in PIECE_DTYPE.names or () if name != "span")
_GIL = reason_number("gil")


def singly(spans: Spans) -> AddedUp:
    """Spans of which each is one."""
    lengths = np.where(spans["state"] == ThreadState.RUNQUEUE, spans["duration_ns"], wait_lengths(spans))
    return AddedUp(spans, lengths, np.zeros(len(spans), np.bool_))


class KeptSpans:
    """Groups of threads are added one after the other. has_whole_waits, with_pieces: see ProfileOptions."""

    def __init__(self, has_whole_waits: bool, with_pieces: bool) -> None:
        self._has_whole, self._with_pieces = has_whole_waits, with_pieces
        self._pieces = FiledRows(PIECE_DTYPE)
        self._spans, self._times = GrowingRows(SPAN_DTYPE), FiledRows(WAIT_TIME_DTYPE)
        self._holders = GrowingRows(SPAN_HOLDER_DTYPE)
        self._count = 0

    @property
    def spans(self) -> Spans:
        """By thread and time."""
        return self._spans.whole()

    @property
    def times(self) -> Spans:
        """WAIT_TIME_DTYPE, by thread and time."""
        return self._times.view()

    @property
    def pieces(self) -> Spans:
        """PIECE_DTYPE, by thread and time, if each is by itself."""
        return self._pieces.view()

    def add(self, spans: Spans) -> None:
        """Single ones, in any order."""
        spans = picked(spans, in_order(spans))
        times = times_of(spans)
        if self._has_whole:
            times = _as_whole(spans, times)
        places = self._count + np.arange(len(spans))
        times["span"] += self._count
        self._add_holders(spans, places)
        if self._with_pieces:
            pieces = np.zeros(len(spans), PIECE_DTYPE)
            for name in _OF_PIECES:
                pieces[name] = spans[name]
            pieces["span"] = places
            self._pieces.append(pieces)
        self._append(spans, times)

    def add_sums(self, spans: Spans, made: AddedUp) -> None:
        """spans: those that were made, with the profile's stacks. What is only told apart by holders is one, too."""
        assert made.times is not None
        sums, number = _alike(spans, made.is_parked)
        made.times["span"] = self._count + number[made.times["span"]]
        self._add_holders(spans, self._count + number)
        if made.pieces is not None:
            for name in ("stands_for_ns", "count"):
                _share_out(made.pieces, spans, name)
            made.pieces["span"] = self._count + number[made.pieces["span"]]
            self._pieces.append(made.pieces)
        self._append(sums, made.times)

    @property
    def holders(self) -> Spans:
        """SPAN_HOLDER_DTYPE, where waits are whole."""
        return self._holders.view()

    def _add_holders(self, spans: Spans, places: npt.NDArray[np.integer[Any]]) -> None:
        is_held = (spans["state"] == ThreadState.OFF_CPU) & (spans["reason"] == _GIL) & (spans["how"] != How.SUMMED)
        is_held &= spans["duration_ns"] > 0
        if not self._has_whole or not is_held.any():
            return
        held = np.flatnonzero(is_held)
        columns = [places[held], spans["holder"][held], spans["holder_stack"][held]]
        first, number = group_numbers(columns)
        rows = np.zeros(len(first), SPAN_HOLDER_DTYPE)
        for name, column in zip(("span", "holder", "holder_stack"), columns):
            rows[name] = column[first]
        np.add.at(rows["stands_for_ns"], number, spans["stands_for_ns"][held])
        self._holders.append(rows)

    def _append(self, spans: Spans, times: Spans) -> None:
        self._spans.append(spans)
        self._times.append(times)
        self._count += len(spans)


def _share_out(pieces: Spans, spans: Spans, name: str) -> None:
    """Gives the pieces of each span what it stands for, as their time, or what it counts, as they do."""
    of = "duration_ns" if name == "stands_for_ns" else name
    span = pieces["span"]
    whole = np.zeros(len(spans), np.int64)
    whole[:] = spans["duration_ns"] if of == "duration_ns" else np.bincount(span, pieces[of], len(spans))
    pieces[name] = pieces[of]
    is_other = spans[name] != whole
    chosen = np.flatnonzero(is_other[span]) if is_other.any() else ()
    if not len(chosen):
        return
    chosen = chosen[np.argsort(span[chosen], kind="stable")]
    place = span[chosen]
    first = np.flatnonzero(np.diff(place.astype(np.int64), prepend=-1))
    until = np.cumsum(pieces[of][chosen], dtype=np.int64)
    before = np.append(0, until)[first]
    until -= np.repeat(before, np.diff(np.append(first, len(place))))
    # Running totals are rounded, so that nothing is lost from piece to piece.
    ends = np.rint(until * (spans[name] / np.maximum(whole, 1))[place]).astype(np.int64)
    shares = np.diff(ends, prepend=0)
    shares[first] = ends[first]
    pieces[name][chosen] = shares


def _alike(spans: Spans, is_parked: npt.NDArray[np.bool_]) -> tuple[Spans, npt.NDArray[np.intp]]:
    """(one for all that are alike, by thread and time; the place of each one's)."""
    sums, number = added_up_by(spans, [*(spans[name] for name in _OF_WAITS), is_parked])
    order = in_order(sums)
    order = order[sums["duration_ns"][order] > 0]
    place = np.zeros(len(sums), np.intp)
    place[order] = np.arange(len(order))
    return picked(sums, order), place[number]


def _as_whole(spans: Spans, times: Spans) -> Spans:
    """Times of whole waits, which end with them; changes the spans of each to be alike."""
    waits = spans["wait"][times["span"]].astype(np.int64)
    first = np.flatnonzero((np.diff(waits, prepend=-1) != 0) | (waits == 0))
    counts = np.diff(np.append(first, len(times)))
    if len(first) == len(times):
        return times
    begun, ended = np.repeat(times["span"][first], counts), np.repeat(times["span"][first + counts - 1], counts)
    for name in ("stack", "lock", "object", "reason", "flags"):
        spans[name][times["span"]] = spans[name][begun]
    for name in ("waker", "waker_stack"):
        spans[name][times["span"]] = spans[name][ended]
    whole = picked(times, first)
    whole["duration_ns"] = np.add.reduceat(times["duration_ns"], first)
    last = picked(times, first + counts - 1)
    whole["start_ns"] = last["start_ns"] + last["duration_ns"] - whole["duration_ns"]
    return whole


def in_order(spans: Spans) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Of rows with a time and a thread: by thread and time."""
    return np.lexsort((spans["start_ns"], spans["thread"]))
