"""Greenlets in corners: how they begin, switch, nest and end; one kind a run, until standard input closes.

What may call what is in `tests/oracles/corner_truths.py`. Every function here is called by this file alone or by the
library that the kind is about. Prints "ready PID". Needs greenlet; gevent or eventlet for the kinds of those names.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
import threading
import time

WORK = 8000  # steps, some 300 us
COMPARES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


def burn(steps=WORK):
    for _ in range(steps):
        pass


def nap():
    time.sleep(0.001)


def ping_pong():
    """Two that burn at various depths and switch from the deepest place."""
    others = {}

    def ping(depth):
        if depth:
            return ping(depth - 1)
        burn()
        others["pong"].switch()
        nap()

    def pong(depth):
        if depth:
            return pong(depth - 1)
        burn()
        others["ping"].switch()

    def runs_ping():
        while True:
            for depth in (0, 3, 40):
                ping(depth)

    def runs_pong():
        while True:
            for depth in (1, 9):
                pong(depth)

    others["ping"], others["pong"] = greenlet.greenlet(runs_ping), greenlet.greenlet(runs_pong)
    others["ping"].switch()


def in_callbacks():
    """Switches inside what C calls: a key of sorted(), map(), a comparison of qsort()."""
    main = greenlet.getcurrent()
    library = ctypes.CDLL(None)

    def key(number):
        burn()
        main.switch()
        return -number

    def mapped(number):
        nap()
        main.switch()
        burn()

    def compares(left, right):
        burn()
        main.switch()
        return left[0] - right[0]

    def sorts():
        while True:
            sorted(range(5), key=key)

    def maps():
        while True:
            list(map(mapped, range(5)))

    def quick_sorts():
        numbers = (ctypes.c_int * 6)(3, 1, 2, 6, 5, 4)
        library.qsort.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, COMPARES]
        function = COMPARES(compares)
        while True:
            library.qsort(numbers, 6, 4, function)

    turns = [greenlet.greenlet(it) for it in (sorts, maps, quick_sorts)]
    while True:
        for turn in turns:
            turn.switch()


def nested():
    """Three, each started by the one before and its child; the innermost ends, and begins anew."""

    def inner():
        burn()
        nap()

    def middle():
        for _ in range(3):
            greenlet.greenlet(inner).switch()
            burn()

    def outer():
        for _ in range(3):
            greenlet.greenlet(middle).switch()
            burn()

    def starts():
        greenlet.greenlet(outer).switch()
        burn()

    while True:
        starts()


def reborn():
    """A thousand a second and more: each lives once."""

    def lives(number):
        burn(2000)
        dies(number)

    def dies(number):
        burn(2000)
        if not number % 10:
            nap()

    number = 0
    while True:
        number += 1
        greenlet.greenlet(lives).switch(number)


def with_generators():
    """Generators and coroutines that are driven in one greenlet and switch from their innermost frame."""
    main = greenlet.getcurrent()

    def counts():
        for number in range(5):
            burn()
            main.switch()
            yield number

    def passes_on():
        yield from counts()

    class Ready:
        def __await__(self):
            burn()
            main.switch()
            nap()
            return iter(())

    async def awaits():
        await Ready()

    def consumes():
        while True:
            tuple(passes_on())

    def drives():
        while True:
            coroutine = awaits()
            with contextlib.suppress(StopIteration):
                coroutine.send(None)

    turns = [greenlet.greenlet(consumes), greenlet.greenlet(drives)]
    while True:
        for turn in turns:
            turn.switch()


def spawned():
    """What SQLAlchemy does: synchronous code in a greenlet awaits by a switch to the coroutine that runs it."""

    def awaits_only(awaitable):
        return greenlet.getcurrent().parent.switch(awaitable)

    def synchronous(depth):
        if depth:
            return synchronous(depth - 1)
        burn()
        awaits_only(asyncio.sleep(0.002))
        burn()

    async def greenlet_spawn(function, *arguments):
        context = greenlet.greenlet(function)
        result = context.switch(*arguments)
        while not context.dead:
            result = context.switch(await result)

    async def repeats(depth):
        while True:
            await greenlet_spawn(synchronous, depth)
            burn()

    async def all_of_them():
        await asyncio.gather(repeats(0), repeats(4))

    asyncio.run(all_of_them())


def in_threads():
    """Greenlets of two threads, of which each has its own."""

    def left():
        while True:
            burn()
            greenlet.getcurrent().parent.switch()

    def right():
        while True:
            nap()
            greenlet.getcurrent().parent.switch()

    def turns():
        both = [greenlet.greenlet(left), greenlet.greenlet(right)]
        while True:
            for each in both:
                each.switch()

    threads = [threading.Thread(target=turns, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join()


def thrown():
    """Ended from outside, by an exception that its function catches or does not."""

    def catches():
        try:
            while True:
                burn()
                greenlet.getcurrent().parent.switch()
        except greenlet.GreenletExit:
            cleans_up()

    def cleans_up():
        burn()
        nap()

    def throws():
        each = greenlet.greenlet(catches)
        each.switch()
        each.switch()
        each.throw()

    while True:
        throws()


def gevent_pool():
    queue, (near, far) = gevent.queue.Queue(), gevent.socket.socketpair()

    def sleeps():
        burn()
        gevent.sleep(0.001)

    def asks():
        queue.put(1)
        burn()
        near.send(b"x")

    def answers():
        while True:
            queue.get()
            far.recv(1)
            burn()

    answerer = gevent.spawn(answers)
    pool = gevent.pool.Pool(4)
    while not answerer.dead:
        pool.spawn(sleeps)
        pool.spawn(asks)


def gevent_threads():
    """Monkey-patched threads, and gevent's pool of native ones."""

    def in_pool():
        burn()
        monkey.get_original("time", "sleep")(0.002)

    def patched():
        while True:
            burn()
            nap()

    def asks_pool():
        while True:
            gevent.get_hub().threadpool.apply(in_pool)
            burn()

    threads = [threading.Thread(target=it) for it in (patched, asks_pool)]
    for thread in threads:
        thread.start()
    threads[0].join()


def eventlet_pool():
    queue = eventlet.queue.Queue(2)

    def gives():
        while True:
            burn()
            queue.put(1)

    def takes():
        while True:
            queue.get()
            burn()
            eventlet.sleep(0.001)

    pool = eventlet.GreenPool()
    pool.spawn(gives)
    pool.spawn(takes)
    pool.waitall()


def main(kind):
    threading.Thread(target=ends_with_input, daemon=True).start()
    if kind == "gevent_threads":
        monkey.patch_all()
    print("ready", os.getpid(), flush=True)
    globals()[kind]()


def ends_with_input():
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    import greenlet

    if sys.argv[1].startswith("gevent"):
        import gevent
        import gevent.pool
        import gevent.queue
        import gevent.socket
        from gevent import monkey
    elif sys.argv[1].startswith("eventlet"):
        import eventlet
        import eventlet.queue
    main(sys.argv[1])
