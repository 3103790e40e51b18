"""Functions with `with` statements, which run here to know at each instruction how many of them are entered.

Prints a line of JSON for each function: `code` and `table` in hex, `offsets`: for each instruction that ran the fewest
that were entered then; `calls`: for each that called here() how many were. It runs on CPython 3.11 and later.
"""

import asyncio
import json
import sys

ENTERED = {}  # frame -> managers whose body it is in
OFFSETS, CALLS = {}, {}  # code -> offset -> how many


class Manager:
    def __init__(self, swallows=False):
        self.swallows = swallows

    def __enter__(self):
        here()
        ENTERED.setdefault(sys._getframe(1), []).append(self)

    def __exit__(self, *_):
        ENTERED[sys._getframe(1)].remove(self)
        here()
        return self.swallows

    async def __aenter__(self):
        await asyncio.sleep(0)
        ENTERED.setdefault(sys._getframe(1), []).append(self)

    async def __aexit__(self, *_):
        ENTERED[sys._getframe(1)].remove(self)
        await asyncio.sleep(0)


class ByMetaclass(type):
    def __enter__(cls):
        ENTERED.setdefault(sys._getframe(1), []).append(cls)

    def __exit__(cls, *_):
        ENTERED[sys._getframe(1)].remove(cls)


class Class(metaclass=ByMetaclass):
    pass


def here():
    """The innermost sample that runs calls it, or what that calls."""
    frame = sys._getframe(1)
    if frame.f_code.co_name in ("__enter__", "__exit__"):
        frame = frame.f_back
    if frame.f_code in OFFSETS and sys._getframe(1) is frame:
        CALLS.setdefault(frame.f_code, {})[frame.f_lasti] = len(ENTERED.get(frame, ()))


def nested():
    here()
    with Manager():
        here()
        with Manager(), Manager() as third:
            here(), third
        here()
    here()


def exceptions():
    with Manager(True):
        here()
        try:
            here()
            raise ValueError
        except KeyError:
            pass
        except ValueError as error:
            here()
            with Manager(True):
                here()
                raise KeyError from error
            here()
        finally:
            here()
            with Manager():
                here()
        here()
        raise KeyError
    here()
    try:
        with Manager():
            raise OSError
    except OSError:
        here()


def leaves():
    for number in range(6):
        with Manager(True):
            here()
            if number == 1:
                continue
            with Manager(True):
                if number == 2:
                    continue
                if number == 3:
                    raise ValueError
                here()
                if number == 5:
                    return here()
        if number == 4:
            here()
    return 0


def breaks():
    while True:
        with Manager():  # noqa: SIM117
            with Class:
                here()
                break
    with Manager():
        return [here() for _ in range(2)] and {key: here() for key in range(1)}


def tries():
    try:
        try:
            here()
            with Manager():
                try:
                    here()
                finally:
                    here()
                return here()
        finally:
            here()
            with Manager():
                here()
    finally:
        here()


def generator():
    with Manager():
        here()
        got = yield here()
        with Manager():
            yield from inner()
            here(), got


def inner():
    with Manager():
        yield here()
        here()


async def coroutine():
    async with Manager(), Manager():
        here()
        with Manager():
            here()
            await asyncio.sleep(0)
            async with Manager():
                here()
            async for _ in numbers():
                with Manager():
                    here()
    here()


async def numbers():
    with Manager():
        yield here()
        await asyncio.sleep(0)


def closure(first=1, *more, key=2, **others):
    cell = Manager()

    def reads():
        return cell, first

    with cell:
        reads()
        with cell if key else first:
            return [reads, here(), [it for it in (1, 2) if here() or first]]


def trace(frame, event, _):
    frame.f_trace_opcodes = True
    if event == "opcode":
        known = OFFSETS[frame.f_code]
        count = len(ENTERED.get(frame, ()))
        known[frame.f_lasti] = min(count, known.get(frame.f_lasti, count))
    return trace


def run():
    for function in (nested, exceptions, leaves, breaks, tries, closure):
        function()
    list(generator())
    asyncio.new_event_loop().run_until_complete(coroutine())


for function in (nested, exceptions, leaves, breaks, tries, generator, inner, coroutine, numbers, closure):
    OFFSETS[function.__code__] = {}
sys._getframe().f_trace_opcodes = True  # 3.12 asks whether any frame has it, and only in the next line
sys.settrace(lambda frame, event, argument: trace(frame, event, argument) if frame.f_code in OFFSETS else None)
run()
sys.settrace(None)
run()  # without instructions in place of others, which are at other places
for code, offsets in OFFSETS.items():
    told = {"code": code.co_code.hex(), "table": code.co_exceptiontable.hex()}
    print(json.dumps({"name": code.co_name, **told, "offsets": offsets, "calls": CALLS[code]}))
