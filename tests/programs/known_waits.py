"""Asyncio tasks that measure their own waits: says "ready"; after a line waits for so many seconds, and says as JSON

how long each task waited for what: (task, reason, seconds).
"""

from __future__ import annotations

import asyncio
import collections
import json
import socket
import sys
import time

TIMES = collections.defaultdict(float)


async def measured(reason, awaitable):
    begin = time.monotonic()
    try:
        return await awaitable
    finally:
        TIMES[asyncio.current_task().get_name(), reason] += time.monotonic() - begin


def goes_on():
    return time.monotonic() < END


async def sleeper():
    while goes_on():
        await measured("sleep", asyncio.sleep(0.5))


async def sender(writer):
    while goes_on():
        await measured("sleep", asyncio.sleep(0.9))
        writer.write(b"x")
    writer.write(b"e")


async def receiver(reader):
    while await measured("socket", reader.read(1)) != b"e":
        await measured("sleep", asyncio.sleep(0.37))


async def holder(lock):
    while goes_on():
        async with lock:
            await measured("sleep", asyncio.sleep(0.7))
        await measured("sleep", asyncio.sleep(0.31))


async def locker(lock):
    while goes_on():
        await measured("lock", lock.acquire())
        lock.release()
        await measured("sleep", asyncio.sleep(0.23))


async def producer(queue):
    while goes_on():
        await measured("sleep", asyncio.sleep(0.83))
        queue.put_nowait(True)
    queue.put_nowait(False)


async def consumer(queue):
    while await measured("queue", queue.get()):
        await measured("sleep", asyncio.sleep(0.35))


async def gatherer():
    while goes_on():
        await measured("task", asyncio.gather(*(asyncio.sleep(each) for each in (0.2, 0.4, 0.6))))
        await measured("sleep", asyncio.sleep(0.45))


async def main():
    ends = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    lock, queue = asyncio.Lock(), asyncio.Queue()
    coroutines = [sleeper(), sender(ends[0][1]), receiver(ends[1][0]), holder(lock), locker(lock)]
    coroutines += [producer(queue), consumer(queue), gatherer()]
    await asyncio.gather(*(asyncio.create_task(each, name=each.__name__) for each in coroutines))
    print(json.dumps([[*key, seconds] for key, seconds in TIMES.items()]), flush=True)


print("ready", flush=True)
seconds = float(sys.stdin.readline())
END = time.monotonic() + seconds
asyncio.run(main())
