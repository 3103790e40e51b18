"""What is read by a child: the same as what is read here."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from bpfprof.cpython.detect import NotPython, find_interpreter, why_not
from bpfprof.errors import TargetError
from bpfprof.model.ids import Pid
from bpfprof.proc import reader as asking
from bpfprof.proc import reader_child as child
from bpfprof.proc.memory import ProcessMemory
from bpfprof.proc.reader import Reader

OWN = Pid(os.getpid())


def test_memory_is_read_on_when_the_child_was_replaced() -> None:
    reader, other = Reader(), Pid(os.getppid())
    text = ctypes.create_string_buffer(b"what is to be read")
    memory = reader.open_memory(OWN)
    assert reader.read_memory(memory, ctypes.addressof(text), 7) == b"what is"
    os.kill(reader.child_pid, 9)
    try:
        reader.read_file(other, f"/proc/{other}/maps", 4096)
    except TimeoutError:
        assert reader.unanswering == {other}
    assert reader.read_memory(memory, ctypes.addressof(text), 4) == b"what"
    reader.close_memory(memory)


def test_a_file_that_may_not_answer_is_copied() -> None:
    """Those of /proc are on no disk."""
    reader = Reader()
    for path in ("/proc/filesystems", __file__):
        fd = reader.open_file(OWN, path)
        with open(fd, "rb") as file:
            file.seek(0)
            assert file.read() == Path(path).read_bytes()
    assert os.path.samefile("/proc/self/exe", f"/proc/self/fd/{reader.open_file(OWN, '/proc/self/exe')}")


def test_a_link_does_not_lead_out_of_a_root(tmp_path: Path) -> None:
    reader, root = Reader(), tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("outside")
    (root / "link").symlink_to(tmp_path / "outside")
    directory, _ = reader.open_path(OWN, str(root))
    try:
        reader.open_file(OWN, "/link", directory)
    except FileNotFoundError:
        return
    raise AssertionError("it was opened")


def test_a_child_that_starts_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that reads Python from a slow disk: there it has more time for each answer, too."""
    late = tmp_path / "late.py"
    late.write_text(f"""import runpy, time
time.sleep(1)
runpy.run_path({child.__file__!r}, run_name="__main__")
""")
    monkeypatch.setattr(asking, "_CHILD", str(late))
    reader = Reader()
    assert reader.read_file(Pid(os.getppid()), "/proc/filesystems", 4096) == Path("/proc/filesystems").read_bytes()
    assert not reader.unanswering
    assert reader._living().times_as_long > 5


def test_a_process_that_does_not_answer_now_is_asked_for_python_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asking.reader()._files_of, OWN, float("inf"))
    found = find_interpreter(OWN)
    assert isinstance(found, NotPython)
    assert found.retry and found.reason == "its files do not answer"
    monkeypatch.setitem(asking.reader()._memory_of, OWN, float("inf"))
    with pytest.raises(TargetError) as caught:
        find_interpreter(OWN)
    assert why_not(caught.value) == NotPython("its memory does not answer", retry=True)


def test_it_only_reads(tmp_path: Path) -> None:
    """Nothing is opened to be written, even where permissions would let root."""
    (tmp_path / "file").write_text("x")
    asks = Reader()
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(PermissionError):
            asks._ask(OWN, child.OPEN_PATH, size=flags, text=os.fsencode(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "x"


def test_how_slowly_processes_answered_is_known_of_the_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others it is forgotten when there are many."""
    monkeypatch.setattr(asking, "_SLOW_LIMIT", 10)
    reader, slow = Reader(), Pid(1)
    assert not reader._is_slow(slow, False, 250_000_000)
    for pid in range(2, 1000):
        assert not reader._is_slow(Pid(pid), False, 1000)
    assert len(reader._slow_ns) <= 11
    assert reader._is_slow(slow, False, 10_000_000_000)


@pytest.mark.parametrize("count", [1, 7, 3000])
def test_many_small_reads_are_few(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [ctypes.create_string_buffer(b"text %06d" % number) for number in range(count)]
    addresses = [ctypes.addressof(text) for text in texts]
    asked: list[int] = []
    ask = Reader._ask

    def counted(self: Reader, pid: Pid, action: int, *rest: Any, **named: Any) -> Any:
        asked.append(action)
        return ask(self, pid, action, *rest, **named)

    monkeypatch.setattr(Reader, "_ask", counted)
    with ProcessMemory(OWN) as memory:
        assert memory.read_each(addresses, 11) == [text.value for text in texts]
        assert len(asked) <= 2 + count // 1000, "to open it, too"
        unmapped = [1, (1 << 47) - 8, 1 << 60, -5]
        found = memory.read_each([*unmapped[:2], *addresses, *unmapped[2:], addresses[0]], 11)
        assert found == [b"", b"", *(text.value for text in texts), b"", b"", texts[0].value]
        assert memory.read_each([], 8) == []
        none = memory.read_each(unmapped * 1000, 8)
        assert none == [b""] * 4000 and len(asked) < 20
    assert memory.read_each(addresses, 11) == [b""] * count
