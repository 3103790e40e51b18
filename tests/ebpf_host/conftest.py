"""The library is compiled once for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ebpf_host.host import Host, compile_programs
from tests.ebpf_host.scheduler import Scheduler


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The BPF programs; what a test puts into their maps, the next one finds there."""
    return Host(compile_programs(tmp_path_factory.mktemp("ebpf_host")))


@pytest.fixture
def scheduler(host: Host) -> Iterator[Scheduler]:
    """A machine without tasks, whose waits all have an event and no stack."""
    scheduler = Scheduler(host)
    host.set_config(0)
    yield scheduler
    scheduler.close()
