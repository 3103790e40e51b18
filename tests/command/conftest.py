"""What the tests of this folder share: spans of every recording that one left cover each thread's wall time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.account.invariants import covers, recordings_below


@pytest.fixture(scope="session", autouse=True)
def nobody_tells_the_size_of_a_terminal() -> Iterator[None]:
    """As pytest-xdist does to the tests that it runs side by side."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def recordings_are_covered(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for path in recordings_below(folder) if folder else []:
        covers(path)
