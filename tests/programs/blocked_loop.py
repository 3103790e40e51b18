"""asyncio: a task that blocks the event loop by computing and by sleeping; others wait for it, a queue and time.

Prints `ready PID`; ends with its standard input. Standard library only.
"""

import asyncio
import os
import sys
import threading
import time


async def blocks(queue):
    while True:
        time.sleep(0.01)
        sum(range(200_000))
        await queue.put("item")
        await asyncio.sleep(0.002)


async def takes(queue):
    while True:
        await queue.get()


async def naps():
    while True:
        await asyncio.sleep(0.05)


async def waits(task):
    await asyncio.shield(task)


def end_with_input():
    sys.stdin.read()
    os._exit(0)


async def main():
    queue = asyncio.Queue()
    blocking = asyncio.create_task(blocks(queue), name="blocks")
    others = [asyncio.create_task(takes(queue), name="takes"), asyncio.create_task(waits(blocking), name="waits")]
    others += [asyncio.create_task(naps(), name=f"naps-{number}") for number in range(3)]
    threading.Thread(target=end_with_input, name="input", daemon=True).start()
    print("ready", os.getpid(), flush=True)
    await asyncio.gather(blocking, *others)


asyncio.run(main())
