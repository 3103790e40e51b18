/* What a collective communication library does, in small: the caller hands over its gradients and waits on a condition
 * variable; a thread that never saw Python adds up the parts and waits for the answer of a peer on a socket. The peer,
 * a second thread, stands for the other machine: it answers after the time that the wire would take.
 *
 * Functions are kept out of line so that a profile can be asked for them by name. */
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_LINE __attribute__((noinline))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static float *gradients; /* of the round in progress; NULL between rounds */
static size_t gradient_count;
static int sockets[2]; /* worker, peer */
static long wire_time_ns;

OUT_OF_LINE void average_gradients(float *values, size_t count)
{
    for (int rank = 0; rank < 8; rank++)
        for (size_t i = 0; i < count; i++)
            values[i] = (values[i] * 7.0f + values[i]) * 0.125f;
}

OUT_OF_LINE void wait_for_peers(void)
{
    char byte = 0;
    if (send(sockets[0], &byte, 1, 0) != 1 || recv(sockets[0], &byte, 1, 0) != 1)
        _exit(1);
}

static void *allreduce_worker(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "allreduce");
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!gradients)
            pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        average_gradients(gradients, gradient_count);
        wait_for_peers();
        pthread_mutex_lock(&mutex);
        gradients = NULL;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void *peer(void *unused)
{
    struct timespec wire_time = {0, wire_time_ns};
    char byte;
    (void)unused;
    prctl(PR_SET_NAME, "peer");
    while (recv(sockets[1], &byte, 1, 0) == 1) {
        nanosleep(&wire_time, NULL);
        if (send(sockets[1], &byte, 1, 0) != 1)
            break;
    }
    return NULL;
}

/* Starts both threads. Returns 0, or -1 if the machine refuses. */
int allreduce_start(long wire_ns)
{
    pthread_t thread;
    wire_time_ns = wire_ns;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return -1;
    if (pthread_create(&thread, NULL, peer, NULL) || pthread_create(&thread, NULL, allreduce_worker, NULL))
        return -1;
    return 0;
}

/* Averages in place; returns when the worker and the peer are done. */
void allreduce(float *values, size_t count)
{
    pthread_mutex_lock(&mutex);
    gradient_count = count;
    gradients = values;
    pthread_cond_broadcast(&changed);
    while (gradients)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}
