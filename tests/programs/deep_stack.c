/*
 * A stack of a chosen depth without frame pointers: DEPTH calls of one function, then a loop that burns CPU time, or two
 * threads at that depth that pass a byte to each other on one CPU. Prints "ready PID"; ends when standard input closes.
 *      deep_stack burn|switch DEPTH
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ping[2], pong[2], depth;
static volatile unsigned long sink;

static __attribute__((noinline)) void burn(void)
{
    for (;;)
        sink += 1;
}

static __attribute__((noinline)) void pass(int from, int to)
{
    char byte = 0;
    if (from == pong[0] && write(to, &byte, 1) != 1)
        exit(1);
    while (read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1)
        ;
}

static __attribute__((noinline)) void descend(int below, int what)
{
    char room[200]; /* a frame of usual size */
    memset(room, below, sizeof(room));
    sink += room[below % 200];
    if (below > 0)
        descend(below - 1, what);
    else if (what == 0)
        burn();
    else if (what == 1)
        pass(ping[0], pong[1]);
    else
        pass(pong[0], ping[1]);
    sink += room[(below + 1) % 200];
}

static void *thread(void *what)
{
    descend(depth, (int)(long)what);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t threads[2];
    cpu_set_t one;
    char byte;
    if (count < 3 || pipe(ping) || pipe(pong))
        return 2;
    depth = atoi(arguments[2]);
    if (strcmp(arguments[1], "burn") == 0) {
        pthread_create(&threads[0], NULL, thread, (void *)0);
    } else {
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        sched_setaffinity(0, sizeof(one), &one);
        pthread_create(&threads[0], NULL, thread, (void *)1);
        pthread_create(&threads[1], NULL, thread, (void *)2);
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
