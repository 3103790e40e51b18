// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scheduler: when a thread leaves a CPU, is made runnable, and comes back. Everything is kept per thread, never per
 * CPU, so a thread that migrates is booked right. Nothing is inserted into or deleted from a hash map here: these run
 * under the run-queue lock.
 */

/* Of a wait without a stack it is known whether it is one for the GIL, for its futex lies there, and for which lock. */
static __always_inline void leave_without_stack(struct bp_thread *thread)
{
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &thread->tgid);
    thread->status = BP_NOT_SAMPLED;
    thread->one_in = 0;
    __u64 futex = futex_of(thread);
    if (!process || !futex)
        return;
    if (in_gil(futex, thread->gil ? thread->gil : process->gil, process))
        thread->flags = BP_WAITS_FOR_GIL;
    else
        note_parked(thread, &process->layout);
}

/* True when the thread's stack is wanted. */
static __always_inline bool switch_out(struct bp_thread *thread, __u32 tid, __u16 task_state, __u64 now)
{
    struct task_times times = times_of_current();
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    if (!config || config->flags & BP_CONFIG_STOPPED)
        return false;
    if (thread->task != (__u64)CURRENT_TASK) {
        if (thread->state == BP_THREAD_DEAD && task_state & TASK_STATE_DEAD)
            return false; /* what was the first thread until another one's execve, and was booked then */
        if (thread->task)
            take_over(thread, times, now);
        thread->task = (__u64)CURRENT_TASK;
    }
    if (thread->state == BP_THREAD_BLOCKED || thread->state == BP_THREAD_RUNNABLE || waited_first(thread, times, now))
        follow_missed_in(thread, config, tid, times, now);
    if (thread->wake_ns <= thread->since_ns || !task_state)
        thread->wake_ns = 0; /* else: made runnable after it had left the run queue but before this switch */
    if (!task_state)
        thread->woken_early = 0;
    end_run(thread, times, now); /* UNKNOWN: it ran for most of the time since it is watched */
    leave(thread, task_state);
    if (task_state & TASK_STATE_DEAD) {
        thread->state = BP_THREAD_DEAD;
        send_exit(thread, tid, now, true);
        return false;
    }
    note_syscall(thread);
    if (!(config->flags & BP_CONFIG_OFF_CPU_STACKS))
        return false;
    if (is_sampled(thread, config, now))
        return true;
    leave_without_stack(thread);
    return false;
}

static __always_inline void switch_in(struct bp_thread *thread, __u32 tid, __u64 task, __u64 now)
{
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    if (!config || config->flags & BP_CONFIG_STOPPED)
        return;
    if (now < thread->since_ns)
        now = thread->since_ns; /* watched since a moment ago, and `now` was read before the last thread's stack */
    if (thread->state == BP_THREAD_ON_CPU)
        follow_missed_out(thread, task, now);
    come_back(thread, config, tid, now);
}

/* The stack of the current thread, which leaves the CPU, and that of who has the GIL if it waits for it. */
static __always_inline void take_switch_stack(void *ctx, struct bp_thread *thread, __u64 id, __u64 now)
{
    /* A page fault, mostly; or what the system call says little of, like a write that waits for the disk. */
    bool asks_for_kernel =
        thread->state == BP_THREAD_BLOCKED && (thread->syscall < 0 || thread->task_state & TASK_STATE_UNINTERRUPTIBLE);
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return;
    walk->tid = id;
    walk->tgid = id >> 32;
    walk->header.time_ns = now;
    take_stack(ctx, walk, BP_FOR_SWITCH_OUT, futex_of(thread), asks_for_kernel);
    CALL(note_object, walk);
    thread->stack = walk->header.key;
    thread->status = walk->status;
    thread->flags = walk->gil_flags;
    if (walk->holder) {
        thread->holder = CALL(walk_holder, walk);
        CALL(send_stack, walk);
        thread->holder_stack = walk->header.key;
    }
}

/*
 * TP_PROTO(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state), the last since commit
 * 9c2136be0878 ("sched/tracing: Append prev_state to tp args instead") (in v5.18). Before, the state is read from the task,
 * where one that is woken at this moment is TASK_WAKING already.
 */
static __always_inline __u16 state_of_previous(struct bpf_raw_tracepoint_args *ctx)
{
    if (ctx->args[0]) /* preempted on the way to sleep: still runnable whatever its state says */
        return 0;
    if (!BP_OFFSET_TASK_STATE)
        return ctx->args[3];
    __u32 state = 0;
    READ_KERNEL(state, ctx->args[1] + BP_OFFSET_TASK_STATE);
    return state & TASK_STATE_WAKING ? TASK_STATE_INTERRUPTIBLE : state;
}

int sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 id = bpf_get_current_pid_tgid(), now = 0;
    __u32 prev_tid = id, next_tid = 0;
    READ_KERNEL(next_tid, ctx->args[2] + BP_OFFSET_TASK_PID);
    if (prev_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &prev_tid);
        if (thread) {
            now = bpf_ktime_get_ns();
            if (switch_out(thread, prev_tid, state_of_previous(ctx), now))
                take_switch_stack(ctx, thread, id, now);
        }
    }
    if (next_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &next_tid);
        if (thread)
            switch_in(thread, next_tid, ctx->args[2], now ? now : bpf_ktime_get_ns());
    }
    return 0;
}

/* TP_PROTO(struct task_struct *p): runs in the waker, before the task is on a run queue. */
int sched_waking(struct bpf_raw_tracepoint_args *ctx)
{
    __u32 tid = 0, on_rq = 0;
    __u64 task = ctx->args[0];
    READ_KERNEL(tid, task + BP_OFFSET_TASK_PID);
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &tid);
    if (!thread)
        return 0;
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    if (!config || config->flags & BP_CONFIG_STOPPED)
        return 0;
    if (thread->state == BP_THREAD_ON_CPU || thread->state == BP_THREAD_UNKNOWN) {
        /*
         * Off the run queue but still on the CPU: its switch-out is about to come. Or it sleeps since before. On the run
         * queue: it goes on running, or it is about to leave and stays there for a while (DELAY_DEQUEUE,
         * kernel/sched/features.h, 6.12 and later; or the waker reads this a moment earlier). Which of both is known when
         * it comes back: if nothing woke it since it left, this did. Where it is known to stay there for a while, it sleeps.
         */
        __u8 is_delayed = 0;
        READ_KERNEL(on_rq, task + BP_OFFSET_TASK_ON_RQ);
        if (BP_OFFSET_TASK_DELAYED && thread->state == BP_THREAD_UNKNOWN)
            READ_KERNEL(is_delayed, task + BP_OFFSET_TASK_DELAYED);
        if (is_delayed)
            on_rq = 0;
        if (on_rq)
            thread->woken_early = 1;
        else if (thread->state == BP_THREAD_ON_CPU)
            thread->wake_ns = bpf_ktime_get_ns();
        if (on_rq || thread->state == BP_THREAD_ON_CPU)
            return 0;
    }
    if (!thread->wake_ns) {
        __u64 now = bpf_ktime_get_ns();
        thread->wake_ns = now;
        __u64 least_ns = thread->status == BP_NOT_SAMPLED ? BP_LONG_WAIT_NS : config->min_block_ns;
        bool sleeps = thread->state == BP_THREAD_BLOCKED || thread->state == BP_THREAD_UNKNOWN;
        if (sleeps && now - thread->since_ns >= least_ns && config->flags & BP_CONFIG_WAKERS)
            note_waker(ctx, thread, tid);
    }
    return 0;
}
