"""What unit tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bpfprof.model.ids import Pid
from bpfprof.proc.reader import reader
from tests.unit.recording.hand_made import HandMade


@pytest.fixture
def made() -> HandMade:
    """A recording of one process, as yet without threads and without an end."""
    empty = HandMade()
    empty.process(100)
    return empty


@pytest.fixture(scope="session")
def pyelftools() -> None:
    """For tests that read lines."""
    pytest.importorskip("elftools", minversion="0.29")


@pytest.fixture(autouse=True)
def own_process_answers() -> Iterator[None]:
    """It is a target of many tests; once it was held up by others, it would not be asked by those that follow."""
    yield
    for held_up in (reader()._memory_of, reader()._files_of):
        held_up.pop(Pid(os.getpid()), None)
