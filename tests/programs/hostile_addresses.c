/* Threads whose stacks of 380 frames never have the same return addresses: all of it is made up, left by frame pointers.
 * hostile_addresses THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1ULL << 40)
#define FRAMES 380

/* push rbp; mov rbp, rdi; mov rdi, rsi; xor esi, esi; mov eax, 35 (nanosleep); syscall; pop rbp; ret */
static const unsigned char stub[] = "\x55\x48\x89\xfd\x48\x89\xf7\x31\xf6\xb8\x23\0\0\0\x0f\x05\x5d\xc3";
static char *room;

static void *sleep_with_a_stack(void *seed)
{
    struct {
        uint64_t next, address;
    } chain[FRAMES + 1];
    struct timespec pause = {0, 1100000};
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15ULL + 1;
    for (;;) {
        for (int i = 0; i < FRAMES; i++) {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            chain[i].next = (uintptr_t)&chain[i + 1];
            chain[i].address = (uintptr_t)room + (state >> 24) % ROOM;
        }
        chain[FRAMES].next = chain[FRAMES].address = 0;
        ((void (*)(void *, struct timespec *))room)(chain, &pause);
    }
    return NULL;
}

int main(int count, char **words)
{
    int threads = count > 1 ? atoi(words[1]) : 1;
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return 1;
    memcpy(room, stub, sizeof(stub));
    for (intptr_t i = 1; i <= threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, sleep_with_a_stack, (void *)i);
    }
    printf("ready %d\n", getpid());
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
}
