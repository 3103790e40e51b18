/*
 * Ways to wait on a CPU, and loops that only look like it; for each the caller knows how long it took. Built with OpenMP.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static atomic_int flag;
static pthread_spinlock_t spin;

static double now(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* Computes for so many seconds of this thread's CPU time. */
__attribute__((noinline)) double compute(double seconds)
{
    double value = 1, end = now(CLOCK_THREAD_CPUTIME_ID) + seconds;

    while (now(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int turn = 0; turn < 20000; turn++)
            value = value * 1.0000001 + 1e-9;
    return value;
}

static void *set_later(void *seconds)
{
    struct timespec time = {0, (long)(*(double *)seconds * 1e9)};

    nanosleep(&time, NULL);
    atomic_store(&flag, 1);
    return NULL;
}

static void *hold(void *seconds)
{
    struct timespec time = {0, (long)(*(double *)seconds * 1e9)};

    pthread_spin_lock(&spin);
    atomic_store(&flag, 1);
    nanosleep(&time, NULL);
    pthread_spin_unlock(&spin);
    return NULL;
}

/* Gives its CPU away until another thread has set a flag. */
void yields(double seconds)
{
    pthread_t other;

    atomic_store(&flag, 0);
    pthread_create(&other, NULL, set_later, &seconds);
    while (!atomic_load(&flag))
        sched_yield();
    pthread_join(other, NULL);
}

/* Takes a spin lock that another thread has. */
void locks(double seconds)
{
    pthread_t other;

    pthread_spin_init(&spin, 0);
    atomic_store(&flag, 0);
    pthread_create(&other, NULL, hold, &seconds);
    while (!atomic_load(&flag))
        ;
    pthread_spin_lock(&spin);
    pthread_spin_unlock(&spin);
    pthread_join(other, NULL);
}

/* One part of two has all of the work; the other thread waits at the barrier. */
void uneven(double seconds)
{
#pragma omp parallel for schedule(static, 1) num_threads(2)
    for (int part = 0; part < 2; part++)
        if (!part)
            compute(seconds);
}

/* Both have the same. */
void even(double seconds)
{
#pragma omp parallel for schedule(static, 1) num_threads(2)
    for (int part = 0; part < 2; part++)
        compute(seconds);
}

/* Works, and gives its CPU away now and then, as cooperative loops do. */
void polite(double seconds)
{
    for (int turn = 0; turn < 10; turn++) {
        compute(seconds / 10);
        sched_yield();
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *take_turns(void *seconds)
{
    for (int turn = 0; turn < 10; turn++) {
        pthread_mutex_lock(&mutex);
        compute(*(double *)seconds / 20);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

/* Two threads that work under one lock, which sleeps. */
void mutexes(double seconds)
{
    pthread_t other;

    pthread_create(&other, NULL, take_turns, &seconds);
    take_turns(&seconds);
    pthread_join(other, NULL);
}
