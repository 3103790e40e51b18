// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scheduler: when a thread leaves a CPU, is made runnable, and comes back. Everything is kept per thread, never per
 * CPU, so a thread that migrates is booked right. Nothing is inserted into or deleted from a hash map here: these run
 * under the run-queue lock.
 */

/* Stacks that are taken by chance in a window: fewer when there are many switches, which cost time too. */
static __always_inline __u32 wanted_stacks(struct bp_config *config, struct bp_switch_rate *rate)
{
    __u32 fewer = rate->switches / BP_SWITCHES_FOR_A_STACK, least = (config->max_switches + 3) / 4;
    return config->max_switches > fewer + least ? config->max_switches - fewer : least;
}

/*
 * Whether this switch is to have a stack. A thread's first ones in a window have, and those after a wait that took long. Of
 * the others, when they are more than is wanted, one in some is chosen at random: it stands for those that were not.
 */
static __always_inline bool is_chosen(struct bp_thread *thread, struct bp_config *config, __u64 now)
{
    __u32 cpu = bpf_get_smp_processor_id();
    struct bp_switch_rate *rate = bpf_map_lookup_elem(MAP(switch_rates), &cpu);
    if (!rate || !config->max_switches)
        return true;
    if (now - thread->window_ns > BP_RATE_WINDOW_NS) {
        thread->window_ns = now;
        thread->stacks = 0;
    }
    rate->switches += 1;
    thread->stacks += 1;
    if (thread->stacks <= BP_THREAD_STACKS || thread->was_slow)
        return true;
    rate->count += 1;
    if (now - rate->window_ns > BP_RATE_WINDOW_NS) {
        /* A window that was long over says nothing of the rate now. */
        bool is_last = now - rate->window_ns < 2 * BP_RATE_WINDOW_NS;
        rate->one_in = is_last ? 1 + rate->count / wanted_stacks(config, rate) : 1;
        rate->window_ns = now;
        rate->count = 0;
        rate->switches = 0;
    }
    thread->one_in = rate->one_in < 0xffff ? rate->one_in : 0xffff;
    return thread->one_in < 2 || bpf_get_prandom_u32() % thread->one_in == 0;
}

/* A wait without a stack is one for the GIL if its futex lies there. */
static __always_inline void leave_without_stack(struct bp_thread *thread)
{
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &thread->tgid);
    thread->status = BP_NOT_SAMPLED;
    thread->one_in = 0;
    if (process && in_gil(futex_of(thread), thread->gil ? thread->gil : process->gil, process))
        thread->flags = BP_WAITS_FOR_GIL;
}

/* True when the thread's stack is wanted. */
static __always_inline bool switch_out(struct bp_thread *thread, __u32 tid, __u16 task_state, __u64 now)
{
    struct task_times times = times_of_current();
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    if (!config || config->flags & BP_CONFIG_STOPPED)
        return false;
    if (thread->state == BP_THREAD_BLOCKED || thread->state == BP_THREAD_RUNNABLE)
        follow_missed_in(thread, config, tid, times, now);
    if (thread->wake_ns <= thread->since_ns || !task_state)
        thread->wake_ns = 0;       /* else: made runnable after it had left the run queue but before this switch */
    end_burst(thread, times, now); /* UNKNOWN: it ran since it is watched */
    leave(thread, task_state);
    if (task_state & TASK_STATE_DEAD) {
        thread->state = BP_THREAD_DEAD;
        send_exit(thread, tid, now, true);
        return false;
    }
    note_syscall(thread);
    if (!(config->flags & BP_CONFIG_OFF_CPU_STACKS))
        return false;
    if (is_chosen(thread, config, now))
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
    if (thread->state == BP_THREAD_ON_CPU)
        follow_missed_out(thread, task, now);
    come_back(thread, config, tid, now);
}

/* TP_PROTO(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state), 5.18 and later:
 * commit 9c2136be0878 ("sched/tracing: Append prev_state to tp args instead") (in v5.18). */
int sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 id = bpf_get_current_pid_tgid(), now = 0;
    __u32 prev_tid = id, next_tid = 0;
    bool stack_wanted = false, wants_kernel = false;
    READ_KERNEL(next_tid, ctx->args[2] + BP_OFFSET_TASK_PID);
    if (prev_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &prev_tid);
        if (thread) {
            now = bpf_ktime_get_ns();
            /* Preempted on the way to sleep: still runnable whatever its state says. */
            stack_wanted = switch_out(thread, prev_tid, ctx->args[0] ? 0 : ctx->args[3], now);
            /* A page fault, mostly; or what the system call says little of, like a write that waits for the disk. */
            wants_kernel = thread->state == BP_THREAD_BLOCKED &&
                           (thread->syscall < 0 || thread->task_state & TASK_STATE_UNINTERRUPTIBLE);
        }
    }
    if (next_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &next_tid);
        if (thread)
            switch_in(thread, next_tid, ctx->args[2], now ? now : bpf_ktime_get_ns());
    }
    if (stack_wanted) { /* last, for it ends in a tail call */
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &prev_tid);
        struct bp_walk *walk = scratch_walk();
        if (walk && thread) {
            walk->tid = prev_tid;
            walk->tgid = id >> 32;
            walk->header.time_ns = now;
            begin_stack(ctx, walk, thread, BP_FOR_SWITCH_OUT, futex_of(thread), wants_kernel);
        }
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
        /* Off the run queue but still on the CPU: its switch-out is about to come. Or it sleeps since before. */
        READ_KERNEL(on_rq, task + BP_OFFSET_TASK_ON_RQ);
        if (!on_rq)
            thread->wake_ns = bpf_ktime_get_ns();
    } else if (!thread->wake_ns) {
        __u64 now = bpf_ktime_get_ns();
        thread->wake_ns = now;
        __u64 least_ns = thread->status == BP_NOT_SAMPLED ? BP_LONG_WAIT_NS : config->min_block_ns;
        bool has_event = thread->state == BP_THREAD_BLOCKED && now - thread->since_ns >= least_ns;
        if (has_event && config->flags & BP_CONFIG_WAKERS)
            note_waker(ctx, thread, tid);
    }
    return 0;
}
