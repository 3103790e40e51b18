"""Last by its name: spans of every recording that other tests of this session left cover each thread's wall time."""

from __future__ import annotations

import pytest

from bpfprof.errors import RecordingError
from bpfprof.recording.reader import read_recording
from tests.integration.recorded import needs_root
from tests.unit.account.invariants import assert_covers


@needs_root
@pytest.mark.timeout(300)
def test_every_recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    checked = 0
    files = (path for path in tmp_path_factory.getbasetemp().rglob("*.bpfprof") if path.is_file())  # some are FIFOs
    for path in sorted(files):
        try:
            with open(path, "rb") as file:
                recording = read_recording(file)
        except (RecordingError, OSError):
            continue
        try:
            assert_covers(recording, is_damaged=any(recording.end.get("lost", {}).values()))
        except Exception as error:
            raise AssertionError(str(path)) from error
        checked += 1
    print(f"{checked} recordings")
    if not checked and all(item.path == request.path for item in request.session.items):
        pytest.skip("run alone: there are no recordings")
    assert checked
