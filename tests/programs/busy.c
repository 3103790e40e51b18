/* A function named NAME that is busy for some milliseconds of CPU time; as a library, or with main() as a program. */
#include <stdlib.h>
#include <time.h>

#define OUT_OF_LINE __attribute__((noinline, noclone))

static volatile unsigned long sink;

static long now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

OUT_OF_LINE void NAME(long milliseconds)
{
    for (long end = now_ns() + milliseconds * 1000000; now_ns() < end;)
        for (unsigned long i = 0; i < 100000; i++)
            sink += i;
}

#ifdef IS_PROGRAM
int main(int count, char **words)
{
    NAME(count > 1 ? atol(words[1]) : 100);
    return (int)sink & 1;
}
#endif
