/* Busy for so many microseconds of about every 100 milliseconds, below three functions; ends when standard input closes.
   The time between is not the same each time: 101 ms is ten periods of a clock of 99 Hz, which would meet it never. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_LINE __attribute__((noinline, noclone))

static volatile unsigned long sink;

static long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

OUT_OF_LINE void add_up(long until)
{
    while (now_ns() < until)
        for (unsigned long i = 0; i < 1000; i++)
            sink += i;
}

OUT_OF_LINE void do_turn(long busy_us)
{
    add_up(now_ns() + busy_us * 1000);
    sink++;
}

int main(int count, char **words)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    printf("ready %d\n", getpid());
    fflush(stdout);
    for (int turn = 0; poll(&input, 1, 80 + 7 * turn % 41) == 0; turn++)
        do_turn(count > 1 ? atol(words[1]) : 1000);
    return 0;
}
