/* SPDX-License-Identifier: GPL-2.0-only */
/* What user space hears of programs, counters and events, and what it wants of them. */
#pragma once

/* The only way to touch a counter. */
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

/* User space looks at the buffers some times a second; `wakeup` BPF_RB_FORCE_WAKEUP asks it to look now. */
static __always_inline void send_event_and(struct bp_event *event, __u64 wakeup)
{
    if (bpf_ringbuf_output(MAP(events), event, sizeof(*event), wakeup))
        count(BP_LOST_EVENT_RING_FULL);
}

static __always_inline void send_event(struct bp_event *event)
{
    send_event_and(event, BPF_RB_NO_WAKEUP);
}
