/* thread_flood PROCESSES [fork]: starts threads, or processes, that end at once, for as long as it runs; in so many
 * processes. Says "ready" first. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void *nothing(void *argument)
{
    return argument;
}

int main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : 1;
    pthread_attr_t detached;
    pthread_t thread;

    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    puts("ready");
    fflush(stdout);
    for (; processes > 1; processes--)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            break;
        }
    for (;;) {
        if (argc < 3) {
            pthread_create(&thread, &detached, nothing, NULL);
        } else {
            if (!fork())
                _exit(0);
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
        }
    }
}
