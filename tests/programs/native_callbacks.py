"""Python called by native code called by Python, under uvloop: Cython, then pybind11, then pyo3 (rpds), then `burn`.

`turn` calls them in this order, then a method and a generator of Cython. Tasks stay suspended, each for the reason
that is its name. With --tasks there are only those. Prints `ready PID`; ends when standard input closes.
"""

import asyncio
import os
import sys
import threading
import time

import uvloop


class Key:
    def __hash__(self):
        return 5

    def __eq__(self, other):
        burn()
        return True


def burn():
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass


class Turns:
    def __init__(self):
        import cython_part
        import pybind_part
        import rpds

        self.cython, self.pybind = cython_part, pybind_part
        self.known = rpds.HashTrieMap({Key(): 1})

    def turn(self):
        self.cython.cython_calls(self.from_cython, 2)
        self.cython.Holder().method(burn)
        for _ in self.cython.Holder().generate(burn):
            pass

    def from_cython(self):
        self.pybind.pybind_calls(self.from_pybind)

    def from_pybind(self):
        self.known.get(Key())


async def sleep():
    await asyncio.sleep(1000)


async def lock(held):
    async with held:
        pass


async def queue(empty):
    await empty.get()


async def task():
    await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(1000))


async def socket():
    kept = []  # a stream that nobody has is closed
    server = await asyncio.start_server(lambda _, writer: kept.append(writer), "127.0.0.1", 0)
    reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.readline()


async def main():
    held = asyncio.Lock()
    await held.acquire()
    coroutines = sleep(), lock(held), queue(asyncio.Queue()), task(), socket()
    tasks = [asyncio.create_task(each, name=f"waits for {each.__name__}") for each in coroutines]
    turns = None if "--tasks" in sys.argv else Turns()
    await asyncio.sleep(0)
    print("ready", os.getpid(), flush=True)
    while tasks:
        if turns is not None:
            asyncio.get_running_loop().call_soon(turns.turn)
        await asyncio.sleep(0.01)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    uvloop.install()
    asyncio.run(main())
