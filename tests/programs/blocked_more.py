"""Threads that each wait in another way than those of blocked.py: by libraries, other processes, queues of the kernel.

Prints and ends as blocked.py does. Runs on CPython 3.8 and later.
"""

import asyncio
import concurrent.futures
import ctypes
import fcntl
import functools
import http.client
import logging
import multiprocessing
import os
import queue
import sched
import select
import selectors
import socket
import socketserver
import subprocess
import threading

from blocked import CHILDREN, FOLDER, KEPT, LIBC, LONG_S, held, poll, say_and_stay, sleep, take, thread

CONTEXT = multiprocessing.get_context("fork")
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class SleepsAtEnd:
    def __del__(self):
        sleep()


class Logs(logging.Handler):
    def emit(self, record):
        sleep()


def kept(thing):
    KEPT.append(thing)
    return thing


def pipe():
    return kept(os.pipe())


def full_pipe():
    writer = pipe()[1]
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
    os.write(writer, bytes(4096))
    return writer


def bound(kind, name):
    made = kept(socket.socket(socket.AF_UNIX, kind))
    made.bind(os.path.join(FOLDER, name))
    return made


def server():
    return kept(socket.create_server(("127.0.0.1", 0)))


def with_timeout(made):
    made.settimeout(LONG_S)
    return made


def ask():
    """A server that never answers."""
    connection = http.client.HTTPConnection(*server().getsockname())
    connection.request("GET", "/")
    connection.getresponse()


def waits_in_loop():
    asyncio.run(asyncio.sleep(LONG_S))


def serves_by_selectors():
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as serving:
        serving.serve_forever(LONG_S)


def select_by_selectors(fd):
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.select()


def scheduled():
    scheduler = sched.scheduler()
    scheduler.enter(LONG_S, 0, print)
    scheduler.run()


def sorted_by_sleeper():
    """C calls Python, which sleeps."""
    LIBC.qsort((ctypes.c_int * 2)(2, 1), 2, 4, Callback(lambda *_: sleep()))


def drop():
    made = SleepsAtEnd()
    del made


def within(function):
    @functools.wraps(function)
    def called(*arguments):
        return function(*arguments)

    return called


def in_comprehension():
    return [each for each in (sleep() for _ in range(1))]


def log(logger):
    logger.error("hangs")


def sleeping_child():
    child = subprocess.Popen(["sleep", str(LONG_S)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    CHILDREN.append(child)
    return child


def forked():
    child = CONTEXT.Process(target=sleep)
    child.start()
    CHILDREN.append(child)
    return child


def full_queue():
    made = queue.Queue(1)
    made.put(1)
    return made


def waits_for_semaphore():
    """sem_init(3)"""
    made = kept(ctypes.create_string_buffer(64))
    LIBC.sem_init(made, 0, 0)
    LIBC.sem_wait(made)


def waits_for_condition():
    """pthread_cond_wait(3) of what nobody signals"""
    mutex, condition = kept(ctypes.create_string_buffer(64)), kept(ctypes.create_string_buffer(64))
    LIBC.pthread_mutex_lock(mutex)
    LIBC.pthread_cond_wait(condition, mutex)


def locks_twice():
    mutex = kept(ctypes.create_string_buffer(64))
    LIBC.pthread_mutex_lock(mutex)
    LIBC.pthread_mutex_lock(mutex)


def takes_of_system():
    """semop(2)"""
    made = LIBC.semget(0, 1, 0o1600)
    LIBC.semop(made, (ctypes.c_short * 3)(0, -1, 0), 1)


def receives_of_system():
    """msgrcv(2)"""
    made = LIBC.msgget(0, 0o1600)
    LIBC.msgrcv(made, kept(ctypes.create_string_buffer(64)), 8, 0, 0)


def reads_terminal():
    return kept(os.openpty())[0]


def watches_files():
    made = LIBC.inotify_init()
    LIBC.inotify_add_watch(made, FOLDER.encode(), 0x100)  # IN_CREATE
    return made


def send_all(made):
    made.sendall(bytes(1 << 24))


def start_all():
    thread("timed event", threading.Event().wait, LONG_S)
    thread("barrier", threading.Barrier(2).wait)
    thread("full queue", full_queue().put, 2)
    thread("unfinished queue", full_queue().join)
    thread("simple queue", queue.SimpleQueue().get)
    thread("timed queue", queue.LifoQueue().get, True, LONG_S)
    thread("future", concurrent.futures.Future().result)
    thread("futures", concurrent.futures.wait, [kept(concurrent.futures.Future())])
    thread("lock of processes", take, held(CONTEXT.Lock()))
    thread("event of processes", CONTEXT.Event().wait)
    thread("queue of processes", kept(CONTEXT.Queue()).get)
    thread("one way", kept(CONTEXT.Pipe(duplex=False))[0].recv)
    thread("both ways", kept(CONTEXT.Pipe())[0].recv)
    thread("joins process", forked().join)
    thread("waitid", os.waitid, os.P_PID, sleeping_child().pid, os.WEXITED)
    thread("wait4", os.wait4, sleeping_child().pid, 0)
    thread("communicate", sleeping_child().communicate)
    thread("reads child", sleeping_child().stdout.read)
    thread("pidfd", poll, LIBC.syscall(434, sleeping_child().pid, 0))  # SYS_pidfd_open
    thread("send", send_all, kept(socket.socketpair())[0])
    thread("full pipe", os.write, full_pipe(), b"x")
    udp = kept(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("127.0.0.1", 0))
    thread("udp", udp.recvfrom, 1)
    thread("datagrams", bound(socket.SOCK_DGRAM, "datagrams").recv, 1)
    listening = bound(socket.SOCK_STREAM, "listening")
    listening.listen()
    thread("local accept", listening.accept)
    thread("timed recv", with_timeout(kept(socket.socketpair())[0]).recv, 1)
    thread("timed accept", with_timeout(server()).accept)
    thread("http", ask)
    thread("only time", select.select, [], [], [], LONG_S)
    thread("selectors", select_by_selectors, pipe()[0])
    thread("asyncio", waits_in_loop)
    thread("socketserver", serves_by_selectors)
    thread("sched", scheduled)
    timer = threading.Timer(LONG_S, print)
    timer.name, timer.daemon = "timer", True
    timer.start()
    thread("callback", sorted_by_sleeper)
    thread("del", drop)
    thread("decorated", within(sleep))
    thread("comprehension", in_comprehension)
    thread("pause", LIBC.pause)
    thread("sem_wait", waits_for_semaphore)
    thread("cond_wait", waits_for_condition)
    thread("mutex", locks_twice)
    thread("semop", takes_of_system)
    thread("msgrcv", receives_of_system)
    thread("terminal", os.read, reads_terminal(), 1)
    thread("inotify", os.read, watches_files(), 1)
    logger = logging.getLogger("stuck")
    logger.addHandler(Logs())
    thread("logs", log, logger)
    thread("logs too", log, logger)


start_all()
say_and_stay()
