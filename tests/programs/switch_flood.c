/* switch_flood PAIRS: so many pairs of threads hand a byte to one another through pipes, for as long as it runs. Says
 * "ready" first. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct ends {
    int in, out;
};

static void *hand_on(void *argument)
{
    struct ends *ends = argument;
    char byte;

    while (read(ends->in, &byte, 1) == 1 && write(ends->out, &byte, 1) == 1)
        ;
    return NULL;
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 1;
    struct ends *ends = calloc(2 * pairs, sizeof(*ends));
    pthread_t thread;

    for (int i = 0; i < pairs; i++) {
        int there[2], back[2];
        if (pipe(there) || pipe(back))
            return 1;
        ends[2 * i] = (struct ends){there[0], back[1]};
        ends[2 * i + 1] = (struct ends){back[0], there[1]};
        if (pthread_create(&thread, NULL, hand_on, &ends[2 * i]) ||
            pthread_create(&thread, NULL, hand_on, &ends[2 * i + 1]) || write(there[1], "", 1) != 1)
            return 1;
    }
    puts("ready");
    fflush(stdout);
    pthread_exit(NULL);
}
