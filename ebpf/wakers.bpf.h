/* SPDX-License-Identifier: GPL-2.0-only */
/* Who ends a wait: a thread, or an interrupt. */
#pragma once

/* arch/x86/entry/syscalls/syscall_64.tbl */
#define SYSCALL_WRITE 1
#define SYSCALL_CLOSE 3
#define SYSCALL_WRITEV 20
#define SYSCALL_NANOSLEEP 35
#define SYSCALL_SENDFILE 40
#define SYSCALL_CONNECT 42 /* to 48: accept, sendto, recvfrom, sendmsg, recvmsg, shutdown */
#define SYSCALL_SHUTDOWN 48
#define SYSCALL_EXIT 60
#define SYSCALL_KILL 62
#define SYSCALL_TKILL 200
#define SYSCALL_CLOCK_NANOSLEEP 230
#define SYSCALL_EXIT_GROUP 231
#define SYSCALL_TGKILL 234
#define SYSCALL_SPLICE 275
#define SYSCALL_SENDMMSG 307

/* Bits of preempt_count(), include/linux/preempt.h: a hard interrupt or an NMI; a soft one that is being served. */
#define HARD_INTERRUPT 0xff0000
#define SOFT_INTERRUPT 0x000100

/* What the CPU of the current task is in the middle of. True when that is known. */
static __always_inline bool read_preempt_count(__u32 *preempt_count)
{
    __u64 queue = 0;
    if (!BP_RQ_TO_PREEMPT_COUNT)
        return false;
    __u64 cfs_queue = LOAD_MEMBER(u64, CURRENT_TASK, BP_OFFSET_TASK_CFS_RQ);
    return READ_KERNEL(queue, cfs_queue + BP_OFFSET_CFS_RQ_RQ) &&
           READ_KERNEL(*preempt_count, queue + (__s64)BP_RQ_TO_PREEMPT_COUNT);
}

/* System calls in which a thread serves soft interrupts for what it sends: it arrives on this machine. */
static __always_inline bool is_sending(__s16 call)
{
    return call == SYSCALL_WRITE || call == SYSCALL_WRITEV || call == SYSCALL_SENDFILE || call == SYSCALL_SPLICE ||
           call == SYSCALL_CLOSE || (call >= SYSCALL_CONNECT && call <= SYSCALL_SHUTDOWN) || call == SYSCALL_SENDMMSG;
}

/*
 * Who wakes `woken`: the current thread, or an interrupt that it has nothing to do with. Where the kernel does not let us
 * see what the CPU is in the middle of, an interrupt shows when the thread was in its own code, or in a system call that
 * does not end such a wait: a futex is woken by futex calls and by the end of a thread, a sleep by signals.
 */
static __always_inline __u8 kind_of_waker(struct bp_thread *woken, __u32 tid)
{
    __u64 registers = user_registers();
    __s16 call = syscall_of(registers);
    __u32 preempt_count = 0;
    bool is_kernel_thread = (USER_CS(registers) & 3) != 3;
    if (read_preempt_count(&preempt_count)) {
        if (preempt_count & HARD_INTERRUPT)
            return BP_WAKER_INTERRUPT;
        /* What a thread sends wakes who waits for it, not who waits for a disk. */
        bool is_own = is_sending(call) && !(woken->task_state & TASK_STATE_UNINTERRUPTIBLE);
        bool is_soft = preempt_count & SOFT_INTERRUPT && !is_own;
        return is_soft || !tid ? BP_WAKER_SOFT_INTERRUPT : BP_WAKER_THREAD;
    }
    if (!tid || (call < 0 && !is_kernel_thread))
        return BP_WAKER_INTERRUPT;
    bool ends = call == SYSCALL_EXIT || call == SYSCALL_EXIT_GROUP;
    bool kills = call == SYSCALL_KILL || call == SYSCALL_TKILL || call == SYSCALL_TGKILL;
    bool is_timed = woken->syscall == SYSCALL_NANOSLEEP || woken->syscall == SYSCALL_CLOCK_NANOSLEEP;
    if (is_timed || (woken->syscall == SYSCALL_FUTEX && call != SYSCALL_FUTEX))
        return ends || kills ? BP_WAKER_THREAD : BP_WAKER_INTERRUPT;
    return BP_WAKER_THREAD;
}

/* Who ends a wait, which was long enough to be asked. */
static __always_inline void note_waker(void *ctx, struct bp_thread *thread, __u32 woken)
{
    __u64 id = bpf_get_current_pid_tgid();
    __u32 tid = id, tgid = id >> 32;
    if (tid == woken)
        return;
    thread->waker_kind = kind_of_waker(thread, tid);
    if (thread->waker_kind != BP_WAKER_THREAD)
        return;
    thread->waker_tid = tid;
    thread->waker_tgid = tgid;
    struct bp_walk *walk = scratch_walk();
    if (!walk || !bpf_map_lookup_elem(MAP(threads), &tid))
        return;
    walk->tid = tid;
    walk->tgid = tgid;
    walk->header.time_ns = thread->wake_ns;
    take_stack(ctx, walk, BP_FOR_WAKER, 0, false);
    thread->waker_stack = walk->header.key;
}
