"""Gives CPython 3.6 and 3.7 what the programs of the tests use of 3.7 and 3.8. The folder is in their PYTHONPATH."""

import ctypes
import functools
import gc
import threading
import time
import types

SYS_GETTID = 186  # arch/x86/entry/syscalls/syscall_64.tbl
PTHREAD_TID = 0x2D0  # struct pthread.tid, nptl/descr.h
_FIELDS = "argcount kwonlyargcount nlocals stacksize flags code consts names varnames filename name firstlineno lnotab"
_ORDER = [*("co_" + field for field in _FIELDS.split()), "co_freevars", "co_cellvars"]  # of types.CodeType


def clock_gettime_ns(clock):
    return int(time.clock_gettime(clock) * 1e9)


def replace(self, **changes):
    return types.CodeType(*(changes.get(field, getattr(self, field)) for field in _ORDER))


threading.get_native_id = functools.partial(ctypes.CDLL(None).syscall, SYS_GETTID)
threading.Thread.native_id = property(lambda self: ctypes.c_int.from_address(self.ident + PTHREAD_TID).value)
gc.get_referents(types.CodeType.__dict__)[0]["replace"] = replace
if not hasattr(time, "clock_gettime_ns"):
    time.clock_gettime_ns = clock_gettime_ns
    time.monotonic_ns = functools.partial(clock_gettime_ns, time.CLOCK_MONOTONIC)
    time.thread_time_ns = functools.partial(clock_gettime_ns, time.CLOCK_THREAD_CPUTIME_ID)
    time.process_time_ns = functools.partial(clock_gettime_ns, time.CLOCK_PROCESS_CPUTIME_ID)
    time.thread_time = functools.partial(time.clock_gettime, time.CLOCK_THREAD_CPUTIME_ID)
