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
static __always_inline void tail_call(void *ctx, struct bp_walk *walk, __u32 tail)
{
    walk->tails += 1;
    ((long (*)(void *, void *, __u64))BPF_FUNC_tail_call)(ctx, MAP(tails), tail);
    count(BP_LOST_TAIL_CALL);
}

/* Nothing is walked yet; the walk's process and generation go into its hash. */
static __always_inline void clear_walk(struct bp_walk *walk, struct bp_process *process)
{
    walk->next = 0;
    walk->used = 0;
    walk->wants_native = 0;
    walk->signature = 0;
    walk->repeated = 0;
    walk->returns = 1;
    walk->places[0] = 0;
    walk->last_place = walk->native.registers[REGISTER_SP];
    walk->cannot_repeat = 0;
    walk->header.native_count = 0;
    walk->header.kernel_count = 0;
    walk->header.native_flags = 0;
    walk->header.native_status = BP_STACK_NOT_TAKEN;
    walk->header.generation = process ? process->generation : 0; /* other code may be at the same addresses */
    walk->hash = mix(walk->tgid, walk->header.generation);
}

/* The Python frames of the thread that has the GIL which this one waits for: they lie in the same memory. */
static __always_inline void begin_holder(void *ctx, struct bp_walk *walk, struct bp_thread *thread)
{
    __u64 holder = walk->holder, native_id = 0;
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &walk->tgid);
    walk->holder = 0;
    if (!process || walk->tails > BP_HOLDER_MAX_TAILS)
        return;
    READ_USER(native_id, holder + process->layout.tstate_native_id);
    thread->holder = native_id;
    if (thread->short_gil >= BP_SHORT_GIL_WAITS) /* this one most likely too: then nobody looks at the stack */
        return;
    clear_walk(walk, process);
    walk->purpose = BP_FOR_HOLDER;
    walk->wants_kernel = 0;
    walk->base = NOWHERE;
    if (python_frame_of(walk, holder))
        tail_call(ctx, walk, BP_TAIL_WALK); /* a repeat is known by registers, and its are not to be seen from here */
}

/* Of a thread that leaves the CPU. */
static __always_inline void keep_stack(void *ctx, struct bp_walk *walk, struct bp_thread *thread, __u64 key,
                                       __u8 status)
{
    thread->stack = key;
    thread->status = status;
    if (walk->holder)
        begin_holder(ctx, walk, thread);
}

/* The stack is as far as it gets: a sample is sent with it; others are kept in the thread they are for. */
static __always_inline void finish_stack(void *ctx, struct bp_walk *walk, __u64 key, __u8 status)
{
    if (walk->purpose == BP_FOR_SAMPLE) {
        walk->event.stack = key;
        walk->event.status = status;
        send_event(&walk->event);
        return;
    }
    __u32 tid = walk->purpose == BP_FOR_WAKER ? walk->owner : walk->tid;
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &tid);
    if (!thread)
        return;
    if (walk->purpose == BP_FOR_WAKER)
        thread->waker_stack = key;
    else if (walk->purpose == BP_FOR_HOLDER)
        thread->holder_stack = key;
    else
        keep_stack(ctx, walk, thread, key, status);
}

/* What a stack without a key shows instead: why there are no frames. */
static __always_inline __u8 walk_status(struct bp_walk *walk)
{
    __u8 status = walk->header.native_status;
    return status == BP_OK || status == BP_STACK_NOT_TAKEN ? walk->header.status : status;
}

/* All Python frames are there: on to the native ones, if they are wanted. */
static __always_inline void after_python(void *ctx, struct bp_walk *walk, __u8 status)
{
    walk->header.status = status;
    walk->header.python_count = walk->next;
    walk->used = walk->next * FRAME_WORDS;
    tail_call(ctx, walk, walk->wants_native ? BP_TAIL_UNWIND : BP_TAIL_COMPLETE);
}

/* Kernel frames, leaf first, come last in a stack. */
static __always_inline void kernel_frames(void *ctx, struct bp_walk *walk)
{
    __u32 used = walk->used;
    if (used > BP_MAX_STACK_WORDS - BP_MAX_KERNEL_FRAMES)
        return;
    long bytes = ((long (*)(void *, void *, __u32, __u64))BPF_FUNC_get_stack)(ctx, &walk->words[used],
                                                                              BP_MAX_KERNEL_FRAMES * sizeof(__u64), 0);
    if (bytes <= 0)
        return;
    walk->header.kernel_count = bytes / sizeof(__u64);
    BOUNDED_LOOP
    for (int i = 0; i < BP_MAX_KERNEL_FRAMES; i++) {
        __u32 at = walk->used;
        HIDE(at); /* from the compiler, which would check another value than it uses */
        if (i >= walk->header.kernel_count || at >= BP_MAX_STACK_WORDS)
            break;
        walk->hash = mix(walk->hash, walk->words[at]);
        walk->used = at + 1;
    }
}

/* All frames are there: done, or a stack that must be sent. */
static __always_inline void after_frames(void *ctx, struct bp_walk *walk)
{
    if (walk->wants_kernel)
        kernel_frames(ctx, walk);
    if (!walk->used) {
        finish_stack(ctx, walk, 0, walk_status(walk));
        return;
    }
    identify_leaf(walk);
    __u64 statuses = walk->header.status | walk->header.native_status << 8;
    __u64 key = mix(walk->hash, statuses) | 1, now = walk->header.time_ns;
    __u32 slot = seen_slot(key, BP_SEEN_STACKS);
    struct bp_seen_stack *seen = bpf_map_lookup_elem(MAP(seen_stacks), &slot);
    if (seen && seen->key == key && now - seen->time_ns < BP_RESEND_NS) {
        if (walk->signature)
            remember_stack(walk, key);
        finish_stack(ctx, walk, key, BP_OK);
        return;
    }
    walk->header.key = key;
    walk->header.tgid = walk->tgid;
    walk->next = BP_LEAF_FRAMES;
    walk->rounds = 0;
    tail_call(ctx, walk, BP_TAIL_IDENTIFY);
}

static __always_inline void send_stack(struct bp_walk *walk)
{
    __u64 words = walk->used, key = walk->header.key;
    if (words > BP_MAX_STACK_WORDS)
        return;
    if (bpf_ringbuf_output(MAP(stacks), &walk->header, sizeof(walk->header) + words * sizeof(walk->words[0]),
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
    if (walk->signature)
        remember_stack(walk, key);
}

static __always_inline struct bp_walk *scratch_walk(void)
{
    __u32 cpu = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(MAP(walks), &cpu);
}

/* Once for each process: user space has to look at it before its stacks can be taken. */
static __always_inline void ask_for(struct bp_walk *walk, struct bp_process *process)
{
    if (process->flags & BP_PROCESS_ASKED)
        return;
    process->flags |= BP_PROCESS_ASKED;
    struct bp_event event = {.kind = BP_EVENT_ASK, .tid = walk->tid, .tgid = walk->tgid, .syscall = -1};
    event.time_ns = bpf_ktime_get_ns();
    send_event_and(&event, BPF_RB_FORCE_WAKEUP);
}

/* Of a sample the flags go into its event, of a wait they are kept in the thread. */
static __always_inline void note_gil(struct bp_walk *walk, struct bp_thread *thread, __u8 flags)
{
    if (walk->purpose == BP_FOR_SAMPLE)
        walk->event.flags = flags;
    else
        thread->flags |= flags;
}

/* Takes the stack of the current task, whose entry is `thread`. It waits for `futex`, 0: for none. */
static __always_inline void begin_stack(void *ctx, struct bp_walk *walk, struct bp_thread *thread,
                                        enum bp_purpose purpose, __u64 futex, bool wants_kernel)
{
    __u32 config = config_flags();
    struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &walk->tgid);
    __u32 flags = process ? process->flags : 0;
    __u8 status = flags & (BP_PROCESS_KNOWN | BP_PROCESS_KERNEL) ? BP_NO_PYTHON : BP_PYTHON_NOT_READY;
    __u64 memory = LOAD_KERNEL(u64, bpf_get_current_task_btf(), BP_OFFSET_TASK_MM);

    native_registers(&walk->native);
    clear_walk(walk, process);
    walk->purpose = purpose;
    walk->tails = 0;
    walk->holder = 0;
    walk->tstate = 0;
    walk->wants_kernel = wants_kernel || config & BP_CONFIG_KERNEL || flags & BP_PROCESS_KERNEL;
    if (!process)
        goto complete;
    if (!(flags & BP_PROCESS_KNOWN))
        ask_for(walk, process);
    if (flags & BP_PROCESS_KERNEL)
        goto complete;
    if (!memory) { /* it is ending: it has given its memory back, and only the kernel runs in its name */
        status = BP_NO_PYTHON;
        walk->wants_kernel = 1;
        goto complete;
    }
    if (config & BP_CONFIG_NATIVE) {
        walk->header.native_status = BP_NATIVE_NOT_READY;
        if (flags & BP_PROCESS_UNWIND) {
            walk->wants_native = 1;
            native_begin(&walk->native, process);
        }
    }
    if (flags & BP_PROCESS_PYTHON) {
        walk->base = NOWHERE;
        walk->layout = process->layout;
        status = python_innermost_frame(walk, process);
        if (purpose != BP_FOR_WAKER)
            note_gil(walk, thread, gil_flags(walk, thread, process, futex));
        if (status == BP_OK)
            tail_call(ctx, walk, purpose == BP_FOR_SAMPLE || walk->wants_kernel ? BP_TAIL_WALK : BP_TAIL_REPEAT);
    }
complete:
    after_python(ctx, walk, status);
}
