/* SPDX-License-Identifier: GPL-2.0-only */
/* Hashes, and the places in direct-mapped tables that they lead to. */
#pragma once

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
    hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
    return hash ^ (hash >> 32);
}

/* Index of a hash in this CPU's part of a CPU_ARRAY. */
static __always_inline __u32 seen_slot(__u64 hash, __u32 entries)
{
    return bpf_get_smp_processor_id() * entries + ((hash >> 7) & (entries - 1));
}
