/*
 * In place of CUDA's driver (with -DDRIVER) and its runtime: functions that take so many microseconds, and wait in the way
 * that GPU_WAITS says: spin, yield, block (a futex that a thread of the driver wakes), poll (of a device file) or sleep.
 * A thread of the driver polls a device file all the time.
 */
#ifdef DRIVER
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static long wanted_us;
static int tty;

static long long now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1000000000LL * time.tv_sec + time.tv_nsec;
}

static void nap(long microseconds)
{
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};

    nanosleep(&time, NULL);
}

static void *handle_events(void *nothing)
{
    struct pollfd device = {tty, POLLIN, 0};

    for (;;)
        poll(&device, 1, 100);
    return nothing;
}

static void *complete(void *nothing)
{
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!wanted_us)
            pthread_cond_wait(&asked, &mutex);
        nap(wanted_us);
        wanted_us = 0;
        pthread_cond_broadcast(&done);
    }
    return nothing;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;

    tty = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    pthread_create(&thread, NULL, handle_events, NULL);
    pthread_create(&thread, NULL, complete, NULL);
}

static int wait_for(long microseconds)
{
    const char *way = getenv("GPU_WAITS");
    long long end = now_ns() + 1000LL * microseconds;
    struct pollfd device = {tty, POLLIN, 0};

    if (!strcmp(way, "sleep"))
        nap(microseconds);
    else if (!strcmp(way, "poll"))
        poll(&device, 1, (int)(microseconds / 1000));
    else if (!strcmp(way, "block")) {
        pthread_mutex_lock(&mutex);
        wanted_us = microseconds;
        pthread_cond_signal(&asked);
        while (wanted_us)
            pthread_cond_wait(&done, &mutex);
        pthread_mutex_unlock(&mutex);
    } else
        while (now_ns() < end)
            if (!strcmp(way, "yield"))
                sched_yield();
    return 0;
}

__attribute__((noinline)) int cuStreamSynchronize(long microseconds)
{
    return wait_for(microseconds) + 0 * tty;
}

/* What a call does itself, on a CPU, before it waits or beside that. */
static int work_for(long microseconds)
{
    static volatile char from[1 << 16], to[1 << 16];
    long long end = now_ns() + 1000LL * microseconds;

    for (int turn = 0; now_ns() < end; turn++)
        for (size_t at = 0; at < sizeof(from); at++)
            to[at] = (char)(from[at] + turn);
    return 0;
}

/* Copies, and has not to wait. */
__attribute__((noinline)) int cuMemcpyHtoDAsync_v2(long microseconds)
{
    return work_for(microseconds) + 0 * tty;
}

/* Waits for what the device computes, then copies a little. */
__attribute__((noinline)) int cuMemcpyDtoHAsync_v2(long microseconds)
{
    return wait_for(microseconds * 9 / 10) + work_for(microseconds / 10);
}

/* There is no room: it waits until there is. */
__attribute__((noinline)) int cuLaunchKernelEx(long microseconds)
{
    return wait_for(microseconds) + 0 * tty;
}

__attribute__((noinline)) int cuMemAlloc_v2(long microseconds)
{
    return work_for(microseconds) + 0 * tty;
}

__attribute__((noinline)) int cuLaunchKernel(long microseconds)
{
    return work_for(microseconds) + 0 * tty;
}
#else
int cuStreamSynchronize(long), cuMemcpyHtoDAsync_v2(long), cuMemcpyDtoHAsync_v2(long), cuLaunchKernelEx(long);
int cuMemAlloc_v2(long), cuLaunchKernel(long);

#define CALLS(name, driver)                                \
    __attribute__((noinline)) int name(long microseconds)  \
    {                                                      \
        int failed = driver(microseconds);                 \
                                                           \
        __asm__ volatile("" : "+r"(failed)); /* no jump */ \
        return failed;                                     \
    }

CALLS(cudaStreamSynchronize, cuStreamSynchronize)
CALLS(cudaMemcpyAsync, cuMemcpyHtoDAsync_v2)
CALLS(cudaMemcpy, cuMemcpyDtoHAsync_v2)
CALLS(cudaLaunchKernelExC, cuLaunchKernelEx)
CALLS(cudaMalloc, cuMemAlloc_v2)
CALLS(cudaLaunchKernel, cuLaunchKernel)
#endif
