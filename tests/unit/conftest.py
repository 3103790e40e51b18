"""What unit tests share."""

from __future__ import annotations

import pytest

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
