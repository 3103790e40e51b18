
#include <pthread.h>
static pthread_mutex_t mutex[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
void take(int n) { pthread_mutex_lock(&mutex[n]); }
void give(int n) { pthread_mutex_unlock(&mutex[n]); }
