/*
 * A program of C that embeds CPython, with threads of its own that call Python functions.
 *
 *     embeds LIBRARY KEYS   LIBRARY is loaded late; "" when libpython is linked. KEYS pthread keys are made before.
 *
 * Threads: `attached` enters Python once and calls called_again() for ever; `attaching` enters it for each call of
 * called_now_and_then(), leaves it and works in between(); `beat` and the main thread are Python's own. Prints, when each
 * function was called, one line of JSON: {"attached": TID, "attaching": TID, "main": TID}. Ends with standard input.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char program[] = "import sys, threading, time\n"
                              "def work():\n"
                              "    end = time.perf_counter() + 0.002\n"
                              "    while time.perf_counter() < end: pass\n"
                              "    time.sleep(0.002)\n"
                              "def called_again(): work()\n"
                              "def called_now_and_then(): work()\n"
                              "def beat():\n"
                              "    while not threading.Event().wait(0.01): pass\n"
                              "threading.Thread(target=beat, daemon=True).start()\n";
static const char wait_for_the_end[] = "sys.stdin.readline()\n";

static void *library;
static int (*ensure)(void);
static void (*release)(int);
static void *(*call)(void *function, void *arguments);
static void *called_again, *called_now_and_then;
static int attached_tid, attaching_tid;
static sem_t called;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

static __attribute__((noinline)) void between(void)
{
    struct timespec now, nap = {.tv_nsec = 2000000};
    long long end = 0;

    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
        end = end ? end : now_ns + 2000000;
        if (now_ns >= end)
            break;
    } while (1);
    nanosleep(&nap, NULL);
}

static __attribute__((noinline)) void *attached(void *unused)
{
    attached_tid = gettid();
    ensure();
    for (long turn = 0;; turn++) {
        call(called_again, NULL);
        if (turn == 0)
            sem_post(&called);
    }
    return unused;
}

static __attribute__((noinline)) void *attaching(void *unused)
{
    attaching_tid = gettid();
    for (long turn = 0;; turn++) {
        int state = ensure();

        call(called_now_and_then, NULL);
        release(state);
        if (turn == 0)
            sem_post(&called);
        between();
    }
    return unused;
}

int main(int count, char **words)
{
    int is_late = count > 1 && words[1][0], keys = count > 2 ? atoi(words[2]) : 0;
    pthread_key_t key;
    pthread_t thread;

    for (int number = 0; number < keys; number++)
        pthread_key_create(&key, NULL);
    library = dlopen(is_late ? words[1] : NULL, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    ((void (*)(void))symbol("Py_Initialize"))();
    int (*run)(const char *) = symbol("PyRun_SimpleString");
    void *(*module)(const char *) = symbol("PyImport_AddModule");
    void *(*attribute)(void *, const char *) = symbol("PyObject_GetAttrString");

    ensure = symbol("PyGILState_Ensure");
    release = symbol("PyGILState_Release");
    call = symbol("PyObject_CallObject");
    if (run(program))
        return 1;
    called_again = attribute(module("__main__"), "called_again");
    called_now_and_then = attribute(module("__main__"), "called_now_and_then");
    sem_init(&called, 0, 0);
    pthread_create(&thread, NULL, attached, NULL);
    pthread_create(&thread, NULL, attaching, NULL);
    void *own = ((void *(*)(void))symbol("PyEval_SaveThread"))();

    sem_wait(&called);
    sem_wait(&called);
    printf("{\"attached\": %d, \"attaching\": %d, \"main\": %d}\n", attached_tid, attaching_tid, gettid());
    fflush(stdout);
    ((void (*)(void *))symbol("PyEval_RestoreThread"))(own);
    run(wait_for_the_end);
    _exit(0);
}
