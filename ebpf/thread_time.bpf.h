/* SPDX-License-Identifier: GPL-2.0-only */
/* A thread's time: runs on a CPU and waits are added to its totals; waits are also sent one by one, or summed up. */
#pragma once

/* include/linux/sched.h */
#define TASK_STATE_INTERRUPTIBLE 0x01
#define TASK_STATE_UNINTERRUPTIBLE 0x02
#define TASK_STATE_DEAD 0x80
#define TASK_STATE_WAKING 0x200

/* arch/x86/entry/syscalls/syscall_64.tbl */
#define SYSCALL_POLL 7
#define SYSCALL_EXECVE 59
#define SYSCALL_PPOLL 271

/* The system call that the current task's user registers say it is in; -1: none. */
static __always_inline __s16 syscall_of(__u64 registers)
{
    __u64 number = USER_REGISTER(registers, REGISTER_ORIG_AX); /* negative after an interrupt or a fault */
    return number >= 0x7fff || (USER_CS(registers) & 3) != 3 ? -1 : (__s16)number;
}

/*
 * The current thread's system call, which it waits in, and its arguments. What a poll() waits for is read now: its list is
 * mostly on the stack, where something else is when the wait is over.
 */
static __always_inline void note_syscall(struct bp_thread *thread)
{
    __u64 registers = user_registers();
    thread->syscall = syscall_of(registers);
    if (thread->syscall < 0)
        return;
    thread->args[0] = USER_REGISTER(registers, REGISTER_DI);
    thread->args[1] = USER_REGISTER(registers, REGISTER_SI);
    thread->args[2] = USER_REGISTER(registers, REGISTER_DX);
    if ((thread->syscall == SYSCALL_POLL || thread->syscall == SYSCALL_PPOLL) && thread->args[1] == 1) {
        __u64 polled = 0; /* fd, events, revents: include/uapi/asm-generic/poll.h */
        if (READ_USER(polled, thread->args[0]))
            thread->args[0] = 1ULL << BP_POLLED_BIT | (polled & ((1ULL << BP_POLLED_BITS) - 1));
    }
}

/* What the scheduler counts of a task: sum_exec_runtime and run_delay. */
struct task_times {
    __u64 exec_ns;
    __u64 run_delay_ns;
};

static __always_inline struct task_times times_of_current(void)
{
    __u64 task = (__u64)CURRENT_TASK;
    struct task_times times = {};
    times.exec_ns = LOAD_MEMBER(u64, task, BP_OFFSET_TASK_EXEC);
    if (BP_OFFSET_TASK_RUN_DELAY)
        times.run_delay_ns = LOAD_MEMBER(u64, task, BP_OFFSET_TASK_RUN_DELAY);
    return times;
}

static __always_inline struct task_times times_of(__u64 task)
{
    struct task_times times = {};
    READ_KERNEL(times.exec_ns, task + BP_OFFSET_TASK_EXEC);
    if (BP_OFFSET_TASK_RUN_DELAY)
        READ_KERNEL(times.run_delay_ns, task + BP_OFFSET_TASK_RUN_DELAY);
    return times;
}

/* The address of the futex that the thread waits for, 0: it waits for none. */
static __always_inline __u64 futex_of(struct bp_thread *thread)
{
    return thread->syscall == SYSCALL_FUTEX ? thread->args[0] : 0;
}

/* Sends the sum of some of a thread's short waits and empties it. */
static __always_inline void send_short(struct bp_thread *thread, __u32 tid, struct bp_short_wait *sum, __u64 now)
{
    struct bp_event event = {.kind = BP_EVENT_SHORT, .tid = tid, .tgid = thread->tgid, .time_ns = now};
    event.syscall = sum->syscall;
    event.task_state = sum->task_state;
    event.flags = sum->flags;
    event.args[0] = sum->arg;
    event.args[1] = sum->count;
    event.blocked_ns = sum->blocked_ns;
    event.runqueue_ns = sum->runqueue_ns;
    sum->count = 0;
    send_event(&event);
}

/* Whether a wait or a sum of the thread may be sent, which can be added up in its place. */
static __always_inline bool may_send(struct bp_thread *thread, struct bp_config *config)
{
    if (!config->is_late)
        return true;
    if (!is_half_full(MAP(events))) {
        config->is_late = 0;
        return true;
    }
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &thread->tgid);
    return !process || has_room(MAP(events), &process->in_events, sizeof(struct bp_event));
}

/*
 * Adds a wait up with others of its kind, in place of sending it. Where there are too many kinds and no room to send a sum,
 * one of them becomes what is known of both: nothing but the time.
 */
static __always_inline void add_short(struct bp_thread *thread, __u32 tid, __u64 now, __u64 blocked, __u64 runqueue,
                                      __u8 flags, bool has_part)
{
    __u32 arg = thread->syscall >= 0 && thread->args[0] < 0x10000 ? thread->args[0] : 0;
    __u32 place = thread->next_short;
    struct bp_short_wait *sum;

    BOUNDED_LOOP
    for (int i = 0; i < BP_SHORT_WAITS; i++) {
        sum = &thread->short_waits[i];
        thread->last_short = i + 1;
        if (!sum->count || (sum->syscall == thread->syscall && sum->task_state == thread->task_state &&
                            sum->flags == flags && sum->arg == arg))
            goto found;
    }
    thread->last_short = 1 + (place & (BP_SHORT_WAITS - 1));
    sum = &thread->short_waits[place & (BP_SHORT_WAITS - 1)];
    if (has_part) {
        thread->next_short = place + 1;
        send_short(thread, tid, sum, now);
    } else {
        sum->syscall = -1;
        sum->task_state = TASK_STATE_INTERRUPTIBLE;
        sum->flags = BP_UNSAMPLED;
        sum->arg = 0;
    }
found:
    if (!sum->count) {
        sum->syscall = thread->syscall;
        sum->task_state = thread->task_state;
        sum->flags = flags;
        sum->arg = arg;
        sum->blocked_ns = 0;
        sum->runqueue_ns = 0;
    }
    sum->count += 1;
    sum->blocked_ns += blocked;
    sum->runqueue_ns += runqueue;
}

/* `is_current`: its name can be read, which it may have changed since user space read it. */
static __always_inline void send_exit(struct bp_thread *thread, __u32 tid, __u64 now, bool is_current)
{
    BOUNDED_LOOP
    for (int i = 0; i < BP_SHORT_WAITS; i++) {
        if (thread->short_waits[i].count)
            send_short(thread, tid, &thread->short_waits[i], now);
    }
    struct bp_event event = {.kind = BP_EVENT_EXIT, .tid = tid, .tgid = thread->tgid, .time_ns = now};
    event.on_cpu_ns = thread->on_cpu_ns;
    event.blocked_ns = thread->blocked_ns;
    event.runqueue_ns = thread->runqueue_ns;
    event.stolen_ns = thread->stolen_ns;
    event.early_ns = thread->early_ns;
    event.enqueue_ns = thread->enqueue_ns;
    thread->early_ns = 0; /* another thread may go on under its tid: take_over() */
    thread->enqueue_ns = 0;
    if (is_current)
        bpf_get_current_comm(event.args, BP_COMM_BYTES);
    send_event(&event);
}

/* What corrects the row of a wait has 32 bits. */
static __always_inline __u64 in_32_bits(__u64 nanoseconds)
{
    return nanoseconds < 0xffffffff ? nanoseconds : 0xffffffff;
}

/*
 * Of the last wait's `runqueue` what went by before the thread was on a run queue, which to one of an idle virtual CPU is
 * some microseconds: the scheduler's run delay does not have it. It can have more than there was: some sleep of a thread
 * that was moved to another CPU (DELAY_DEQUEUE, kernel/sched/features.h, 6.12 and later). One that is said to have been
 * runnable all the time was not, where the run delay denies much of it: a switch was not told.
 */
static __always_inline __u64 before_enqueueing(struct bp_thread *thread, __u64 run_delay, __u64 runqueue)
{
    __u64 queued = run_delay - thread->run_delay_ns;
    thread->run_delay_ns = run_delay;
    if (!BP_OFFSET_TASK_RUN_DELAY || queued >= runqueue)
        return 0;
    return thread->task_state || runqueue - queued > BP_LONG_WAIT_NS ? in_32_bits(runqueue - queued) : 0;
}

/*
 * Books the time on a CPU that ends now. How much of it the thread ran is the scheduler's own figure. It leaves out what
 * the hypervisor took: time in which the thread was runnable and did not run. And it can begin before the switch, for the
 * scheduler saves reading its clock between a wake-up and the switch that follows (rq_clock_skip_update()), while an idle
 * CPU takes some microseconds to get there: that is taken off the time in the run queue before.
 */
static __always_inline void end_run(struct bp_thread *thread, struct task_times times, __u64 now)
{
    __u64 wall = now - thread->since_ns;
    __s64 beyond = wall - (times.exec_ns - thread->exec_ns); /* what was not its own */
    __u64 stolen = 0, early = 0;
    __u32 last_short = thread->last_short;
    thread->exec_ns = times.exec_ns;
    if (beyond > BP_STOLEN_MIN_NS)
        stolen = beyond < (__s64)wall ? (__u64)beyond : wall;
    else if (beyond > 0)
        thread->exec_ns += beyond; /* how far apart two clocks were read: kept until it is more */
    else
        early = in_32_bits(-beyond < (__s64)thread->last_runqueue_ns ? (__u64)-beyond : thread->last_runqueue_ns);
    __u64 before = before_enqueueing(thread, times.run_delay_ns, thread->last_runqueue_ns - early);
    thread->run_stolen_ns += stolen;
    thread->stolen_ns += stolen;
    thread->on_cpu_ns += wall - stolen + early;
    thread->runqueue_ns -= early + before;
    thread->blocked_ns += before;
    thread->last_runqueue_ns = 0;
    if (last_short) {
        struct bp_short_wait *sum = &thread->short_waits[(last_short - 1) & (BP_SHORT_WAITS - 1)];
        sum->runqueue_ns -= early + before;
        sum->blocked_ns += before;
    } else {
        thread->early_ns += early;
        thread->enqueue_ns += before;
    }
    thread->since_ns = now;
}

/* The wait that ends now, of a thread that was runnable from `woken` on. */
static __always_inline void send_wait(struct bp_thread *thread, __u32 tid, __u64 now, __u64 woken)
{
    struct bp_event event = {.kind = BP_EVENT_WAIT, .tid = tid, .tgid = thread->tgid, .time_ns = now};
    event.status = thread->status;
    event.cpu = bpf_get_smp_processor_id();
    event.syscall = thread->syscall;
    event.task_state = thread->task_state;
    event.on_cpu_ns = thread->on_cpu_ns;
    event.blocked_ns = woken - thread->since_ns;
    event.runqueue_ns = now - woken;
    event.stolen_ns = thread->run_stolen_ns;
    event.stack = thread->stack;
    event.args[0] = thread->args[0];
    event.args[1] = thread->args[1];
    event.args[2] = thread->args[2];
    event.object = thread->object;
    event.waker_stack = thread->waker_stack;
    event.holder_stack = thread->holder_stack;
    event.waker_tid = thread->waker_tid;
    event.waker_tgid = thread->waker_tgid;
    event.holder = thread->holder;
    event.flags = thread->flags;
    event.waker_kind = thread->waker_kind;
    event.one_in = thread->one_in;
    event.early_ns = thread->early_ns;
    event.enqueue_ns = thread->enqueue_ns;
    thread->early_ns = 0;
    thread->enqueue_ns = 0;
    thread->run_stolen_ns = 0;
    thread->last_short = 0;
    send_event(&event);
}

/* The thread is off the CPU; nothing is known yet of the wait that begins. */
static __always_inline void leave(struct bp_thread *thread, __u16 task_state)
{
    thread->state = task_state ? BP_THREAD_BLOCKED : BP_THREAD_RUNNABLE;
    thread->task_state = task_state;
    thread->stack = 0;
    thread->status = BP_STACK_NOT_TAKEN;
    thread->object = 0;
    thread->syscall = -1;
    thread->args[0] = 0;
    thread->args[1] = 0;
    thread->args[2] = 0;
    thread->flags = 0;
    thread->one_in = 0;
    thread->waker_kind = BP_WAKER_UNKNOWN;
    thread->waker_stack = 0;
    thread->holder = 0;
    thread->holder_stack = 0;
}

/* The thread is on a CPU again. */
static __always_inline void come_back(struct bp_thread *thread, struct bp_config *config, __u32 tid, __u64 now)
{
    bool has_part = may_send(thread, config);
    __u64 since = thread->since_ns;
    if (now < since)
        now = since;
    __u64 woken = now;
    if (thread->state == BP_THREAD_RUNNABLE)
        woken = since;
    else if (thread->state == BP_THREAD_UNKNOWN && !thread->wake_ns)
        woken = now - in_32_bits(now - since); /* as follow_missed_out() */
    else if (thread->wake_ns)
        woken = thread->wake_ns > since ? thread->wake_ns : since;
    else if (thread->woken_early)
        woken = since;
    if (woken > now)
        woken = now; /* another CPU has read its clock later than this one */

    /* A wait that began before the thread was watched, and the first run, have their row however short they are. */
    bool is_known = thread->state != BP_THREAD_UNKNOWN && thread->status != BP_NOT_STARTED;
    bool is_short = is_known && now - since < config->min_block_ns;
    bool is_added = is_short || (thread->status == BP_NOT_SAMPLED && now - since < BP_LONG_WAIT_NS);
    if (is_added || (is_known && !has_part)) {
        add_short(thread, tid, now, woken - since, now - woken, thread->flags | (is_short ? 0 : BP_UNSAMPLED),
                  has_part);
    } else {
        config->is_late = is_half_full(MAP(events));
        send_wait(thread, tid, now, woken);
    }
    thread->blocked_ns += woken - since;
    thread->runqueue_ns += now - woken;
    thread->last_runqueue_ns = now - woken;
    thread->wait_count += 1;
    thread->wake_ns = 0;
    thread->woken_early = 0;
    thread->since_ns = now;
    thread->state = BP_THREAD_ON_CPU;
}

/*
 * The kernel does not report each switch (Linux 6.18: one of some thousands is missing). A thread that leaves a CPU and was
 * not seen coming came as long ago as it ran since.
 */
static __always_inline void follow_missed_in(struct bp_thread *thread, struct bp_config *config, __u32 tid,
                                             struct task_times times, __u64 now)
{
    __s64 ran = times.exec_ns - thread->exec_ns; /* negative when less than what was kept of two clocks' difference */
    __u64 began = now - (ran > 0 ? (__u64)ran : 0), woken = thread->wake_ns;
    count(BP_SWITCH_NOT_TOLD);
    bool is_of_next = woken > now; /* another CPU ends the wait that begins now already */
    if (began < thread->since_ns)
        began = thread->since_ns;
    if (is_of_next)
        thread->wake_ns = 0;
    else if (began < woken)
        began = woken;
    come_back(thread, config, tid, began);
    if (is_of_next)
        thread->wake_ns = woken;
}

/* Whether one that leaves, and of which nothing was known, came meanwhile: no hypervisor takes so much at a time. */
static __always_inline bool waited_first(struct bp_thread *thread, struct task_times times, __u64 now)
{
    __s64 ran = times.exec_ns - thread->exec_ns;
    return thread->state == BP_THREAD_UNKNOWN && ran >= 0 && now - thread->since_ns > (__u64)ran + BP_LONG_WAIT_NS;
}

/*
 * A thread that comes and was not seen leaving left when it had run for as long as it did. Without a wake-up it counts as
 * runnable since then, up to what can be corrected: how much of it is true its run delay tells when it leaves.
 */
static __always_inline void follow_missed_out(struct bp_thread *thread, __u64 task, __u64 now)
{
    struct task_times times = times_of(task);
    __s64 ran = times.exec_ns - thread->exec_ns;
    __u64 left = thread->since_ns + (ran > 0 ? (__u64)ran : 0);
    end_run(thread, times, left < now ? left : now);
    leave(thread, TASK_STATE_INTERRUPTIBLE);
    count(BP_SWITCH_NOT_TOLD);
    if (thread->wake_ns <= thread->since_ns) {
        thread->task_state = 0; /* not known */
        thread->wake_ns = now - in_32_bits(now - thread->since_ns);
    }
}

/*
 * The current task has this tid since a moment ago: one that is not the first thread of its process called execve, killed
 * the others, and goes on under the first one's tid (de_thread(), fs/exec.c), which that one gives up before it leaves the
 * CPU for the last time. The time since its last switch, which nobody tells, was on the CPU, or a wait for the execve.
 */
static __always_inline void take_over(struct bp_thread *thread, struct task_times times, __u64 now)
{
    if (thread->state == BP_THREAD_DEAD) {
        leave(thread, TASK_STATE_DEAD);
        thread->syscall = SYSCALL_EXECVE;
    }
    thread->exec_ns = times.exec_ns - (thread->state == BP_THREAD_ON_CPU ? now - thread->since_ns : 0);
    thread->run_delay_ns = times.run_delay_ns - thread->last_runqueue_ns;
    thread->task = (__u64)CURRENT_TASK;
}
