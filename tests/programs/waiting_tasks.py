"""Tasks that each wait for something, which stay so: says as JSON what they are, ends when its input does.

By the name of each task: its coroutines from the inside out, (function, line) each, as Python itself tells of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import types

ENDED = threading.Event()
HAS_CHILD = asyncio.Event()
PAIR = socket.socketpair()
PAIR[0].setblocking(False)


async def nap():
    await asyncio.sleep(1000)


async def nested():
    await middle()


async def middle():
    await nap()


async def receive():
    await asyncio.get_running_loop().sock_recv(PAIR[0], 1)


async def read_stream():
    reader, _ = await asyncio.open_connection(sock=PAIR[1])
    await reader.read(1)


async def lock(held):
    async with held:
        pass


async def semaphore(full):
    await full.acquire()


async def event(never):
    await never.wait()


async def condition(never):
    async with never:
        await never.wait()


async def get(queue):
    await queue.get()


async def put(queue):
    await queue.put(1)


async def join(queue):
    await queue.join()


async def gather():
    await asyncio.gather(*(asyncio.create_task(nap(), name=f"gathered-{n}") for n in range(3)))


async def group():
    async with asyncio.TaskGroup() as group:
        for n in range(2):
            group.create_task(nap(), name=f"grouped-{n}")


async def with_timeout():
    await asyncio.wait_for(nap(), 1000)


async def wait():
    await asyncio.wait([asyncio.create_task(nap(), name="waited")])


async def shield():
    await asyncio.shield(asyncio.create_task(nap(), name="shielded"))


async def task(other):
    await other


async def executor():
    await asyncio.get_running_loop().run_in_executor(None, ENDED.wait)


async def thread():
    await asyncio.to_thread(ENDED.wait)


async def future():
    await asyncio.get_running_loop().create_future()


async def numbers():
    yield 0
    await nap()
    yield 1


async def each_number():
    async for _ in numbers():
        pass


@types.coroutine
def generator():
    yield from nap().__await__()


async def of_generator():
    await generator()


class Awaitable:
    def __await__(self):
        return nap().__await__()


async def of_object():
    await Awaitable()


async def child_process():
    pipes = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec("cat", stdin=pipes[0], stdout=pipes[1])  # ends with this one
    HAS_CHILD.set()
    await process.wait()


async def deep(level):
    await (deep(level - 1) if level else nap())


def chain(awaitable):
    """(function, line) of coroutines from the inside out, as far as Python tells."""
    frames = []
    while awaitable is not None:
        prefix = next((each for each in ("cr", "gi", "ag") if hasattr(awaitable, each + "_frame")), None)
        if prefix is None:
            break
        frame = getattr(awaitable, prefix + "_frame")
        frames.insert(0, (frame.f_code.co_qualname, frame.f_lineno))
        awaitable = getattr(awaitable, {"gi": "gi_yieldfrom"}.get(prefix, prefix + "_await"))
    return frames


def start_all():
    held, full, empty = asyncio.Lock(), asyncio.Semaphore(0), asyncio.Queue()
    held._locked = True
    unfinished = asyncio.Queue(1)
    unfinished.put_nowait(1)
    coroutines = [nap(), nested(), receive(), read_stream(), lock(held), semaphore(full), event(asyncio.Event())]
    coroutines += [condition(asyncio.Condition()), get(empty), put(unfinished), join(unfinished), gather(), group()]
    coroutines += [with_timeout(), wait(), shield(), executor(), thread(), future(), each_number(), of_generator()]
    coroutines += [of_object(), child_process(), deep(100)]
    tasks = [asyncio.create_task(each, name=each.__name__) for each in coroutines]
    tasks += [asyncio.create_task(task(tasks[0]), name=f"task {n}") for n in range(2)]
    tasks.append(asyncio.create_task(nap(), name="n\xe4me \u540d"))
    tasks.append(asyncio.create_task(nap()))
    return tasks


async def main():
    loop = asyncio.get_running_loop()
    tasks = start_all()
    if hasattr(asyncio, "eager_task_factory"):
        tasks.append(asyncio.eager_task_factory(loop, nap(), name="eager"))
    await HAS_CHILD.wait()
    for _ in range(100):  # turns of the loop; the others need but a few until they wait for good
        await asyncio.sleep(0)
    found = {
        each.get_name(): {"frames": chain(each.get_coro()), "waits_for": type(each._fut_waiter).__name__}
        for each in asyncio.all_tasks()
        if each is not asyncio.current_task()
    }
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    loop.call_soon(lambda: print(json.dumps(found), flush=True))
    await ended.wait()
    ENDED.set()
    for each in asyncio.all_tasks():
        if each is not asyncio.current_task():
            each.cancel()
    await asyncio.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "uvloop":
        import uvloop

        uvloop.install()
    asyncio.run(main())
    os._exit(0)
