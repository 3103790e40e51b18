"""Programs that hang, each in another way, after one line: `ready PID JSON`. Who starts one ends its session.

python stuck.py KIND [later]

later: it says `ready PID` first, and hangs after a line on standard input.

The JSON is the truth. waits: of the threads that hang [reason, who has what they wait for: a thread or a process, 0:
nobody who is alive, null: no one in particular]; circles: threads that wait for one another.
"""

import ctypes
import fcntl
import functools
import gc
import json
import multiprocessing
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

LOCK = threading.Lock()
LISTENER = None  # kept open: its queue takes the connection, and no one answers
WAITS, CIRCLES, CHILDREN = {}, [], []


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def tell(reason, holder=None):
    """What the main thread waits for."""
    WAITS[os.getpid()] = [reason, holder]
    print("ready", os.getpid(), json.dumps({"waits": WAITS, "circles": CIRCLES}), flush=True)


def thread_id():
    return ctypes.CDLL(None).syscall(186)  # gettid; threading has it from 3.8 on


def listener():
    listens = socket.socket()
    listens.bind(("127.0.0.1", 0))
    listens.listen()
    return listens


def start(name, function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def killed_holder():
    """A lock of multiprocessing whose holder was killed."""
    lock = multiprocessing.get_context("fork").Lock()
    child = os.fork()
    if not child:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    tell("lock", 0)
    with lock:  # hangs
        pass


def held_at_fork():
    """A lock that another thread held at the fork: nobody in the child has it."""
    held = threading.Event()

    def hold():
        with LOCK:
            held.set()
            time.sleep(60)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    if os.fork():
        os.wait()
        os._exit(0)
    tell("lock", 0)
    LOCK.acquire()  # hangs


def twice():
    """The same lock twice."""
    LOCK.acquire()
    tell("lock", 0)
    LOCK.acquire()  # hangs


def full_pipe():
    """A pipe that nobody reads."""
    _, writer = os.pipe()
    tell("pipe", 0)
    while True:
        os.write(writer, b"log line " * 100)  # hangs


def unopened_fifo():
    """A FIFO that nobody writes to."""
    path = os.path.join(tempfile.mkdtemp(), "orders")
    os.mkfifo(path)
    tell("pipe")
    open(path).close()  # hangs


def file_locked():
    """A file that another process has locked."""
    with locked_by_another(fcntl.flock) as file:
        tell("file-lock", CHILDREN[0])
        fcntl.flock(file, fcntl.LOCK_EX)  # hangs


def range_locked():
    """A range of a file that another process has locked."""
    with locked_by_another(fcntl.lockf) as file:
        tell("file-lock", CHILDREN[0])
        fcntl.lockf(file, fcntl.LOCK_EX)  # hangs


def in_child(function):
    """Returns when a child has done this, which sleeps then."""
    told, tells = os.pipe()
    CHILDREN.append(os.fork())
    if not CHILDREN[-1]:
        end_with_parent()
        kept = function()  # noqa: F841 (a connection closes when it is gone)
        os.write(tells, b".")
        time.sleep(60)
        os._exit(0)
    os.read(told, 1)


def handle_of(path):
    return os.open(path, os.O_RDWR)


def locked_by_another(lock):
    """A file that a child has locked by this function."""
    handle, path = tempfile.mkstemp(prefix="stuck-file")
    in_child(lambda: lock(handle_of(path), fcntl.LOCK_EX))
    os.close(handle)
    file = open(path, "w")  # noqa: SIM115 (the caller closes it)
    os.unlink(path)
    return file


def child():
    """A child that never ends."""
    process = subprocess.Popen(["sleep", "60"])
    tell("child", process.pid)
    process.wait()  # hangs


def no_answer():
    """A server that takes the connection and says nothing."""
    global LISTENER
    LISTENER = listener()
    client = socket.create_connection(LISTENER.getsockname())
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    tell("net")
    client.recv(100)  # hangs


def no_answer_select():
    """The same, waited for by select()."""
    global LISTENER
    LISTENER = listener()
    client = socket.create_connection(LISTENER.getsockname())
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    tell("poll")
    select.select([client], [], [])  # hangs


def never_set():
    """An event that no one sets."""
    tell("lock")
    threading.Event().wait()  # hangs


def empty_queue():
    """The next item of a queue whose makers have ended."""
    items = queue.Queue()
    tell("lock")
    items.get()  # hangs


def joined():
    """A thread that sleeps for ever."""
    thread = start("sleeper", time.sleep, 60)
    tell("lock", thread.native_id)
    thread.join()  # hangs


def held():
    """A lock whose holder sleeps."""
    has_it = threading.Event()

    def hold():
        with LOCK:
            has_it.set()
            time.sleep(60)

    holder = start("holder", hold)
    has_it.wait()
    tell("lock", holder.native_id)
    with LOCK:  # hangs
        pass


def stopped():
    """Nothing, until it is stopped by who started it."""
    tell("sleep")
    while True:
        time.sleep(60)  # hangs


def released():
    """Not for ever: a thread waits for a lock that is given when a line comes in."""
    LOCK.acquire()
    has_told = threading.Event()

    def take():
        has_told.set()
        with LOCK:
            pass

    thread = threading.Thread(target=take, name="taker")
    thread.start()
    has_told.wait()
    tell("lock")
    sys.stdin.readline()
    LOCK.release()
    thread.join()
    print("released", flush=True)
    sys.stdin.readline()


def by_with(first, second, meet):
    with first:
        meet()
        with second:
            pass


def by_acquire(first, second, meet):
    first.acquire()
    meet()
    second.acquire()


def cross(take, make):
    """Two threads, two locks, and a third that wants one of them."""
    first, second, meet = make(), make(), threading.Barrier(3)
    left, right = start("left", take, first, second, meet.wait), start("right", take, second, first, meet.wait)
    meet.wait()
    third = start("third", take, first, second, time.time)
    WAITS.update({a.native_id: ["lock", b.native_id] for a, b in ((left, right), (right, left), (third, left))})
    CIRCLES.append([left.native_id, right.native_id])
    tell("lock", left.native_id)
    left.join()  # hangs


circle = functools.partial(cross, by_with, threading.Lock)
circle_acquired = functools.partial(cross, by_acquire, threading.Lock)  # nothing says who has a lock taken so
circle_of_rlocks = functools.partial(cross, by_acquire, threading.RLock)


def circle_of_processes():
    """Two locks of multiprocessing."""
    context = multiprocessing.get_context("fork")
    first, second, meet = context.Lock(), context.Lock(), context.Barrier(2)
    child = os.fork()
    if not child:
        end_with_parent()
        by_with(second, first, meet.wait)

    def met():
        meet.wait()
        between(child)

    by_with(first, second, met)


def between(child, reason="lock"):
    own = os.getpid()
    WAITS[child] = [reason, own]
    CIRCLES.append([own, child])
    tell(reason, child)


def circle_of_files():
    """Two files that two processes lock in another order."""
    meet = multiprocessing.get_context("fork").Barrier(2)
    paths = [tempfile.mkstemp(prefix="stuck-file")[1] for _ in range(2)]
    child = os.fork()
    end_with_parent()
    first, second = (handle_of(path) for path in (paths if child else paths[::-1]))
    fcntl.flock(first, fcntl.LOCK_EX)
    meet.wait()
    if child:
        between(child, "file-lock")
    fcntl.flock(second, fcntl.LOCK_EX)  # hangs


def want_own(reason="lock"):
    """The main thread wants what it has; another one lives."""
    start("lives", time.sleep, 60)
    CIRCLES.append([os.getpid()])
    tell(reason, os.getpid())


def handler():
    """The handler of a signal wants the lock that its thread has."""

    def handle(*_):
        with LOCK:  # hangs
            pass

    signal.signal(signal.SIGALRM, handle)
    with LOCK:
        want_own()
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(60)


def in_del():
    """So does what is deleted in a collection."""

    class Cyclic:
        def __init__(self):
            self.itself = self

        def __del__(self):
            with LOCK:  # hangs
                pass

    gc.disable()
    with LOCK:
        Cyclic()
        want_own()
        gc.collect()


def pool_of_itself():
    """The only thread of a pool waits for what the pool does."""
    import concurrent.futures  # each of those that few need takes time

    pool = concurrent.futures.ThreadPoolExecutor(1, "worker")
    workers = queue.Queue()

    def outer():
        workers.put(thread_id())
        pool.submit(int).result()

    future, worker = pool.submit(outer), workers.get()
    WAITS[worker] = ["lock", worker]
    CIRCLES.append([worker])
    tell("lock", worker)
    future.result()  # hangs


def pool_killed():
    """A process of a pool was killed while it worked: no one answers."""
    begun, told = os.pipe()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        answer = pool.apply_async(begin, (told,))
        os.read(begun, 1)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        tell("lock")
        answer.get()  # hangs


def pool_sleeps():
    """What a pool of processes was given sleeps."""
    import concurrent.futures

    begun, told = os.pipe()
    multiprocessing.set_start_method("fork", force=True)
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        future = pool.submit(begin, told)
        os.read(begun, 1)
        tell("lock")
        future.result()  # hangs


def begin(told):
    os.write(told, b"x")
    time.sleep(1e6)


def tasks_locked():
    """Two tasks, each of which has the lock that the other one waits for."""
    import asyncio

    async def take(one, other, has_both):
        async with one:
            has_both.append(one)
            while len(has_both) < 2:
                await asyncio.sleep(0)
            tell("poll")
            await other.acquire()  # hangs

    async def both():
        locks, has_both = (asyncio.Lock(), asyncio.Lock()), []
        await asyncio.gather(take(*locks, has_both), take(*reversed(locks), has_both))

    asyncio.run(both())


def own_pipe():
    """A pipe is read that no one else has."""
    end, _ = os.pipe()
    tell("pipe", 0)
    os.read(end, 1)  # hangs


def child_writes():
    """The end of a child is waited for, which writes into a full pipe that only its parent could read."""
    code = "import sys; sys.stdout.write('x' * 1000000)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    size = fcntl.fcntl(child.stdout, 1032)  # F_GETPIPE_SZ
    while struct.unpack("i", fcntl.ioctl(child.stdout, termios.FIONREAD, bytes(4)))[0] < size:
        time.sleep(0.01)
    tell("child", child.pid)
    child.wait()  # hangs


def kept_output():
    """The output of a child is waited for that has ended: a process that it began has it still."""
    child = subprocess.Popen(["sh", "-c", "sleep infinity &"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.wait()
    tell("poll")
    child.communicate()  # hangs


def child_reads():
    """What a child writes is read to its end, and the child reads what its parent could write."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdin.write(b"line\n")
    child.stdin.flush()
    child.stdout.readline()
    tell("pipe", child.pid)
    child.stdout.read()  # hangs


def unread_queue():
    """A child is waited for that has put more into a queue than its pipe holds, and nobody gets it."""
    of = multiprocessing.get_context("fork")
    items = of.Queue()

    def put():
        end_with_parent()
        items.put("x" * 1000000)

    child = of.Process(target=put)
    child.start()
    items._reader.poll(None)
    tell("child", child.pid)
    child.join()  # hangs


def silent_pair():
    """Two processes that each wait for the other to send first."""
    of = multiprocessing.get_context("fork")
    own, others = of.Pipe()

    def receive():
        end_with_parent()
        others.send(0)
        others.recv()

    child = of.Process(target=receive)
    child.start()
    own.recv()
    tell("net", child.pid)
    own.recv()  # hangs


def own_server():
    """A server that asks itself while it answers, and has one thread."""
    server = listener()
    in_child(lambda: (socket.create_connection(server.getsockname()), server.close()))
    server.accept()
    client = socket.create_connection(server.getsockname())
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    tell("net")
    client.recv(100)  # hangs


def asked():
    """A task waits for an answer that does not come."""
    import asyncio

    server = listener()

    async def ask():
        reader, writer = await asyncio.open_connection(*server.getsockname())
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        tell("net")
        await reader.read()  # hangs

    asyncio.run(ask())


def in_its_thread():
    """A task waits for a thread, which waits for a lock that nobody gives back."""
    import asyncio

    LOCK.acquire()

    async def wait():
        threading.Timer(0, tell, ("poll",)).start()
        await asyncio.get_running_loop().run_in_executor(None, LOCK.acquire)  # hangs

    asyncio.run(wait())


def gil_and_mutex():
    """A thread has a lock of C and wants the GIL; the main thread has the GIL and wants that lock."""
    mutex, has_it = ctypes.create_string_buffer(64), threading.Event()

    def work():
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        has_it.set()
        while True:
            time.sleep(0.001)

    start("worker", work)
    has_it.wait()
    tell("lock")
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # hangs


def never_woken():
    """A task waits for an event that nothing can set."""
    import asyncio

    async def wait():
        tell("poll")
        await asyncio.Event().wait()  # hangs

    asyncio.run(wait())


def loop_of_itself():
    """An event loop waits for what it does itself."""
    import asyncio

    async def wait():
        loop = asyncio.get_running_loop()
        tell("lock")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # hangs

    asyncio.run(wait())


def sqlite_busy():
    """A database that another process has locked: the library looks for it again and again."""
    import sqlite3

    path = os.path.join(tempfile.mkdtemp(), "database")

    def connect():
        return sqlite3.connect(path, timeout=600, isolation_level=None)

    def lock():
        connection = connect()
        connection.execute("BEGIN EXCLUSIVE")
        return connection

    in_child(lock)
    tell("sleep", CHILDREN[0])
    connect().execute("BEGIN EXCLUSIVE")  # hangs


def sqlite_own():
    """A database that another connection of the same process has locked, in another thread."""
    import sqlite3

    path = os.path.join(tempfile.mkdtemp(), "database")
    locked = threading.Event()

    def hold():
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        locked.set()
        time.sleep(600)

    threading.Thread(target=hold, daemon=True).start()
    locked.wait()
    tell("sleep", os.getpid())
    sqlite3.connect(path, timeout=600, isolation_level=None).execute("BEGIN IMMEDIATE")  # hangs


def lock_file(make):
    """A lock file of a library, which another process has."""
    path = os.path.join(tempfile.mkdtemp(), "lock")

    def lock():
        held = make(path)
        held.acquire()
        return held

    in_child(lock)
    tell("sleep", CHILDREN[0])
    make(path).acquire()  # hangs


def filelock():
    lock_file(__import__("filelock").FileLock)


def portalocker():
    from portalocker import Lock, LockFlags

    lock_file(lambda path: Lock(path, timeout=600, flags=LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING))


def fasteners():
    lock_file(__import__("fasteners").InterProcessLock)


def manager():
    """A lock of a manager, which another client has: the manager's process does not answer."""
    of = multiprocessing.get_context("fork").Manager()
    lock = of.Lock()
    start("holder", lock.acquire).join()
    tell("net", of._process.pid)
    lock.acquire()  # hangs


def main():
    end_with_parent()
    if "later" in sys.argv[2:]:
        print("ready", os.getpid(), flush=True)
        sys.stdin.readline()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
