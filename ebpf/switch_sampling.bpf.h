/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which switches of a thread have a stack: in goes the time since its previous one, out comes whether this one has, and
 * `one_in`. Sampling is proportional to time: a switch after a gap of the configured interval always has a stack, one
 * after a shorter gap has it with probability gap / interval. So a thread has about one stack an interval, however often it
 * switches, and a stack that was chosen as one in n stands for n switches: the estimator of Horvitz and Thompson (1952,
 * "A generalization of sampling without replacement from a finite universe"), which is unbiased.
 */
#pragma once

#define ONE_IN_LIMIT 0xffff

/* True when this switch has a stack; thread->one_in becomes the inverse of the probability that it has. */
static __always_inline bool is_sampled(struct bp_thread *thread, struct bp_config *config, __u64 now)
{
    __u64 interval = config->stack_interval_ns, gap = now - thread->left_ns, one_in = ONE_IN_LIMIT;
    thread->left_ns = now;
    if (gap)
        one_in = (interval + gap / 2) / gap;
    if (one_in < 2 || !interval)
        one_in = 1;
    thread->one_in = one_in < ONE_IN_LIMIT ? one_in : ONE_IN_LIMIT;
    return thread->one_in == 1 || bpf_get_prandom_u32() % thread->one_in == 0;
}
