/* A library that starts a thread as it is loaded, which sleeps at once and for good. */
#include <pthread.h>
#include <unistd.h>

static void *parked(void *none)
{
    pause();
    return none;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, parked, NULL);
}
