"""Where the GIL of a process is, and which of its futexes mean what: a runtime's address or a file in, a `Gil` out."""

from __future__ import annotations

from bpfprof.cpython.layout import NONE, Layout
from bpfprof.cpython.old_files import gil_variables
from bpfprof.cpython.thread_state import find_main_interpreter
from bpfprof.dataclass import dataclass
from bpfprof.elf.image import ElfImage
from bpfprof.model.ids import RuntimeAddress
from bpfprof.proc.memory import ProcessMemory

# The condition variables and mutexes of CPython 3.6, Python/ceval_gil.h (v3.6.15), and sizes of glibc x86-64:
# sysdeps/nptl/bits/pthreadtypes.h (2.17 to 2.41). A compiler puts them next to each other, in an order of its own.
_CONDITION_BYTES, _MUTEX_BYTES = 48, 40
_GIL_3_6 = {"gil_cond": _CONDITION_BYTES, "gil_mutex": _MUTEX_BYTES}
_SWITCH_3_6 = {"switch_cond": _CONDITION_BYTES, "switch_mutex": _MUTEX_BYTES}
_RANGE_LIMIT = 512


@dataclass(frozen=True)
class Gil:
    """The GIL of the main interpreter; a futex within it is a wait for the GIL.

    switch: (address, bytes) in it of the futexes of those that gave it away. `current` is 0, or the address of
    `_PyThreadState_Current`, which tells the holder of CPython 3.6. Both sizes are 0 where that was not found.
    """

    address: RuntimeAddress
    size: int
    switch: tuple[int, int]
    current: int = 0


def find_gil(memory: ProcessMemory, runtime_address: int, layout: Layout) -> Gil | None:
    """Of CPython 3.7 and later; None while the interpreter starts."""
    address = 0
    if layout.runtime_gil != NONE:
        address = runtime_address + layout.runtime_gil
    elif layout.interpreter_gil != NONE:
        main = find_main_interpreter(memory, runtime_address, layout)
        address = (memory.read_pointer(main + layout.interpreter_gil) if main else None) or 0
    switch = address + layout.gil_switch, layout.gil_size - layout.gil_switch
    return Gil(RuntimeAddress(address), layout.gil_size, switch) if address else None


def static_gil(image: ElfImage, bias: int) -> Gil | None:
    """Of CPython 3.6, in static variables; None when this file does not have it."""
    current = image.find_symbol("_PyThreadState_Current", dynamic_only=True)
    if current is None:
        return None
    variables = gil_variables(image)
    address, size = _range(variables, {**_GIL_3_6, **_SWITCH_3_6})
    if not size:
        address = current.address
    start, switch_size = _range(variables, _SWITCH_3_6)
    return Gil(RuntimeAddress(address + bias), size, (start + bias, switch_size), current.address + bias)


def _range(variables: dict[str, int], sizes: dict[str, int]) -> tuple[int, int]:
    """(ELF address, bytes) that hold these variables; (0, 0) when one is not known or they are not together."""
    places = {name: variables[name] for name in sizes if name in variables}
    start = min(places.values(), default=0)
    end = max((address + sizes[name] for name, address in places.items()), default=0)
    return (start, end - start) if len(places) == len(sizes) and end - start <= _RANGE_LIMIT else (0, 0)
