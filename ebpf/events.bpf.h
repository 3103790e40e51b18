/* SPDX-License-Identifier: GPL-2.0-only */
/* Sending events to user space, through the ring buffer. */
#pragma once

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
