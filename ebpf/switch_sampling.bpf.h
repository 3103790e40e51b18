/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which switches of a thread have a stack: in goes the time, out comes whether this one has, and `one_in`. Each thread may
 * take a stack an interval, and has up to STACKS_SAVED of them saved. A stack that was taken puts off the time up to which
 * all are spent, thread->spent_ns. When that is ahead of now, the probability that a switch has a stack is halved for each
 * interval it is ahead: where there are too many switches it settles at what takes one stack an interval. A preemption counts
 * as ahead when less than half of the saved stacks is left: a thread that is preempted all the time, of which its samples on
 * the CPU tell the same, has stacks for when it waits.
 *
 * A stack that was chosen as one in n stands for n switches: the estimator of Horvitz and Thompson (1952, "A generalization
 * of sampling without replacement from a finite universe"). It is unbiased, for the probability of a switch depends on
 * those before it only.
 */
#pragma once

#define STACKS_SAVED 50
#define KEPT_FOR_WAITS 25
#define MOST_HALVINGS 15 /* bp_event.one_in has 16 bits */

/* True when this switch has a stack; thread->one_in becomes the inverse of the probability that it has. */
static __always_inline bool is_sampled(struct bp_thread *thread, struct bp_config *config, __u64 now)
{
    __u64 interval = config->stack_interval_ns, halvings = 0;
    thread->one_in = 1;
    if (!interval)
        return true;
    if (thread->spent_ns + STACKS_SAVED * interval < now)
        thread->spent_ns = now - STACKS_SAVED * interval;
    if (!thread->task_state)
        now -= KEPT_FOR_WAITS * interval;
    if (thread->spent_ns > now)
        halvings = (thread->spent_ns - now) / interval;
    if (halvings > MOST_HALVINGS)
        halvings = MOST_HALVINGS;
    thread->one_in = 1 << halvings;
    if (bpf_get_prandom_u32() & (thread->one_in - 1))
        return false;
    thread->spent_ns += interval;
    return true;
}
