"""Files decoded by processes: the same as here, whatever the file or the process does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bpfprof.elf.image import ElfError, ElfImage
from bpfprof.proc.confinement import RECORDING, keep_only
from bpfprof.proc.own_process import raise_priority, usual_nice
from bpfprof.unwind.cache import decode_rows
from bpfprof.unwind.decoder import Decoder
from tests.unit.elf.hostile_frames import write_hostile


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder()
    yield made
    made.close()


def test_it_finds_what_is_found_here(decoder: Decoder) -> None:
    with ElfImage.open(os.path.realpath(sys.executable)) as image:
        for _ in range(2):  # by a new process, and by one that has decoded before
            (rows, rules), (own_rows, own_rules) = decoder.decode(image), decode_rows(image)
            assert len(rows.rows) > 1000 and np.array_equal(rows.rows, own_rows.rows)
            assert np.array_equal(rows.pages, own_rows.pages) and np.array_equal(rules, own_rules)
        assert len(decoder._idle) == 1 and decoder.cpu_s() > 0


def test_the_process_has_no_rights(decoder: Decoder) -> None:
    with ElfImage.open(sys.executable) as image:
        decoder.decode(image)
    status = Path(f"/proc/{decoder._idle[0].pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["NoNewPrivs"] == "1"
    if os.geteuid() == 0:
        assert set(fields["Uid"].split()) == {"65534"} and int(fields["CapEff"], 16) == 0


def test_a_file_of_another_processor_costs_itself_only(decoder: Decoder) -> None:
    content = bytearray(Path(sys.executable).read_bytes())
    content[18] = 183  # e_machine: aarch64
    with ElfImage.from_bytes(bytes(content), "other") as image, pytest.raises(ElfError, match="x86-64"):
        decoder.decode(image)
    with ElfImage.open(sys.executable) as image:
        assert len(decoder.decode(image)[0].rows) > 1000


def test_one_that_has_died_is_replaced(decoder: Decoder) -> None:
    """An idle process ends after a second, too."""
    with ElfImage.open(sys.executable) as image:
        decoder.decode(image)
        os.kill(decoder._idle[0].pid, signal.SIGKILL)
        assert len(decoder.decode(image)[0].rows) > 1


def test_it_ends_what_is_under_way(decoder: Decoder, tmp_path: Path) -> None:
    write_hostile("registers", tmp_path / "slow")  # some seconds
    with ElfImage.open(str(tmp_path / "slow")) as image, ThreadPoolExecutor() as pool:
        found = pool.submit(decoder.decode, image)
        while not decoder.cpu_s() and not found.done():
            time.sleep(0.001)
        decoder.close()
        with pytest.raises(ElfError, match="ended"):
            found.result()
        with pytest.raises(ElfError, match="ended"):
            decoder.decode(image)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, of which something is given up")
def test_a_thread_that_gave_up_its_privileges_may_begin_one(decoder: Decoder) -> None:
    """It cannot become nobody any more; then it has no capabilities, and a filter of system calls."""

    def decode() -> int:
        keep_only(RECORDING)
        with ElfImage.open(sys.executable) as image:
            return len(decoder.decode(image)[0].rows)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(decode).result() > 1000
    status = Path(f"/proc/{decoder._idle[0].pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (fields["Seccomp"], int(fields["CapEff"], 16), int(fields["CapPrm"], 16)) == ("2", 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises priorities")
def test_others_go_on_beside_it(decoder: Decoder) -> None:
    """In a session of its own, and without the priority of the thread that asks."""

    def decode() -> None:
        raise_priority()  # of this thread
        with ElfImage.open(sys.executable) as image:
            decoder.decode(image)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(decode).result()
    pid = decoder._idle[0].pid
    assert (os.getsid(pid), os.getpriority(os.PRIO_PROCESS, pid)) == (pid, usual_nice())
