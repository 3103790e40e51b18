"""A Flask service of 8 threads of waitress, whose pages write to one journal under a lock; a child asks, ten at a time.

Prints `ready PID` when it answers; ends with its standard input. Flask and waitress from PyPI.
"""

import http.client
import logging
import os
import socket
import sys
import tempfile
import threading

import waitress
from flask import Flask
from lifetime import die_with_parent

app = Flask(__name__)
lock = threading.Lock()
journal = tempfile.TemporaryFile(dir=".")  # noqa: SIM115 - it stays open


def audit(line):
    with lock:
        journal.write(line)
        journal.flush()
        os.fsync(journal.fileno())


@app.get("/catalog")
def catalog():
    body = "\n".join(f"item {number:05}" for number in range(2000))
    audit(body[:4096].encode())
    return body


def ask(port):
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/catalog")
        connection.getresponse().read()
        connection.close()


def ask_for_ever(port):
    die_with_parent()
    for number in range(10):
        threading.Thread(target=ask, args=(port,), name=f"client-{number}").start()
    threading.Event().wait()


if __name__ == "__main__":
    logging.disable()
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        ask_for_ever(listener.getsockname()[1])
    server = waitress.create_server(app, sockets=[listener], threads=8)
    threading.Thread(target=server.run, name="server", daemon=True).start()
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()
