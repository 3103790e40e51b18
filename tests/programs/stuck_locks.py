"""Threads that stand still in known ways around locks: `stuck_locks.py [KIND...]`, all kinds without.

Prints one line of JSON when all of them sleep: `holders`, the name of each thread that waits for a lock that another
one or nobody is known to have -> that one's name, or null where nothing in the process says it; `circles`, the names of
threads that wait for one another. It does not change until standard input is closed. It runs on CPython 3.6 and later.
"""

import asyncio
import contextlib
import gc
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time

LONG_S = 300
HOLDERS, CIRCLES, KINDS, KEPT = {}, [], {}, []


def kind(function):
    KINDS[function.__name__] = function
    return function


def rest():
    time.sleep(LONG_S)


def start(name, function, *arguments):
    """Returns when the thread has said that it is where it wants to be, or that it goes there now."""
    there = threading.Event()
    threading.Thread(target=function, args=(there.set, *arguments), name=name, daemon=True).start()
    there.wait()


def wait_for(lock, name, holder, count=1):
    """Threads that want a lock by `with`."""
    for number in range(count):
        waiter = f"{name} waiter {number}"
        start(waiter, take, lock)
        HOLDERS[waiter] = holder


def take(there, lock):
    there()
    with lock:
        pass


def acquired(there, lock):
    lock.acquire()
    there()
    rest()


def entered(there, lock):
    with lock:
        there()
        rest()


@kind
def acquire():
    lock = threading.Lock()
    start("acquire", acquired, lock)
    wait_for(lock, "acquire", None, 3)


@kind
def enter():
    for make in (threading.Lock, threading.RLock, threading.Condition):
        lock, name = make(), "enter " + make.__name__
        start(name, entered, lock)
        wait_for(lock, name, name, 4)


@kind
def nested():
    first, second = threading.Lock(), threading.Lock()

    def hold(there):
        with first:  # noqa: SIM117
            with second:
                there()
                rest()

    start("nested", hold)
    for lock in (first, second):
        wait_for(lock, f"nested {lock is first}", "nested", 2)


@kind
def together():
    first, second = threading.Lock(), threading.Lock()

    def hold(there):
        with first, second:
            return there() or rest()

    start("together", hold)
    for lock in (first, second):
        wait_for(lock, f"together {lock is first}", "together", 2)


@kind
def between():
    """Has the first of two, waits for the second."""
    first, second = threading.Lock(), threading.Lock()

    def hold(there):
        there()
        with first, second:
            pass

    start("between last", entered, second)
    start("between", hold)
    HOLDERS["between"] = "between last"
    while not first.locked():
        time.sleep(0.001)
    wait_for(first, "between first", "between", 2)
    wait_for(second, "between second", "between last", 2)


@kind
def left_before():
    """What it has left stays where it was on the value stack, or below it."""
    first, second, third = threading.Lock(), threading.Lock(), threading.Lock()

    def hold(there, wanted):
        with first:  # noqa: SIM117
            with second:
                pass
        with second:
            pass
        third.acquire()
        start("left before acquired", acquired, first)
        start("left before acquired second", acquired, second)
        there()
        with wanted:
            pass

    start("left before", hold, third)
    HOLDERS["left before"] = None
    wait_for(first, "left before first", None, 2)
    wait_for(second, "left before second", None, 2)


@kind
def exceptions():
    """Handlers inside of the body, and the body left by an exception."""
    inside, left, at_end = threading.Lock(), threading.Lock(), threading.Lock()

    def hold(there):
        with inside:
            try:
                with left:
                    raise ValueError
            except ValueError:
                try:
                    raise KeyError
                except KeyError:
                    try:
                        pass
                    finally:
                        with at_end:
                            there()
                            rest()

    start("exceptions", hold)
    start("exceptions left", acquired, left)
    wait_for(inside, "exceptions inside", "exceptions", 2)
    wait_for(at_end, "exceptions at end", "exceptions", 2)
    wait_for(left, "exceptions left", None, 2)


@kind
def after_return():
    """`return` of what is called in the body, and a body that was left by one."""
    inside, left = threading.Lock(), threading.Lock()

    def leaves():
        for _ in range(3):
            with left:
                if _ == 1:
                    continue
                if _ == 2:
                    return 1
        return 0

    def hold(there):
        leaves()
        with inside:
            return [there() or rest() for _ in range(1)]

    start("after return", hold)
    start("after return left", acquired, left)
    wait_for(inside, "after return inside", "after return", 2)
    wait_for(left, "after return left", None, 2)


@kind
def in_finally():
    """By acquire(), which leaves no trace."""
    lock = threading.Lock()

    def hold(there):
        lock.acquire()
        try:
            there()
            rest()
        finally:
            lock.release()

    start("in finally", hold)
    wait_for(lock, "in finally", None, 2)


class Guard:
    def __init__(self, lock):
        self.lock = lock

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


@kind
def guard():
    """The wait is in the `__enter__` of a class of its own, with another lock held around it."""
    lock, around = threading.Lock(), threading.Lock()

    def want(there):
        there()
        with around:  # noqa: SIM117
            with Guard(lock):
                pass

    start("guard", entered, Guard(lock))
    start("guard wants", want)
    HOLDERS["guard wants"] = None
    while not around.locked():
        time.sleep(0.001)
    wait_for(around, "guard around", "guard wants", 3)


@contextlib.contextmanager
def locked(lock):
    with lock:
        yield


@kind
def managers():
    lock, pushed, wanted = threading.Lock(), threading.Lock(), threading.Lock()

    def hold(there):
        with locked(lock), contextlib.ExitStack() as stack:
            stack.enter_context(pushed)
            stack.enter_context(locked(wanted))
            there()
            rest()

    def want(there, lock):
        there()
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(lock))

    start("managers", hold)
    for it, name in ((lock, "lock"), (pushed, "pushed"), (wanted, "wanted")):
        wait_for(it, "managers " + name, "managers", 2)
        start("managers wants " + name, want, it)
        HOLDERS["managers wants " + name] = "managers"


@kind
def generators():
    lock, left = threading.Lock(), threading.Lock()

    def generator(there):
        with left:
            yield 1
        with lock:
            there()
            rest()
            yield 2

    start("generators", lambda there: list(generator(there)))
    start("generators left", acquired, left)
    wait_for(lock, "generators", "generators", 2)
    wait_for(left, "generators left", None, 2)


class Asynchronous:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


@kind
def asynchronous():
    lock = threading.Lock()

    async def hold(there):
        async with Asynchronous(), Asynchronous():
            with lock:
                async with Asynchronous():
                    there()
                    rest()

    def run(there):
        asyncio.new_event_loop().run_until_complete(hold(there))

    start("asynchronous", run)
    wait_for(lock, "asynchronous", "asynchronous", 2)


@kind
def conditions():
    """Those that were woken want the lock again, which another one has."""
    for make in (threading.Lock, threading.RLock):
        name = "conditions " + make.__name__
        condition = threading.Condition(make())

        def wait(there, condition):
            with condition:
                there()
                condition.wait()

        def wake(there, condition):
            with condition:
                condition.notify_all()
                there()
                rest()

        woken = [f"{name} woken {number}" for number in range(3)]
        for it in woken:
            start(it, wait, condition)
        start(name, wake, condition)
        HOLDERS.update(dict.fromkeys(woken, name))
        wait_for(condition, name, name, 2)


@kind
def semaphores():
    semaphore = threading.Semaphore(1)
    start("semaphores", entered, semaphore)
    wait_for(semaphore, "semaphores", None, 2)


@kind
def released_inside():
    """It waits for the lock that it has given back in the body, which another one has now."""
    lock, given = threading.Lock(), threading.Event()

    def hold(there):
        with lock:
            lock.release()
            given.set()
            while not lock.locked():
                time.sleep(0.001)
            there()
            lock.acquire()

    def get(there):
        given.wait()
        lock.acquire()
        there()
        rest()

    getter = threading.Thread(target=get, args=(int,), name="released inside has it", daemon=True)
    getter.start()
    start("released inside", hold)
    HOLDERS["released inside"] = None
    wait_for(lock, "released inside", None, 2)


def cross(name, first, second, has_end=False):
    """Two threads, each with one lock, which wants the other."""
    both = threading.Barrier(2)

    def run(there, has, wants):
        with has:
            both.wait()
            if has_end:
                wants.acquire(timeout=LONG_S)
            else:
                with wants:
                    pass

    names = [name + " left", name + " right"]
    for it, locks in zip(names, ((first, second), (second, first))):
        threading.Thread(target=run, args=(int, *locks), name=it, daemon=True).start()
    while not (first.locked() and second.locked()):
        time.sleep(0.001)
    HOLDERS.update(zip(names, names[::-1]))
    return names


@kind
def circle():
    first, second = threading.Lock(), threading.Lock()
    CIRCLES.append(cross("circle", first, second))
    wait_for(first, "circle first", "circle left", 3)
    wait_for(second, "circle second", "circle right", 2)


@kind
def has_end():
    """A circle that time undoes is no deadlock."""
    cross("has end", threading.Lock(), threading.Lock(), True)


@kind
def service():
    """Eight that do the same with two accounts, in both directions."""
    first, second = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def transfer(there, number, has, wants):
        there()
        with has:
            if number < 2:
                both.wait()
            with wants:
                pass

    names = [f"service {number}" for number in range(8)]
    for number, name in enumerate(names):
        locks = (first, second) if number % 2 == 0 else (second, first)
        start(name, transfer, number, *locks)
        while number < 2 and not locks[0].locked():
            time.sleep(0.001)
        HOLDERS[name] = names[number % 2] if number > 1 else names[1 - number]
    CIRCLES.append(names[:2])


@kind
def imports():
    """The lock of a module, which says who imports it."""
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "slow_to_import.py"), "w") as file:
        file.write("import sys\nsys.slow_to_import()\n")
    sys.path.insert(0, folder)
    begins = threading.Event()
    sys.slow_to_import = lambda: (begins.set(), rest())

    def bring_in(there):
        there()
        __import__("slow_to_import")

    start("importer", bring_in)
    begins.wait()
    start("import waiter", bring_in)
    HOLDERS["import waiter"] = "importer"


@kind
def itself():
    """It wants what it has: called again, by __del__ in a collection, and with others that wait for it."""
    lock, other, items = threading.Lock(), threading.Lock(), queue.Queue()

    def again(there):
        with lock:
            there()
            inner()

    def inner():
        with lock:
            pass

    class Cyclic:
        def __init__(self):
            self.itself = self

        def __del__(self):
            with other:
                pass

    def collects(there):
        with other:
            Cyclic()
            there()
            gc.collect()

    class Puts:
        def __del__(self):
            items.put(1)

    def puts(there):
        with items.mutex:
            last = [Puts()]
            there()
            last.pop()

    for name, function, wanted in (("again", again, lock), ("collects", collects, other), ("puts", puts, items.mutex)):
        start(name, function)
        CIRCLES.append([name])
        HOLDERS[name] = name
        wait_for(wanted, name, name, 2)


@kind
def in_handler():
    """The main thread, by the handler of a signal. It comes last."""
    lock = threading.Lock()

    def handle(*_):
        with lock:
            pass

    signal.signal(signal.SIGALRM, handle)
    CIRCLES.append(["MainThread"])
    HOLDERS["MainThread"] = "MainThread"
    threading.Thread(target=tell_when_all_sleep, daemon=True).start()
    with lock:
        os.kill(os.getpid(), signal.SIGALRM)
        rest()


def tell_when_all_sleep():
    """All but the thread that asks; it ends the program, too."""
    own = int(os.readlink("/proc/thread-self").rpartition("/")[2])
    asleep = 0
    while asleep < 5:
        time.sleep(0.02)
        states = []
        for tid in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{tid}/stat") as file:
                states.append(file.read().rpartition(")")[2].split()[0] if int(tid) != own else "S")
        asleep = asleep + 1 if set(states) == {"S"} else 0
    print(json.dumps({"holders": HOLDERS, "circles": CIRCLES}), flush=True)
    sys.stdin.read()
    os._exit(0)  # threads that wait are not waited for


gc.disable()
wanted = sys.argv[1:] or [*KINDS]
for it in wanted:
    KINDS[it]()
tell_when_all_sleep()
