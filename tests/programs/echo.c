/* A small TCP server and its client, in one process each way: `echo server` prints `ready PORT`, `echo client PORT`
 * prints `ready PID`. Both use threads, one for each of three connections, and end when standard input closes. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUT_OF_LINE __attribute__((noinline, noclone))
enum { CONNECTIONS = 3, BYTES = 4096 };

OUT_OF_LINE void answer_request(unsigned char *bytes, long count)
{
    for (int turn = 0; turn < 40; turn++)
        for (long i = 0; i < count; i++)
            bytes[i] = (unsigned char)(bytes[i] * 7 + turn);
}

static void *serve(void *argument)
{
    int fd = (int)(long)argument;
    unsigned char bytes[BYTES];
    for (long count; (count = recv(fd, bytes, BYTES, 0)) > 0;) {
        answer_request(bytes, count);
        if (send(fd, bytes, (size_t)count, 0) != count)
            break;
    }
    close(fd);
    return NULL;
}

static void *accept_all(void *argument)
{
    for (;;) {
        pthread_t thread;
        int fd = accept((int)(long)argument, NULL, NULL);
        if (fd >= 0)
            pthread_create(&thread, NULL, serve, (void *)(long)fd);
    }
    return NULL;
}

static void *ask(void *argument)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)(long)argument)};
    unsigned char bytes[BYTES] = {1};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        exit(1);
    for (;;) {
        if (send(fd, bytes, BYTES, 0) != BYTES)
            return NULL;
        for (long left = BYTES, count; left > 0; left -= count)
            if ((count = recv(fd, bytes, (size_t)left, 0)) <= 0)
                return NULL;
        usleep(1000);
    }
}

int main(int count, char **words)
{
    char line;
    pthread_t thread;
    if (count > 2 && !strcmp(words[1], "client")) {
        for (int i = 0; i < CONNECTIONS; i++)
            pthread_create(&thread, NULL, ask, (void *)atol(words[2]));
        printf("ready %d\n", (int)getpid());
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET};
        socklen_t size = sizeof address;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 8))
            return 1;
        getsockname(fd, (struct sockaddr *)&address, &size);
        pthread_create(&thread, NULL, accept_all, (void *)(long)fd);
        printf("ready %d\n", ntohs(address.sin_port));
    }
    fflush(stdout);
    while (read(0, &line, 1) > 0)
        ;
    _exit(0);
}
