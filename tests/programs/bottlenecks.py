"""Programs that one known thing slows down, and programs that nothing does: bottlenecks.py KIND.

Prints a line when it is under way; ends with its stdin. bottlenecks.py slow_http and slow_sql print a port, on which
they answer slowly: the argument of others. The line that a verdict should name ends in `here: KIND`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import fcntl
import http.server
import mmap
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from lifetime import die_with_input, die_with_parent


def shared_lock() -> None:
    """Eight processes; one keeps the lock much longer than the others."""
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    for _ in range(6):
        context.Process(target=take_turns, args=(lock, 0.002)).start()
    context.Process(target=hog, args=(lock,)).start()
    take_turns(lock, 0.002)


def take_turns(lock, seconds: float) -> None:  # type: ignore[no-untyped-def]
    die_with_parent()
    while True:
        with lock:  # here: shared_lock
            spin(seconds)


def hog(lock) -> None:  # type: ignore[no-untyped-def]
    die_with_parent()
    while True:
        with lock:  # here: shared_lock
            time.sleep(0.05)


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def file_lock() -> None:
    path = os.path.join(tempfile.gettempdir(), f"bottlenecks-{os.getpid()}")
    for _ in range(3):
        if not os.fork():
            die_with_parent()
            append(path)
    append(path)


def append(path: str) -> None:
    with open(path, "a") as file:
        while True:
            fcntl.flock(file, fcntl.LOCK_EX)  # here: file_lock
            time.sleep(0.02)
            fcntl.flock(file, fcntl.LOCK_UN)


class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(0.25 if self.path == "/slower" else 0.05)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def slow_http() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def upstream() -> None:
    port = int(sys.argv[2])
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:  # here: upstream
            answer.read()


async def ticks() -> None:
    while True:
        await asyncio.sleep(0.01)


async def handle() -> None:
    while True:
        time.sleep(0.03)  # here: blocking
        await asyncio.sleep(0)


async def both() -> None:
    await asyncio.gather(ticks(), handle())


def blocking() -> None:
    asyncio.run(both())


def disk() -> None:
    with tempfile.NamedTemporaryFile(dir=".") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())  # here: disk


def faults() -> None:
    """Memory that is given back and asked for again."""
    with mmap.mmap(-1, 64 << 20) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        while True:
            pages.madvise(mmap.MADV_DONTNEED)
            touch(pages)


def touch(pages: mmap.mmap) -> None:
    for place in range(0, len(pages), 4096):
        pages[place] = 1  # here: faults


def openmp() -> None:
    """Sixteen threads on a machine of fewer CPUs, which meet again and again."""
    step = ctypes.CDLL(sys.argv[2]).step
    while True:
        step(100_000)  # here: openmp


def crowded() -> None:
    """Others have the CPUs."""
    while True:
        compute()


def compute() -> None:
    for number in range(10_000):  # here: crowded
        number * number  # here: crowded


def pipe() -> None:
    slow = [sys.executable, "-c", "import sys, time\nwhile sys.stdin.buffer.read(4096): time.sleep(0.01)"]
    with subprocess.Popen(slow, stdin=subprocess.PIPE, preexec_fn=die_with_parent) as process:
        assert process.stdin is not None
        while True:
            process.stdin.write(b"x" * 65536)  # here: pipe


def database() -> None:
    """What a driver does: a socket, a request, an answer."""
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as connection:
        while True:
            connection.sendall(b"SELECT pg_sleep(0.05)")
            connection.recv(100)  # here: database


def slow_sql() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    connection, _ = listening.accept()
    while connection.recv(100):
        time.sleep(0.05)
        connection.sendall(b"1")


def ioctl() -> None:
    """A block device, a file below, that is told to write what it keeps."""
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.truncate(64 << 20)
        device = subprocess.run(["losetup", "-f", "--show", file.name], check=True, capture_output=True, text=True)
        path = device.stdout.strip()
        with open(path, "r+b", buffering=0) as disk:
            subprocess.run(["losetup", "-d", path], check=True)  # when it is closed
            while True:
                os.pwrite(disk.fileno(), bytes(1 << 20), 0)
                fcntl.ioctl(disk, 0x1261)  # BLKFLSBUF  # here: ioctl


# --- nothing slows these down


def idle_server() -> None:
    http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow).serve_forever()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(100):
        writer.write(b"ok")


async def serve_and_ask() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    while True:
        writer.write(b"hello")
        await reader.read(100)
        await asyncio.sleep(0.1)


def idle_asyncio() -> None:
    asyncio.run(serve_and_ask())


def idle_worker() -> None:
    """Jobs come from another process, a few a second."""
    jobs: queue.Queue[bytes] = queue.Queue()
    for _ in range(4):
        threading.Thread(target=work_off, args=(jobs,), daemon=True).start()
    listening = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        die_with_parent()
        with socket.create_connection(listening.getsockname()) as asking:
            while True:
                time.sleep(0.6)
                asking.sendall(b"job")
    connection, _ = listening.accept()
    while job := connection.recv(100):
        jobs.put(job)


def work_off(jobs: queue.Queue[bytes]) -> None:
    while True:
        jobs.get()
        spin(0.001)


def idle_cron() -> None:
    while True:
        time.sleep(1)
        spin(0.001)


def idle_prefork() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    for _ in range(4):
        if not os.fork():
            die_with_parent()
            while True:
                listening.accept()
    while True:
        os.wait()


def idle_pool() -> None:
    """A pool of processes that is given something every 0.6 s."""
    with multiprocessing.get_context("fork").Pool(2, die_with_parent) as pool:
        while True:
            pool.map(spin, [0.0005] * 4)
            time.sleep(0.6)


def idle_piped() -> None:
    """A process that another one tells what to do, every 0.6 s."""
    context = multiprocessing.get_context("fork")
    own, others = context.Pipe()

    def work() -> None:
        die_with_parent()
        while True:
            spin(others.recv())
            others.send("done")

    context.Process(target=work).start()
    while True:
        own.send(0.0005)
        own.recv()
        time.sleep(0.6)


def subscribed(message: bytes) -> socket.socket:
    """A connection on which a message comes each 0.6 s, after one line that asks for it."""
    listening = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        die_with_parent()
        connection, _ = listening.accept()
        connection.recv(100)
        while True:
            connection.sendall(message)
            time.sleep(0.6)
    asking = socket.create_connection(listening.getsockname())
    asking.sendall(b"subscribe\n")
    return asking


def idle_listener() -> None:
    async def listen() -> None:
        reader, _ = await asyncio.open_connection(sock=subscribed(b"message"))
        while await reader.read(100):
            spin(0.0005)

    asyncio.run(listen())


def idle_executor() -> None:
    """Threads of a pool that are given something every 0.6 s, by one that waits for all of it."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        while True:
            list(pool.map(spin, [0.0005] * 4))
            time.sleep(0.6)


IDLE_FORKS = ("idle_worker", "idle_prefork", "idle_pool", "idle_piped", "idle_listener")
FORK = ("shared_lock", "file_lock", *IDLE_FORKS)  # before there are threads
SERVE = ("slow_http", "slow_sql")  # they say where

if __name__ == "__main__":
    kind = globals()[sys.argv[1]]
    if sys.argv[1] in FORK:
        die_with_input()
        print("ready", flush=True)
        kind()
    threading.Thread(target=kind, name="main-work", daemon=True).start()
    if sys.argv[1] not in SERVE:
        print("ready", flush=True)
    sys.stdin.read()
