"""Every way to start a process or become another program, one after the other, each child doing a known thing.

A child says in one line of JSON on standard output who it is: {"how", "pid", "parent"}, works for 300 ms of CPU time in
`work` and sleeps for 100 ms in `rest`; then it says how long that was: {"how": "rested", ..., "us"}. Those of `short`
live for 20 ms only, all of them in `nap`. `exec_from` works in `before_exec`, then becomes the Python of --other, which
works in `after_exec`. With --reuse-pids (root) a child gets the pid of one that has ended, and works in `second_life`
where that one worked in `first_life`. --threads threads of one process end together after a sleep in `rest`. Ends by
itself. Standard library only.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

WORK_S, REST_S, NAP_S = 0.3, 0.1, 0.02
SHORT_COUNT = 30


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(500))


def say(how, **more):
    line = json.dumps({"how": how, "pid": os.getpid(), "parent": os.getppid(), **more})
    os.write(1, (line + "\n").encode())  # whole: lines of several processes


def work(how):
    say(how)
    burn(WORK_S)
    begin_ns = time.monotonic_ns()
    rest()
    say("rested", us=(time.monotonic_ns() - begin_ns) // 1000)


def rest():
    time.sleep(REST_S)


def nap():
    time.sleep(NAP_S)


def first_life():
    burn(WORK_S)


def second_life():
    burn(WORK_S)


def before_exec():
    burn(WORK_S)


def after_exec():
    burn(WORK_S)


def own(how):
    return [sys.executable, __file__, "--child", how]


def fork(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid


def wait_for(pid):
    os.waitpid(pid, 0)


def by_multiprocessing(method):
    context = multiprocessing.get_context(method)
    process = context.Process(target=work, args=(f"multiprocessing {method}",))
    process.start()
    process.join()


def by_pool():
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        pool.submit(work, "concurrent.futures").result()


def by_exec_in_a_thread():
    """The thread goes on under the tid of the first one."""

    def become():
        os.execv(sys.executable, own("execve in a thread"))

    def run():
        threading.Thread(target=become).start()
        time.sleep(10)

    wait_for(fork(run))


def by_exec_of_another(other):
    def run():
        say("exec_from")
        before_exec()
        os.execv(other, [other, __file__, "--child", "exec_to"])

    wait_for(fork(run))


def with_a_pid_again():
    """Linux gives out pids in order, after the last one."""
    wanted = fork(lambda: (say("first_life"), first_life()))
    wait_for(wanted)
    for _ in range(50):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(wanted - 1))
        pid = fork(lambda: os.getpid() == wanted and (say("second_life"), second_life()))
        wait_for(pid)
        if pid == wanted:
            return


def with_threads(count):
    say("threads")
    threads = [threading.Thread(target=rest) for _ in range(count)]
    threading.stack_size(65536)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shortly():
    for _ in range(SHORT_COUNT):
        wait_for(fork(lambda: (say("short"), nap())))
    for _ in range(SHORT_COUNT):
        subprocess.run(["/bin/sleep", str(NAP_S)], check=True)


def all_ways(options):
    wait_for(fork(work, "fork"))
    subprocess.run(own("subprocess"), check=True)  # vfork, or posix_spawn
    subprocess.run(own("subprocess, fork"), check=True, preexec_fn=lambda: None)
    wait_for(os.posix_spawn(sys.executable, own("posix_spawn"), os.environ))
    subprocess.run(["env", *own("env")], check=True)
    subprocess.run(["sh", "-c", '"$@"; true', "sh", *own("sh")], check=True)
    os.system(" ".join(own("system")))
    for method in ("fork", "spawn", "forkserver"):
        by_multiprocessing(method)
    by_pool()
    by_exec_in_a_thread()
    if options.uv:
        command = [options.uv, "run", "--no-project", "--offline", "--python", sys.executable]
        subprocess.run([*command, *own("uv run")[1:]], check=True)
    if options.other:
        by_exec_of_another(options.other)
    if options.reuse_pids:
        with_a_pid_again()
    shortly()
    if options.threads:
        wait_for(fork(with_threads, options.threads))


def main():
    parser = argparse.ArgumentParser(description="Starts processes in every way.")
    parser.add_argument("--other", help="another Python")
    parser.add_argument("--uv", help="where it is")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--reuse-pids", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "exec_to":
        say("exec_to")
        after_exec()
    elif options.child:
        work(options.child)
    else:
        all_ways(options)


if __name__ == "__main__":
    main()
