// SPDX-License-Identifier: GPL-2.0-only
/* Clock tick of one CPU: a sample of the thread that runs there, if it is a target. */

int on_cpu(struct bpf_perf_event_data *ctx)
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
    if (config_flags() & BP_CONFIG_STOPPED)
        return 0;
    __u64 now = bpf_ktime_get_ns();
    if (thread->state == BP_THREAD_UNKNOWN)
        thread->state = BP_THREAD_ON_CPU; /* running since it is watched: no switch was seen */

    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    walk->tid = tid;
    walk->tgid = tgid;
    walk->header.time_ns = now;
    walk->event.kind = BP_EVENT_SAMPLE;
    walk->event.tid = tid;
    walk->event.tgid = tgid;
    walk->event.syscall = -1;
    walk->event.cpu = bpf_get_smp_processor_id();
    walk->event.time_ns = now;
    walk->event.on_cpu_ns = thread->on_cpu_ns + (now - thread->since_ns);
    take_stack(ctx, walk, BP_FOR_SAMPLE, 0, false);
    walk->event.flags = walk->gil_flags;
    walk->event.stack = walk->header.key;
    walk->event.status = walk->status;
    send_event(&walk->event);
    return 0;
}
