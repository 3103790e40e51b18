/* perf_maps PROCESSES LINES: processes that run code made at run time, whose perf maps are hard links of one file
 * with so many lines. Says "ready" when all of them run, and goes on until its standard input ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 20)
/* 1: dec edi; jnz 1b; ret */
static const unsigned char code[] = {0xff, 0xcf, 0x75, 0xfc, 0xc3};

int main(int argc, char **argv)
{
    int processes = atoi(argv[1]), lines = atoi(argv[2]), number, started[2];
    unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[64], link_name[64], byte;
    pid_t *pids = calloc(processes, sizeof(*pids));
    FILE *file;

    snprintf(name, sizeof(name), "/tmp/perf-%d.map", getpid());
    file = fopen(name, "w");
    if (argc < 3 || memory == MAP_FAILED || !file || pipe(started))
        return 1;
    for (number = 0; number < lines; number++)
        fprintf(file, "%lx 1 made_function_of_a_long_name_%d\n", (long)memory + number * 2, number);
    fclose(file);
    for (number = 0; number < processes; number++) {
        pids[number] = fork();
        if (!pids[number]) {
            unsigned char *place = memory + number * 7919 % 60000 * 16;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            memcpy(place, code, sizeof(code));
            if (write(started[1], "", 1) != 1)
                return 1;
            for (;;) {
                ((void (*)(int))place)(1000 * 1000);
                usleep(900 * 1000);
            }
        }
        snprintf(link_name, sizeof(link_name), "/tmp/perf-%d.map", pids[number]);
        if (link(name, link_name))
            return 1;
    }
    for (number = 0; number < processes; number++)
        if (read(started[0], &byte, 1) != 1)
            return 1;
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    for (number = 0; number < processes; number++) {
        kill(pids[number], SIGKILL);
        waitpid(pids[number], NULL, 0);
        snprintf(link_name, sizeof(link_name), "/tmp/perf-%d.map", pids[number]);
        unlink(link_name);
    }
    unlink(name);
    return 0;
}
