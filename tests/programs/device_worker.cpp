// A worker thread that has one batch ready after the other, which it gets from a block device; its front is Python.

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <linux/fs.h>
#include <mutex>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

// Never destroyed: that would wait for the worker.
static std::mutex &guard = *new std::mutex;
static std::condition_variable &changed = *new std::condition_variable;
static bool is_ready = false;

static struct Settings {
    int device;
    uint64_t bytes, locked_bytes;
    long cpu_us;
    pthread_mutex_t *lock;
} settings;

static std::atomic<long> device_ns; // in its ioctl()

static long now_ns(clockid_t clock)
{
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

// The device takes as long as it takes for so many bytes.
__attribute__((noinline)) static void flush_device(uint64_t bytes)
{
    uint64_t range[2] = {0, bytes};
    const long begun_ns = now_ns(CLOCK_MONOTONIC);
    ioctl(settings.device, BLKZEROOUT, range);
    device_ns += now_ns(CLOCK_MONOTONIC) - begun_ns;
}

// One process at a time.
__attribute__((noinline)) static void submit()
{
    pthread_mutex_lock(settings.lock);
    flush_device(settings.locked_bytes);
    pthread_mutex_unlock(settings.lock);
}

__attribute__((noinline)) static void decode()
{
    const long end_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + settings.cpu_us * 1000;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) {
    }
}

static void work()
{
    pthread_setname_np(pthread_self(), "feeder");
    for (;;) {
        if (settings.locked_bytes)
            submit();
        flush_device(settings.bytes);
        decode();
        std::unique_lock<std::mutex> held(guard);
        changed.wait(held, [] { return !is_ready; });
        is_ready = true;
        changed.notify_all();
    }
}

// lock_path: a file that the processes share, with room for a mutex; locked_bytes 0: none is taken.
extern "C" int worker_start(const char *device, const char *lock_path, uint64_t bytes, uint64_t locked_bytes,
                            long cpu_us)
{
    int file = open(lock_path, O_RDWR);
    void *shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    settings = {open(device, O_RDWR), bytes, locked_bytes, cpu_us, static_cast<pthread_mutex_t *>(shared)};
    if (settings.device < 0 || shared == MAP_FAILED)
        return errno;
    std::thread(work).detach();
    return 0;
}

// By one process, before the others begin.
extern "C" int worker_lock(const char *lock_path)
{
    void *shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(lock_path, O_RDWR), 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    return shared == MAP_FAILED ? errno : pthread_mutex_init(static_cast<pthread_mutex_t *>(shared), &attributes);
}

// Waits for a batch and takes it.
extern "C" void worker_take()
{
    std::unique_lock<std::mutex> held(guard);
    changed.wait(held, [] { return is_ready; });
    is_ready = false;
    changed.notify_all();
}

extern "C" long worker_device_ns()
{
    return device_ns;
}
