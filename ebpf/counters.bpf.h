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

/* enum bp_config_flags */
static __always_inline __u32 config_flags(void)
{
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    return config ? config->flags : BP_CONFIG_STOPPED;
}
