// SPDX-License-Identifier: GPL-2.0-only
/* Threads and processes that are born, become another program, and go. */

static __always_inline struct bp_births *births_of(__u32 tgid)
{
    struct bp_births new = {.family = tgid};
    struct bp_births *found = bpf_map_lookup_elem(MAP(births), &tgid);
    if (found)
        return found;
    bpf_map_update_elem(MAP(births), &tgid, &new, BPF_ANY);
    return bpf_map_lookup_elem(MAP(births), &tgid);
}

/*
 * Whether a thread or a child that a process starts now is watched. A process and all that descend from it have one account
 * (GCRA, ITU-T I.371, annex A): however they share the work of starting others, and whoever of them ends. Where all start
 * more than user space can follow, each account pays more: so many families that flood get no more than one.
 */
static __always_inline bool may_start(__u32 parent, __u32 child, __u64 now)
{
    struct bp_births *own = births_of(parent), *all = births_of(0);
    if (!own || !all)
        return false;
    struct bp_births new = *own;
    struct bp_births *family = bpf_map_lookup_elem(MAP(births), &new.family);
    if (!family)
        family = own; /* which knows what was paid when the last one was started */
    __u64 price = child == parent ? BP_BIRTH_NS : BP_PROCESS_BIRTH_NS;
    __u64 paid = family->paid_ns > now ? family->paid_ns : now;
    __u64 paid_by_all = all->paid_ns > now ? all->paid_ns : now;
    bool may = paid - now <= BP_BIRTHS_AHEAD_NS;
    if (may) {
        all->paid_ns = paid_by_all + price;
        if (paid_by_all - now > BP_BIRTHS_AHEAD_NS)
            price *= BP_SCARCE_TIMES;
        family->paid_ns = paid = paid + price;
    }
    own->paid_ns = new.paid_ns = paid;
    if (child != parent)
        bpf_map_update_elem(MAP(births), &child, &new, BPF_ANY);
    return may;
}

/* TP_PROTO(struct task_struct *parent, struct task_struct *child): in the parent, before the child first runs. */
int sched_process_fork(struct bpf_raw_tracepoint_args *ctx)
{
    __u32 ids[2] = {}, parent = bpf_get_current_pid_tgid() >> 32; /* pid, tgid: neighbours in task_struct */
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &parent);
    bool follows_all = config_flags() & BP_CONFIG_ALL_PROCESSES;
    if ((!process && !follows_all) || config_flags() & BP_CONFIG_STOPPED)
        return 0;
    READ_KERNEL(ids[0], ctx->args[1] + BP_OFFSET_TASK_PID);
    READ_KERNEL(ids[1], ctx->args[1] + BP_OFFSET_TASK_TGID);
    if (ids[1] != parent && !follows_all && !(process && process->flags & BP_PROCESS_FOLLOW_CHILDREN))
        return 0;
    __u64 now = bpf_ktime_get_ns();
    if (!may_start(parent, ids[1], now)) {
        count(BP_LOST_BIRTH);
        return 0;
    }
    if (ids[1] != parent) {
        struct bp_process child = {};
        if (process) { /* its memory is a copy, so what is known of the parent is true of it */
            child = *process;
            child.flags &= ~BP_PROCESS_ASKED;
        }
        if (bpf_map_update_elem(MAP(processes), &ids[1], &child, BPF_ANY)) {
            count(BP_LOST_PROCESS_TABLE_FULL);
            return 0;
        }
    }
    __u32 cpu = bpf_get_smp_processor_id();
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(new_threads), &cpu); /* all else in it stays 0 */
    if (!thread)
        return 0;
    thread->tgid = ids[1];
    thread->state = BP_THREAD_RUNNABLE;
    thread->status = BP_NOT_STARTED;
    thread->syscall = -1;
    thread->since_ns = now;
    thread->first_ns = now;
    thread->task = ctx->args[1];
    if (bpf_map_update_elem(MAP(threads), &ids[0], thread, BPF_ANY)) {
        count(BP_LOST_THREAD_TABLE_FULL);
        return 0;
    }
    struct bp_event event = {.kind = BP_EVENT_FORK, .tid = ids[0], .tgid = ids[1], .time_ns = now, .syscall = -1};
    event.args[0] = parent;
    send_event_and(&event, BPF_RB_FORCE_WAKEUP); /* its code must be read while it lives */
    return 0;
}

/* TP_PROTO(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm): in the process, which has one thread now. */
int sched_process_exec(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 id = bpf_get_current_pid_tgid();
    __u32 tgid = id >> 32, tid = id, zero = 0;
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &tgid);
    if ((!process && !(config_flags() & BP_CONFIG_ALL_EXECS)) || config_flags() & BP_CONFIG_STOPPED)
        return 0;
    if (process) /* until user space has looked at the new program */
        process->flags &=
            ~(BP_PROCESS_PYTHON | BP_PROCESS_KNOWN | BP_PROCESS_UNWIND | BP_PROCESS_ASKED | BP_PROCESS_KERNEL);
    __u64 now = bpf_ktime_get_ns();
    __u32 old_tid = ctx->args[1];
    if (old_tid != tid) { /* another thread than the first called execve: it goes on under the first one's tid */
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &old_tid);
        if (thread && thread->state == BP_THREAD_ON_CPU) {
            end_run(thread, times_of_current(), now);
            thread->state = BP_THREAD_DEAD;
            send_exit(thread, old_tid, now, false);
        }
        thread = bpf_map_lookup_elem(MAP(threads), &tid);
        struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
        if (thread && config && thread->task != (__u64)CURRENT_TASK) {
            take_over(thread, times_of_current(), now);
            if (thread->state != BP_THREAD_ON_CPU)
                come_back(thread, config, tid, now);
        }
    }
    struct bp_event event = {.kind = BP_EVENT_EXEC, .tid = tid, .tgid = tgid, .time_ns = now, .syscall = -1};
    event.args[0] = old_tid;
    send_event_and(&event, BPF_RB_FORCE_WAKEUP); /* its code must be read while it lives */
    return 0;
}

/* TP_PROTO(struct task_struct *p). The tid may have been given to a new thread by now: that one is not dead. */
int sched_process_free(struct bpf_raw_tracepoint_args *ctx)
{
    __u32 ids[2] = {};
    READ_KERNEL(ids[0], ctx->args[0] + BP_OFFSET_TASK_PID);
    READ_KERNEL(ids[1], ctx->args[0] + BP_OFFSET_TASK_TGID);
    if (ids[0] == ids[1])
        bpf_map_delete_elem(MAP(births), &ids[1]);
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &ids[0]);
    if (!thread || thread->state != BP_THREAD_DEAD)
        return 0;
    bpf_map_delete_elem(MAP(threads), &ids[0]);
    if (ids[0] == ids[1]) /* the first thread of a process is the last to go */
        bpf_map_delete_elem(MAP(processes), &ids[1]);
    return 0;
}
