"""Last by its name: spans of every recording that other tests of this session left cover each thread's wall time."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.integration.recorded import needs_root
from tests.unit.account.invariants import covers, recordings_below


@needs_root
def test_every_recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        checked = sum(pool.map(covers, recordings_below(tmp_path_factory.getbasetemp())))
    print(f"{checked} recordings")
    if not checked and all(item.path == request.path for item in request.session.items):
        pytest.skip("run alone: there are no recordings")
    assert checked
