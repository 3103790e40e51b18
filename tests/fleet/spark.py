"""A Spark cluster on this machine: a standalone master and workers of the pyspark package, ended with the block."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

_LONGEST_WAIT_S = 300
# What takes long is that the virtual machines compile what they run, which is little here.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",  # else there is a task for each folder
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
}


@contextlib.contextmanager
def spark_cluster(folder: Path, workers: int) -> Iterator[tuple[str, dict[str, str]]]:
    """(address of the master, environment of who uses it); all ports are on 127.0.0.1."""
    settings = folder / "settings"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in _SETTINGS.items()))
    # Log messages are what tells that a part of it is ready.
    (settings / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.a.ref = a\n"
        "appender.a.type = Console\nappender.a.name = a\nappender.a.target = SYSTEM_ERR\n"
        "appender.a.layout.type = PatternLayout\nappender.a.layout.pattern = %p %m%n\n"
    )
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
    }
    with contextlib.ExitStack() as parts:
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = parts.enter_context(_running([_deploy("master.Master"), *common], environment))
        address = _said(master, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for number in range(workers):
            own = ["--cores", "1", "--memory", "512m", "--work-dir", str(folder / f"worker-{number}"), address]
            worker = parts.enter_context(_running([_deploy("worker.Worker"), *common, *own], environment))
            del worker
        for _ in range(workers):
            _said(master, r"Registering worker (\S+)")
        yield address, environment


def _deploy(name: str) -> str:
    return f"org.apache.spark.deploy.{name}"


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[Queue[str]]:
    """Its lines. Executors are in the session of their worker, and end with it."""
    import pyspark

    process = subprocess.Popen(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines: Queue[str] = Queue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in process.stderr or ()], daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()


def _said(lines: Queue[str], pattern: str) -> str:
    said = []
    while True:
        line = lines.get(timeout=_LONGEST_WAIT_S)
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found[1]
