/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which switches of a thread have a stack. A thread has a budget: one stack an interval, of which it can save up some. While
 * it has one left each of its switches has a stack, so a thread that waits often for a moment and then for long has all of
 * them. Once it has spent them, a switch has a stack with probability gap / interval, where gap is the time since its switch
 * before: about one stack an interval, however often it switches. A stack that was chosen as one in n then stands for n
 * switches: the estimator of Horvitz and Thompson (1952, "A generalization of sampling without replacement from a finite
 * universe"), which is unbiased.
 */
#pragma once

#define SAVED_STACKS 50
#define ONE_IN_LIMIT 0xffff

/* True when this switch has a stack; thread->one_in becomes the inverse of the probability that it has. */
static __always_inline bool is_sampled(struct bp_thread *thread, struct bp_config *config, __u64 now)
{
    __u64 interval = config->stack_interval_ns, gap = now - thread->left_ns, one_in = ONE_IN_LIMIT;
    __u64 saved = thread->saved_ns + gap;
    thread->left_ns = now;
    thread->one_in = 1;
    if (saved > SAVED_STACKS * interval)
        saved = SAVED_STACKS * interval;
    if (saved >= interval) {
        thread->saved_ns = saved - interval;
        return true;
    }
    if (gap)
        one_in = (interval + gap / 2) / gap;
    thread->one_in = one_in < ONE_IN_LIMIT ? one_in : ONE_IN_LIMIT;
    return thread->one_in < 2 || bpf_get_prandom_u32() % thread->one_in == 0;
}
