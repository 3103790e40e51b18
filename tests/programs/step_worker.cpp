// A worker thread that does what a front in Python asks for: milliseconds of work on the CPU or of sleep, one at a time.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

struct Job {
    long cpu_us = 0, sleep_us = 0;
    bool is_asked = false;
};

Job job;
// Never destroyed: that would wait for the worker.
std::mutex &guard = *new std::mutex;
std::condition_variable &changed = *new std::condition_variable;

void compute(long cpu_us) {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const long long end = now.tv_sec * 1000000000LL + now.tv_nsec + cpu_us * 1000;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while (now.tv_sec * 1000000000LL + now.tv_nsec < end);
}

void work() {
    std::unique_lock<std::mutex> held(guard);
    for (;;) {
        changed.wait(held, [] { return job.is_asked; });
        held.unlock();
        compute(job.cpu_us);
        std::this_thread::sleep_for(std::chrono::microseconds(job.sleep_us));
        held.lock();
        job.is_asked = false;
        changed.notify_all();
    }
}

}  // namespace

extern "C" void worker_start() { std::thread(work).detach(); }

// Returns when it is done.
extern "C" void worker_run(long cpu_us, long sleep_us) {
    std::unique_lock<std::mutex> held(guard);
    job = {cpu_us, sleep_us, true};
    changed.notify_all();
    changed.wait(held, [] { return !job.is_asked; });
}
