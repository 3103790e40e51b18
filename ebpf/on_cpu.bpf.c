// SPDX-License-Identifier: GPL-2.0-only
/* Perf events: the clock tick of one CPU, and what else is to be counted. Each is a sample of the thread that runs there. */

/* What bpfprof/kernel/loader.py loads on_event for: it puts the number there. */
#define EVENT_NUMBER bpf_pseudo_fd(BP_PSEUDO_EVENT, 0)

/* The thread that runs here, 0 if it is not watched. */
static __always_inline struct bp_thread *sampled_thread(void)
{
    __u64 id = bpf_get_current_pid_tgid();
    __u32 tgid = id >> 32, tid = id;
    if (!tid)
        return 0;
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &tid);
    if (!thread) {
        if (bpf_map_lookup_elem(MAP(processes), &tgid))
            count(BP_LOST_UNKNOWN_THREAD);
        return 0;
    }
    return config_flags() & BP_CONFIG_STOPPED ? 0 : thread;
}

/* An event of this kind of the current thread, 0 if there is no memory for it. */
static __always_inline struct bp_walk *new_sample(enum bp_event_kind kind)
{
    __u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    walk->tid = id;
    walk->tgid = id >> 32;
    walk->header.time_ns = now;
    walk->event.kind = kind;
    walk->event.tid = id;
    walk->event.tgid = id >> 32;
    walk->event.syscall = -1;
    walk->event.cpu = bpf_get_smp_processor_id();
    walk->event.time_ns = now;
    return walk;
}

static __always_inline void send_sample(void *ctx, struct bp_walk *walk)
{
    take_stack(ctx, walk, BP_FOR_SAMPLE, 0, false);
    walk->event.flags = walk->gil_flags;
    walk->event.stack = walk->header.key;
    walk->event.status = walk->status;
    send_event(&walk->event);
}

/*
 * The clock met the thread on a CPU. One that is said to be off it was not seen coming: without a look at it here, one that
 * never leaves again would wait until the end.
 */
static __always_inline void note_running(struct bp_thread *thread, struct bp_walk *walk)
{
    if (thread->state == BP_THREAD_UNKNOWN)
        thread->state = BP_THREAD_ON_CPU; /* running since it is watched: no switch was seen */
    if (thread->state != BP_THREAD_BLOCKED && thread->state != BP_THREAD_RUNNABLE)
        return;
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    if (config && (!thread->task || thread->task == (__u64)CURRENT_TASK)) /* else: see take_over() */
        follow_missed_in(thread, config, walk->tid, times_of_current(), walk->event.time_ns);
}

int on_cpu(struct bpf_perf_event_data *ctx)
{
    struct bp_thread *thread = sampled_thread();
    struct bp_walk *walk = thread ? new_sample(BP_EVENT_SAMPLE) : 0;
    if (!walk)
        return 0;
    note_running(thread, walk);
    walk->event.on_cpu_ns = thread->on_cpu_ns + (walk->event.time_ns - thread->since_ns);
    send_sample(ctx, walk);
    return 0;
}

/*
 * An event that is counted beside the clock, like a page fault or so many cycles. It comes out of the scheduler too
 * (context-switches), where the thread is off the CPU already: nothing of its time or state is touched.
 */
int on_event(struct bpf_perf_event_data *ctx)
{
    struct bp_walk *walk = sampled_thread() ? new_sample(BP_EVENT_COUNTED) : 0;
    if (!walk)
        return 0;
    walk->event.args[0] = EVENT_NUMBER;
    walk->event.args[1] = ctx->sample_period;
    send_sample(ctx, walk);
    return 0;
}
