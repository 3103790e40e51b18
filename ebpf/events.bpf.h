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

static __always_inline __u64 key_factor(void)
{
    __u32 zero = 0;
    struct bp_config *config = bpf_map_lookup_elem(MAP(config), &zero);
    return config ? config->key_factor : 1;
}

static __always_inline bool is_half_full(void *ring)
{
    return bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 2;
}

/*
 * Whether a process may send so many bytes. The second half of a ring is shared out: since the reader came last, a process
 * takes of it at most what it leaves to the others, so that none fills it alone (dynamic thresholds: Choudhury and Hahne,
 * IEEE/ACM Transactions on Networking 6(2), 1998).
 */
static __always_inline bool has_room(void *ring, struct bp_ring_part *part, __u64 bytes)
{
    if (!is_half_full(ring))
        return true;
    __u64 waiting = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA), ring_bytes = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
    __u64 since = bpf_ringbuf_query(ring, BPF_RB_CONS_POS);
    if (part->since != since) {
        part->since = since;
        part->bytes = 0;
    }
    if (part->bytes + bytes > ring_bytes - waiting)
        return false;
    part->bytes += bytes;
    return true;
}

#define BP_WAKING_BYTES 65536 /* more than any record has */

/*
 * What a record that is sent does to the reader, who sleeps while little comes: nothing, but those that fill the first
 * quarter of a ring wake it.
 */
static __always_inline __u64 wakes(void *ring)
{
    __u64 over = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) - bpf_ringbuf_query(ring, BPF_RB_RING_SIZE) / 4;
    return over < BP_WAKING_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

/* `wakeup` BPF_RB_FORCE_WAKEUP asks user space to look at the buffers now. */
static __always_inline void send_event_and(struct bp_event *event, __u64 wakeup)
{
    if (bpf_ringbuf_output(MAP(events), event, sizeof(*event), wakeup))
        count(BP_LOST_EVENT_RING_FULL);
}

static __always_inline void send_event(struct bp_event *event)
{
    send_event_and(event, wakes(MAP(events)));
}
