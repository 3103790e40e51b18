/* SPDX-License-Identifier: GPL-2.0-only */
/* count() and fail(): the only two ways to touch a counter. */
#pragma once

static __always_inline void count(enum bp_status status)
{
    __u32 index = status;
    __u64 *counter = bpf_map_lookup_elem(MAP(counters), &index);
    if (counter)
        *counter += 1;
}

/* Counts a status and returns it, for `return fail(...)`. */
static __always_inline enum bp_status fail(enum bp_status status)
{
    count(status);
    return status;
}
