from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bpfprof.errors import TargetError
from bpfprof.model.ids import FileOffset, Pid, RuntimeAddress, Tid
from bpfprof.proc import maps, memory, tasks
from bpfprof.proc.reader import reader
from bpfprof.proc.text import with_controls_replaced, without_controls
from tests.integration.recorded import running

ME = Pid(os.getpid())
NOBODY = Pid(2**22 + 1)  # above the largest pid_max


def test_maps_of_this_process_cover_its_own_objects() -> None:
    mappings = maps.read_maps(ME)
    assert [m.start for m in mappings] == sorted(m.start for m in mappings)
    libc = next(m for m in mappings if "libc.so" in m.path and m.is_executable)
    assert libc.is_file and libc.inode == os.stat(libc.path).st_ino
    fd = maps.open_mapped_file(ME, libc)
    try:
        assert os.pread(fd, 4, 0) == b"\x7fELF"
    finally:
        os.close(fd)


def test_so_many_mappings_of_code_and_no_more() -> None:
    expected = [mapping for mapping in maps.read_maps(ME) if mapping.is_executable]
    assert len(expected) > 3
    assert maps.read_executable_maps(ME, 1000) == (expected, len(expected))
    assert maps.read_executable_maps(ME, 2) == (expected[:2], len(expected))


def test_maps_line_forms() -> None:
    line = b"7f0-7f1 r-xp 00001000 08:01 42 /tmp/a b\\012c (deleted)"
    expected = maps.Mapping(
        RuntimeAddress(0x7F0), RuntimeAddress(0x7F1), "r-xp", FileOffset(0x1000), "08:01", 42, "/tmp/a b\nc", True
    )
    assert maps._parse_line(line) == expected
    anonymous = maps._parse_line(b"7f0-7f1 rw-p 00000000 00:00 0 ")
    assert anonymous is not None and anonymous.path == "" and not anonymous.is_file
    assert maps._parse_line(b"what-ever r 0 0 0") is None
    assert maps._parse_line(b"") is None


def test_the_rank_that_a_launcher_gave() -> None:
    """Of the variables that are known the best, as it was started; none that is no number."""
    for given, wanted in (
        ({"LOCAL_RANK": "0", "RANK": "12", "WORLD_SIZE": "16"}, "RANK=12"),
        ({"RANK": "\x1b[31m", "SLURM_PROCID": "03"}, "SLURM_PROCID=3"),
        ({"MY_RANK": "1", "RANK": "-1", "LOCAL_RANK": "1" * 40}, ""),
    ):
        with subprocess.Popen(["cat"], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.read(1)  # it runs, so the environment is its own
            assert tasks.process_rank(Pid(process.pid)) == wanted
            process.stdin.close()
    assert tasks.process_rank(NOBODY) == ""


def test_a_process_that_is_gone() -> None:
    with pytest.raises(TargetError):
        maps.read_maps(NOBODY)
    with pytest.raises(TargetError):
        memory.ProcessMemory(NOBODY)
    assert tasks.list_threads(NOBODY) == []
    assert tasks.process_name(NOBODY) == "" and tasks.process_command_line(NOBODY) == []
    assert tasks.start_time_ticks(NOBODY) is None
    tid = Tid(NOBODY)
    assert tasks.blocked_syscall(NOBODY, tid) is None and tasks.thread_status(NOBODY, tid) is None
    assert tasks.on_cpu_ns(NOBODY, tid) == 0
    assert tasks.namespace_tids(NOBODY, tid) == () and tasks.thread_name(NOBODY, tid) == ""


def test_mappings_of_a_program_that_is_replaced_meanwhile_are_those_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel reads those of the memory that was there at the opening, and has none of one that is gone."""
    read_file, are_gone = reader().read_file, iter([True])
    monkeypatch.setattr(reader(), "read_file", lambda *words: b"" if next(are_gone, False) else read_file(*words))
    assert maps.read_maps(ME)


def test_a_file_that_is_not_the_mapped_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x")
    absent = RuntimeAddress(0x1000)
    wrong_inode = maps.Mapping(absent, absent, "r--p", FileOffset(0), "0:0", 1, str(other))
    with pytest.raises(OSError):
        maps.open_mapped_file(ME, wrong_inode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fifo = maps.Mapping(absent, absent, "r--p", FileOffset(0), "0:0", pipe.stat().st_ino, str(pipe))
    with pytest.raises(OSError):
        maps.open_mapped_file(ME, fifo)


def test_a_deleted_file_is_still_opened(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("map_files needs root")
    import mmap

    file = tmp_path / "gone"
    file.write_bytes(b"hello".ljust(4096))
    with file.open("rb") as source, mmap.mmap(source.fileno(), 4096, prot=mmap.PROT_READ):
        file.unlink()
        mapping = next(m for m in maps.read_maps(ME) if m.path == str(file))
        assert mapping.is_deleted
        fd = maps.open_mapped_file(ME, mapping)
        assert os.read(fd, 5) == b"hello"
        os.close(fd)


def test_a_file_of_a_process_below_another_root(tmp_path: Path) -> None:
    """Where map_files is refused: the path is that of the process, or ours."""
    if os.geteuid() != 0:
        pytest.skip("chroot() needs root")
    file = tmp_path / "inside"
    file.write_bytes(b"hello")
    script = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    absent = RuntimeAddress(0x1000)
    with running(sys.executable, "-c", script, str(tmp_path)) as process:
        for path in ("/inside", str(file)):
            inode = file.stat().st_ino
            mapping = maps.Mapping(absent, absent, "r-xp", FileOffset(0), "0:0", inode, path)
            fd = maps.open_mapped_file(Pid(process.pid), mapping)
            assert os.read(fd, 5) == b"hello"
            os.close(fd)


def test_memory_reads_and_misses() -> None:
    import ctypes
    import mmap

    page = mmap.mmap(-1, mmap.PAGESIZE * 2)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[:8] = (0x1122334455667788).to_bytes(8, "little")
    with memory.ProcessMemory(ME) as target:
        assert target.read(address, 4) == b"\x88\x77\x66\x55"
        assert target.read_u64(address) == target.read_pointer(address) == 0x1122334455667788
        assert target.read(address, memory.READ_LIMIT_BYTES + 1) is None
        for bad in (0, 1, -1, 2**47, 2**63, 2**64 - 8):
            assert target.read_u64(bad) is None
        last = next(m for m in maps.read_maps(ME) if m.path == "[stack]").end
        assert target.read(last - 8, 16) is None
        assert len(target.read_up_to(last - 8, 16)) == 8
        assert target.read(address, 0) == b""
    assert target.read(address, 1) is None


def test_the_lines_of_a_program_on_the_command_line_stay_apart() -> None:
    command = [sys.executable, "-c", "import sys\nprint('ready', flush=True)\nsys.stdin.read()\t# \x1b[31m"]
    with running(*command) as target:
        found = tasks.process_command_line(Pid(target.pid))
    assert found == [*command[:2], "import sys print('ready', flush=True) sys.stdin.read() # [31m"]


def test_tasks_of_this_process() -> None:
    assert Tid(threading.get_native_id()) in tasks.list_threads(ME)
    assert tasks.process_command_line(ME)[0]
    assert (tasks.start_time_ticks(ME) or 0) > 0
    tid = Tid(threading.get_native_id())
    status = tasks.thread_status(ME, tid)
    assert status is not None and status.run_state == "R" and status.switches > 0
    assert status.uid == os.geteuid() and tasks.on_cpu_ns(ME, tid) > 0
    assert tasks.namespace_tids(ME, tid)[0] == tid


def test_a_thread_blocked_in_a_pipe_read() -> None:
    script = "import sys; print('ready', flush=True); sys.stdin.buffer.read(1)"
    with running(sys.executable, "-c", script) as target:
        pid = Pid(target.pid)
        tid = Tid(target.pid)
        while (status := tasks.thread_status(pid, tid)) is None or status.run_state != "S":
            pass
        blocked = tasks.blocked_syscall(pid, tid)
    assert blocked is not None
    assert blocked.args[0] == 0 and len(blocked.args) == 6 and blocked.number == 0  # read(0, ...), x86-64
    assert blocked.stack_pointer and blocked.program_counter


def test_names_are_made_fit_for_a_terminal() -> None:
    assert without_controls(b"a\x1b[31m\xff\nb") == "a[31m\ufffdb"
    assert with_controls_replaced("a\x1bb\u202ec\ud800") == "a\ufffdb\ufffdc\ufffd"
    assert with_controls_replaced("größe_函数") == "größe_函数"
