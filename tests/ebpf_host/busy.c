// SPDX-License-Identifier: GPL-2.0-only
/* Calls through the PLT, prologues, epilogues, string functions and the allocator, in four threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
static __attribute__((noinline)) long down(int depth, char *text)
{
    char room[64], *parts[8];
    if (depth > 0)
        return down(depth - 1, text) + strlen(text);
    for (int i = 0; i < 8; i++) {
        snprintf(room, sizeof(room), "%d %s %g", i * 7919 % 31, text, i / 3.0);
        parts[i] = strdup(room);
    }
    qsort(parts, 8, sizeof(*parts), compare);
    for (int i = 0; i < 8; i++)
        free(parts[i]);
    return time(0) + parts[0][0] * 0;
}
static void *body(void *number)
{
    for (long i = 0;; i++)
        if (down((i + (long)number) % 20, "text") == 42)
            puts("");
    return 0;
}
int main(void)
{
    pthread_t thread;
    for (long i = 0; i < 3; i++)
        pthread_create(&thread, 0, body, (void *)i);
    puts("ready");
    fflush(stdout);
    body((void *)9);
}
