/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking the stack of the current task. begin_stack() finds where to begin; the tail programs walk, send the stack if it
 * is new, and finish. MAP(walks) and MAP(tails) are those of the program's own type.
 */
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

/* Jumps to another program and does not return, unless the table has none (then the stack is lost and counted). */
static __always_inline void tail_call(void *ctx, __u32 tail)
{
    ((long (*)(void *, void *, __u64))BPF_FUNC_tail_call)(ctx, MAP(tails), tail);
    count(BP_LOST_TAIL_CALL);
}

/* The stack is as far as it gets: a sample is sent with it; a switched-out thread keeps it for its switch-in. */
static __always_inline void finish_stack(struct bp_walk *walk, __u64 key, __u8 status)
{
    if (walk->event.kind == BP_EVENT_SAMPLE) { /* 0 in the scratch memory of the scheduler's programs */
        walk->event.stack = key;
        walk->event.status = status;
        send_event(&walk->event);
        return;
    }
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &walk->tid);
    if (thread) {
        thread->stack = key;
        thread->status = status;
    }
}

/* After walking: more frames, a stack that must be sent, or done. */
static __always_inline void after_walk(void *ctx, struct bp_walk *walk, __u8 status)
{
    __u32 frames = walk->next;
    if (status == BP_PYTHON_TOO_DEEP && frames < BP_MAX_PYTHON_FRAMES) {
        tail_call(ctx, BP_TAIL_WALK);
        return;
    }
    if (!frames) {
        finish_stack(walk, 0, status);
        return;
    }
    identify_leaf(walk);
    __u64 key = mix(walk->hash, status) | 1, now = bpf_ktime_get_ns();
    __u32 slot = seen_slot(key, BP_SEEN_STACKS);
    struct bp_seen_stack *seen = bpf_map_lookup_elem(MAP(seen_stacks), &slot);
    if (seen && seen->key == key && now - seen->time_ns < BP_RESEND_NS) {
        finish_stack(walk, key, status);
        return;
    }
    walk->header.key = key;
    walk->header.time_ns = now;
    walk->header.tgid = walk->tgid;
    walk->header.status = status;
    walk->header.python_count = frames;
    walk->next = BP_LEAF_FRAMES;
    tail_call(ctx, BP_TAIL_IDENTIFY);
}

static __always_inline void send_stack(struct bp_walk *walk)
{
    __u64 frames = walk->header.python_count, key = walk->header.key;
    if (frames > BP_MAX_PYTHON_FRAMES)
        return;
    if (bpf_ringbuf_output(MAP(stacks), &walk->header, sizeof(walk->header) + frames * sizeof(walk->python[0]),
                           BPF_RB_NO_WAKEUP)) {
        count(BP_LOST_STACK_RING_FULL);
        return;
    }
    __u32 slot = seen_slot(key, BP_SEEN_STACKS);
    struct bp_seen_stack *seen = bpf_map_lookup_elem(MAP(seen_stacks), &slot);
    if (seen) {
        seen->key = key;
        seen->time_ns = walk->header.time_ns;
    }
}

static __always_inline struct bp_walk *scratch_walk(void)
{
    __u32 zero = 0;
    return bpf_map_lookup_elem(MAP(walks), &zero);
}

/* Takes the stack of `task`, which must be current. */
static __always_inline void begin_stack(void *ctx, struct bp_walk *walk, __u64 task)
{
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &walk->tgid);
    if (!process || !(process->flags & BP_PROCESS_PYTHON)) {
        finish_stack(walk, 0, process && process->flags & BP_PROCESS_KNOWN ? BP_NO_PYTHON : BP_PYTHON_NOT_READY);
        return;
    }
    walk->base = 1ULL << 63; /* far from any frame: the block is empty */
    walk->hash = walk->tgid;
    walk->next = 0;
    walk->layout = process->layout;
    __u8 status = python_innermost_frame(walk, task, process);
    if (status == BP_OK)
        tail_call(ctx, BP_TAIL_WALK);
    else
        finish_stack(walk, 0, status);
}
