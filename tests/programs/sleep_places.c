/* What sleep_places.py does, in C only: 60 threads that go to sleep for good at depths and in ways of their own, once a
 * line comes on standard input; some below callbacks of qsort, some in a signal handler. Prints `ready PID`, `asleep`. */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 60 };
static sem_t ready, go, on_their_way, never;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static __thread int depth;

static __attribute__((noinline)) int rest(int kind)
{
    sem_post(&on_their_way);
    switch (kind % 5) {
    case 0:
        return (int)sleep(6000) + 1;
    case 1:
        return sem_wait(&never) + 1;
    case 2:
        return poll(NULL, 0, -1) + 1;
    case 3:
        pthread_mutex_lock(&mutex);
        return pthread_cond_wait(&condition, &mutex) + 1;
    default:
        return pause() + 1;
    }
}

static __attribute__((noinline)) int down(int left, int kind)
{
    volatile char room[16 + 56 * (left % 9)];
    room[0] = (char)left;
    return (left ? down(left - 1, kind) : rest(kind)) + room[0];
}

static void handler(int number)
{
    down(number % 3, 4);
}

static int compare(const void *a, const void *b)
{
    int again[3] = {3, 1, *(const int *)a};
    if (depth-- > 0)
        qsort(again, 3, sizeof(int), compare);
    raise(SIGUSR1);
    return *(const int *)a - *(const int *)b + again[0];
}

static void *place(void *argument)
{
    int index = (int)(long)argument, numbers[4] = {4, 2, 1, 3};
    sem_post(&ready);
    sem_wait(&go);
    if (index % 3)
        return (void *)(long)down(index, index);
    depth = index / 3;
    qsort(numbers, 4, sizeof(int), compare);
    return (void *)(long)numbers[0];
}

int main(void)
{
    pthread_t thread;
    char line;
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGUSR1, handler);
    for (long index = 0; index < THREADS; index++)
        pthread_create(&thread, NULL, place, (void *)index);
    for (int index = 0; index < THREADS; index++)
        sem_wait(&ready);
    printf("ready %d\n", (int)getpid());
    if (read(0, &line, 1) != 1)
        return 1;
    for (int index = 0; index < THREADS; index++)
        sem_post(&go);
    for (int index = 0; index < THREADS; index++)
        sem_wait(&on_their_way);
    printf("asleep\n");
    while (read(0, &line, 1) > 0)
        ;
    _exit(0);
}
