// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scheduler: when a thread leaves a CPU, is made runnable, and comes back. Everything is kept per thread, never per
 * CPU, so a thread that migrates is booked right. Nothing is inserted into or deleted from a hash map here: these run
 * under the run-queue lock.
 */

#define TASK_STATE_DEAD 0x80 /* include/linux/sched.h */

static __always_inline void send_exit(struct bp_thread *thread, __u32 tid, __u64 now)
{
    struct bp_event event = {.kind = BP_EVENT_EXIT, .tid = tid, .tgid = thread->tgid, .time_ns = now};
    event.on_cpu_ns = thread->on_cpu_ns;
    event.blocked_ns = thread->blocked_ns;
    event.runqueue_ns = thread->runqueue_ns;
    event.stolen_ns = thread->stolen_ns;
    send_event(&event);
}

/*
 * Books the time on a CPU that ends now. How much of it the thread ran is the scheduler's own figure, which leaves out
 * what the hypervisor took (the rest is time in which it was runnable and did not run).
 */
static __always_inline void end_burst(struct bp_thread *thread, __u64 task, __u64 now)
{
    __u64 exec = thread->exec_ns, wall = now - thread->since_ns;
    READ_KERNEL(exec, task + BP_OFFSET_TASK_EXEC);
    __u64 ran = exec - thread->exec_ns, stolen = 0;
    if (wall > ran + BP_STOLEN_MIN_NS)
        stolen = wall - ran;
    thread->exec_ns = exec;
    thread->burst_stolen_ns = stolen;
    thread->stolen_ns += stolen;
    thread->on_cpu_ns += wall - stolen;
    thread->since_ns = now;
}

/* The thread's user registers give the system call it waits in and its arguments. */
static __always_inline void note_syscall(struct bp_thread *thread)
{
    struct pt_regs regs;
    __u64 address = (__u64)bpf_task_pt_regs(bpf_get_current_task_btf());
    thread->syscall = -1;
    if (!READ_KERNEL(regs, address) || regs.orig_ax >= 0x7fff)
        return;
    thread->syscall = regs.orig_ax;
    thread->args[0] = regs.di;
    thread->args[1] = regs.si;
    thread->args[2] = regs.dx;
}

/* True when the thread's stack is wanted. */
static __always_inline bool switch_out(struct bp_thread *thread, __u32 tid, __u64 task, __u16 task_state, __u64 now)
{
    __u32 flags = config_flags();
    if (flags & BP_CONFIG_STOPPED)
        return false;
    if (thread->wake_ns <= thread->since_ns || !task_state)
        thread->wake_ns = 0;      /* else: made runnable after it had left the run queue but before this switch */
    end_burst(thread, task, now); /* UNKNOWN: it ran since it is watched */
    thread->task_state = task_state;
    thread->stack = 0;
    thread->status = BP_STACK_NOT_TAKEN;
    if (task_state & TASK_STATE_DEAD) {
        thread->state = BP_THREAD_DEAD;
        send_exit(thread, tid, now);
        return false;
    }
    thread->state = task_state ? BP_THREAD_BLOCKED : BP_THREAD_RUNNABLE;
    note_syscall(thread);
    return flags & BP_CONFIG_OFF_CPU_STACKS;
}

static __always_inline void switch_in(struct bp_thread *thread, __u32 tid, __u64 now)
{
    __u64 since = thread->since_ns, woken = now;
    if (config_flags() & BP_CONFIG_STOPPED)
        return;
    if (thread->state == BP_THREAD_RUNNABLE || (thread->state == BP_THREAD_UNKNOWN && !thread->wake_ns))
        woken = since;
    else if (thread->wake_ns)
        woken = thread->wake_ns > since ? thread->wake_ns : since;

    struct bp_event event = {.kind = BP_EVENT_WAIT, .tid = tid, .tgid = thread->tgid, .time_ns = now};
    event.status = thread->status;
    event.cpu = bpf_get_smp_processor_id();
    event.syscall = thread->syscall;
    event.task_state = thread->task_state;
    event.on_cpu_ns = thread->on_cpu_ns;
    event.blocked_ns = woken - since;
    event.runqueue_ns = now - woken;
    event.stolen_ns = thread->burst_stolen_ns;
    event.stack = thread->stack;
    event.args[0] = thread->args[0];
    event.args[1] = thread->args[1];
    event.args[2] = thread->args[2];
    send_event(&event);

    thread->blocked_ns += woken - since;
    thread->runqueue_ns += now - woken;
    thread->wait_count += 1;
    thread->wake_ns = 0;
    thread->burst_stolen_ns = 0;
    thread->since_ns = now;
    thread->state = BP_THREAD_ON_CPU;
}

/* TP_PROTO(bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state), 5.18 and later:
 * commit 9c2136be0878 ("sched/tracing: Append prev_state to tp args instead") (in v5.18). */
int sched_switch(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 id = bpf_get_current_pid_tgid(), now = 0;
    __u32 prev_tid = id, next_tid = 0;
    bool stack_wanted = false;
    READ_KERNEL(next_tid, ctx->args[2] + BP_OFFSET_TASK_PID);
    if (prev_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &prev_tid);
        if (thread) {
            now = bpf_ktime_get_ns();
            /* Preempted on the way to sleep: still runnable whatever its state says. */
            stack_wanted = switch_out(thread, prev_tid, ctx->args[1], ctx->args[0] ? 0 : ctx->args[3], now);
        }
    }
    if (next_tid) {
        struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &next_tid);
        if (thread)
            switch_in(thread, next_tid, now ? now : bpf_ktime_get_ns());
    }
    if (stack_wanted) { /* last, for it may end in a tail call */
        struct bp_walk *walk = scratch_walk();
        if (walk) {
            walk->tid = prev_tid;
            walk->tgid = id >> 32;
            begin_stack(ctx, walk, ctx->args[1]);
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
    if (!thread || config_flags() & BP_CONFIG_STOPPED)
        return 0;
    if (thread->state == BP_THREAD_ON_CPU) {
        /* It has left the run queue but not yet the CPU: its switch-out is about to come. */
        READ_KERNEL(on_rq, task + BP_OFFSET_TASK_ON_RQ);
        if (!on_rq)
            thread->wake_ns = bpf_ktime_get_ns();
    } else if (!thread->wake_ns) {
        thread->wake_ns = bpf_ktime_get_ns();
    }
    return 0;
}
