/* SPDX-License-Identifier: GPL-2.0-only */
/* count(): the only way to touch a counter. */
#pragma once

static __always_inline void count(enum bp_status status)
{
    __u32 index = status;
    __u64 *counter = bpf_map_lookup_elem(MAP(counters), &index);
    if (counter)
        *counter += 1;
}

/* Bits of preempt_count(), include/linux/preempt.h: a hard interrupt or an NMI; a soft one that is being served. */
#define HARD_INTERRUPT 0xff0000
#define SOFT_INTERRUPT 0x000100

/* What the CPU of the current task is in the middle of. True when that is known. */
static __always_inline bool read_preempt_count(__u32 *preempt_count)
{
    __u64 queue = 0;
    if (!BP_RQ_TO_PREEMPT_COUNT)
        return false;
    __u64 cfs_queue = LOAD_KERNEL(u64, bpf_get_current_task_btf(), BP_OFFSET_TASK_CFS_RQ);
    return READ_KERNEL(queue, cfs_queue + BP_OFFSET_CFS_RQ_RQ) &&
           READ_KERNEL(*preempt_count, queue + (__s64)BP_RQ_TO_PREEMPT_COUNT);
}

/* enum bp_config_flags */
static __always_inline __u32 config_flags(void)
{
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    return config ? config->flags : BP_CONFIG_STOPPED;
}
