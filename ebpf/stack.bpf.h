/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking the stack of the current task: in go a thread and what the stack is for, out comes the key of a stack that was
 * sent, now or lately. The frames are in scratch memory, struct bp_walk.
 */
#pragma once

#define PYTHON_CALLS (BP_MAX_PYTHON_FRAMES / PYTHON_FRAMES_PER_CALL)
#define NATIVE_FRAMES_PER_CALL 64
#define NATIVE_CALLS (BP_MAX_NATIVE_FRAMES / NATIVE_FRAMES_PER_CALL)
#define KERNEL_FRAMES_PER_CALL 8
#define KERNEL_CALLS (BP_MAX_KERNEL_FRAMES / KERNEL_FRAMES_PER_CALL)
#define CODES_PER_COPY_CALL 32
#define COPY_CALLS (BP_MAX_PYTHON_FRAMES / CODES_PER_COPY_CALL)
#define IDENTIFY_CALLS (BP_MAX_PYTHON_FRAMES / CODES_PER_CALL)

static __always_inline struct bp_walk *scratch_walk(void)
{
    __u32 cpu = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(MAP(walks), &cpu);
}

/*
 * Functions that the verifier looks at once, whatever calls them and however often: to it a call is one instruction. In
 * Documentation/bpf they are called global functions. Each is FUNCTION(name) at the beginning of a line, is called as
 * CALL(name, walk), and returns a number.
 *
 * BCC knows no calls between functions. So CALL compiles to a call of a helper with a number that no helper has;
 * bpfprof/kernel/loader.py puts the function behind the program and makes it a call of that.
 *
 * Programs and functions are compiled side by side: with BP_ONLY_PROGRAMS functions have no code.
 *
 * Before Linux 5.12 such functions take numbers only: there each finds the walk of its CPU itself.
 */
#if BP_ONLY_PROGRAMS
#define LINKAGE static
#else
#define LINKAGE
#endif
#if BP_HAS_TASK_POINTERS
#define FUNCTION(name) LINKAGE int name(struct bp_walk *walk)
#define ARGUMENT(walk) walk
typedef struct bp_walk *function_argument;
#else
#define FUNCTION(name)                                                              \
    LINKAGE int name(int ignored); /* first, for BCC puts an attribute before it */ \
    static __always_inline int name##_of(struct bp_walk *);                         \
    LINKAGE int name(int ignored)                                                   \
    {                                                                               \
        return name##_of(scratch_walk());                                           \
    }                                                                               \
    static __always_inline int name##_of(struct bp_walk *walk)
#define ARGUMENT(walk) 0
typedef int function_argument;
#endif
#ifndef CALL
#define CALL(name, walk)                                                 \
    ({                                                                   \
        int (*function)(function_argument) = (void *)BP_FUNCTION_##name; \
        function(ARGUMENT(walk));                                        \
    })
#endif

/*
 * REPEAT(name, one, turns): a FUNCTION that calls another one again and again until its result is not 0, and has this
 * result; 0: that did not happen in so many turns. The verifier compares each turn of a loop with those before it, so
 * two loops of 64 turns, one inside the other, cost it a fraction of one of 4,096.
 */
#define REPEAT(name, one, turns)          \
    FUNCTION(name)                        \
    {                                     \
        int result = 0;                   \
        if (!walk)                        \
            return 1;                     \
        BOUNDED_LOOP                      \
        for (int i = 0; i < turns; i++) { \
            result = CALL(one, walk);     \
            if (result)                   \
                break;                    \
        }                                 \
        return result;                    \
    }

/* Once for each process: user space has to look at it before its stacks can be taken. */
FUNCTION(ask_for)
{
    struct bp_process *process = walk ? process_of(walk) : 0;
    if (!process || process->flags & BP_PROCESS_ASKED)
        return 0;
    process->flags |= BP_PROCESS_ASKED;
    struct bp_event event = {.kind = BP_EVENT_ASK, .tid = walk->tid, .tgid = walk->tgid, .syscall = -1};
    event.time_ns = bpf_ktime_get_ns();
    send_event_and(&event, BPF_RB_FORCE_WAKEUP);
    return 0;
}

/* Nothing is walked yet; the walk's process and generation go into its hash. */
static __always_inline void clear_walk(struct bp_walk *walk, struct bp_process *process)
{
    walk->next = 0;
    walk->used = 0;
    walk->wants_native = 0;
    walk->wants_kernel = 0;
    walk->wants_look = 0;
    walk->interpreter = 0;
    walk->candidate = 0;
    walk->replaces_code = process && walk->header.time_ns - process->replaced_ns < BP_REPLACED_NS;
    walk->header.python_count = 0;
    walk->header.native_count = 0;
    walk->header.kernel_count = 0;
    walk->header.native_flags = 0;
    walk->header.native_status = BP_STACK_NOT_TAKEN;
    walk->header.generation = process ? process->generation : 0; /* other code may be at the same addresses */
    walk->key_factor = key_factor();
    walk->hash = walk->tgid;
    add_to_key(walk, walk->header.generation);
}

FUNCTION(next_state)
{
    return walk ? next_thread_state(walk) : SEARCH_ENDS;
}

REPEAT(search_states, next_state, THREAD_STATE_STEPS)

/* Goes on with the frames of the interpreter that lets this one run; false: there is none. */
static __always_inline bool outer_frames(struct bp_walk *walk)
{
    return CALL(search_states, walk) == SEARCH_FOUND;
}

/* walk->tstate becomes the innermost one of the thread, where the slot has the outermost. */
static __always_inline void find_running_state(struct bp_walk *walk, struct bp_process *process)
{
    __u64 outermost = walk->tstate;
    look_in_interpreters(walk, process);
    if (walk->interpreter == process->main_interpreter)
        walk->interpreter = 0; /* it is the only one */
    walk->tstate = 0;
    walk->tstate = walk->interpreter && outer_frames(walk) ? walk->outer : outermost;
}

/*
 * Finds where the stack begins. The status is that of its Python frames; BP_OK: there are some. A process that is not
 * known yet has none, and neither has a kernel thread or a task that has given its memory back.
 */
static __always_inline enum bp_status begin_stack(struct bp_walk *walk)
{
    __u32 config = config_flags();
    struct bp_process *process = process_of(walk);
    __u32 flags = process ? process->flags : 0;
    bool has_memory = LOAD_MEMBER(u64, CURRENT_TASK, BP_OFFSET_TASK_MM) != 0;

    clear_walk(walk, process);
    walk->gil_flags = 0;
    walk->holder = 0;
    walk->innermost = 0;
    walk->wants_kernel = walk->asks_for_kernel || config & BP_CONFIG_KERNEL || flags & BP_PROCESS_KERNEL;
    walk->wants_look = process && !(flags & (BP_PROCESS_KNOWN | BP_PROCESS_ASKED));
    if (!process || flags & BP_PROCESS_KERNEL)
        return flags & (BP_PROCESS_KNOWN | BP_PROCESS_KERNEL) ? BP_NO_PYTHON : BP_PYTHON_NOT_READY;
    if (!has_memory) { /* it is ending, and only the kernel runs in its name */
        walk->wants_kernel = 1;
        return BP_NO_PYTHON;
    }
    read_user_registers(walk->native.registers);
    if (config & BP_CONFIG_NATIVE) {
        walk->header.native_status = BP_NATIVE_NOT_READY;
        if (flags & BP_PROCESS_UNWIND) {
            walk->wants_native = 1;
            native_begin(&walk->native, process);
#if BP_WITH_CALLS
            begin_in_call(walk);
#endif
        }
    }
    if (!(flags & BP_PROCESS_PYTHON))
        return flags & BP_PROCESS_KNOWN ? BP_NO_PYTHON : BP_PYTHON_NOT_READY;
    walk->base = NOWHERE;
    walk->layout = process->layout;
    walk->tstate = 0;
    enum bp_status status = python_thread_state(walk, process);
    if (status == BP_OK && walk->layout.slot_stays)
        find_running_state(walk, process);
    if (status == BP_OK)
        status = walk->layout.lasti_bytes ? old_innermost_frame(walk) : python_innermost_frame(walk, process);
    if (status == BP_OK)
        walk->innermost = walk->frame;
    if (status == BP_NO_PYTHON && walk->interpreter && outer_frames(walk))
        status = BP_OK; /* an interpreter that is being made */
    struct bp_thread *thread = thread_of(walk);
    if (thread && walk->purpose != BP_FOR_WAKER)
        walk->gil_flags = gil_flags(walk, thread, process);
    return status;
}

/* Kernel frames, leaf first, come last in a stack. */
static __always_inline void kernel_frames(void *ctx, struct bp_walk *walk)
{
    __u32 used = walk->used;
    if (used > BP_MAX_STACK_WORDS - BP_MAX_KERNEL_FRAMES)
        return;
    long bytes = get_kernel_stack(ctx, &walk->words[used], BP_MAX_KERNEL_FRAMES * sizeof(__u64), 0);
    if (bytes > 0)
        walk->header.kernel_count = bytes / sizeof(__u64);
}

/* From frame walk->next of the kernel on; true when all are done. */
FUNCTION(hash_kernel)
{
    if (!walk)
        return 1;
    BOUNDED_LOOP
    for (int i = 0; i < KERNEL_FRAMES_PER_CALL; i++) {
        __u64 at = walk->used;
        HIDE(at); /* from the compiler, which would check another value than it uses */
        if (walk->next >= walk->header.kernel_count || at >= BP_MAX_STACK_WORDS)
            return 1;
        add_to_key(walk, walk->words[at]);
        walk->used = at + 1;
        walk->next += 1;
    }
    return 0;
}

static __always_inline void hash_kernel_frames(struct bp_walk *walk)
{
    walk->next = 0;
    BOUNDED_LOOP
    for (int i = 0; i < KERNEL_CALLS; i++) {
        if (CALL(hash_kernel, walk))
            break;
    }
}

FUNCTION(python_frames)
{
    if (!walk)
        return BP_STACK_NOT_TAKEN;
    return walk->layout.lasti_bytes ? old_python_walk(walk) : python_walk(walk);
}

FUNCTION(native_frame)
{
    return !walk || !native_walk(walk);
}

REPEAT(native_frames, native_frame, NATIVE_FRAMES_PER_CALL)

FUNCTION(identify_codes)
{
    return !walk || python_identify(walk, walk->header.time_ns);
}

FUNCTION(copy_code)
{
    return !walk || copy_next_code(walk);
}

REPEAT(copy_some, copy_code, CODES_PER_COPY_CALL)

/* From walk->frame to the outermost Python frame. */
FUNCTION(all_python_frames)
{
    int status = BP_STACK_NOT_TAKEN;
    if (!walk)
        return status;
    BOUNDED_LOOP
    for (int i = 0; i < PYTHON_CALLS; i++) {
        status = CALL(python_frames, walk);
        bool has_more = status == BP_OK && (walk->interpreter || walk->candidate);
        if (status != BP_PYTHON_TOO_DEEP && !(has_more && outer_frames(walk)))
            break;
    }
    walk->header.python_count = walk->next;
    walk->used = walk->next * FRAME_WORDS;
    return status;
}

/* Where the stack of the current task begins. */
FUNCTION(begin_walk)
{
    if (walk)
        walk->header.status = begin_stack(walk);
    return 0;
}

FUNCTION(all_native_frames)
{
    int is_done = 0;
    if (!walk)
        return 0;
    BOUNDED_LOOP
    for (int i = 0; i < NATIVE_CALLS; i++) {
        is_done = CALL(native_frames, walk);
        if (is_done)
            break;
    }
    if (!is_done)
        walk->header.native_status = BP_NATIVE_TOO_DEEP;
    if (walk->header.native_status == BP_NATIVE_NO_MAPPING)
        walk->wants_look = 1;
    return 0;
}

/* Python and native frames of the current task. Not one function: what calls what has 512 bytes of stack together. */
static __always_inline void walk_stack(struct bp_walk *walk)
{
    CALL(begin_walk, walk);
    if (walk->header.status == BP_OK)
        walk->header.status = CALL(all_python_frames, walk);
    if (walk->wants_native)
        CALL(all_native_frames, walk);
}

/* What identify_leaf() leaves out. */
static __always_inline void identify_rest(struct bp_walk *walk)
{
    walk->next = BP_LEAF_FRAMES;
    BOUNDED_LOOP
    for (int i = 0; i < IDENTIFY_CALLS; i++) {
        if (CALL(identify_codes, walk))
            break;
    }
}

static __always_inline void copy_codes(struct bp_walk *walk)
{
    walk->next = 0;
    walk->copies_left = BP_COPIES_PER_STACK;
    BOUNDED_LOOP
    for (int i = 0; i < COPY_CALLS; i++) {
        if (CALL(copy_some, walk))
            break;
    }
}

/* All frames are there. Sends the stack unless this CPU sent it lately, and first the code objects that are new in it. */
FUNCTION(send_stack)
{
    if (!walk)
        return 0;
    walk->header.key = 0;
    __u8 native_status = walk->header.native_status;
    bool is_native_ok = native_status == BP_OK || native_status == BP_STACK_NOT_TAKEN;
    walk->status = is_native_ok ? walk->header.status : native_status;
    hash_kernel_frames(walk);
    if (!walk->used)
        return 0;
    walk->status = BP_OK;
    identify_leaf(walk);
    if (walk->replaces_code)
        identify_rest(walk);
    __u64 statuses = walk->header.status | walk->header.native_status << 8;
    add_to_key(walk, statuses);
    __u64 key = walk->hash | 1, now = walk->header.time_ns;
    __u32 slot = seen_slot(key, BP_SEEN_STACKS);
    struct bp_seen_stack *seen = bpf_map_lookup_elem(MAP(seen_stacks), &slot);
    walk->header.key = key;
    if (!seen || (seen->key == key && now - seen->time_ns < BP_RESEND_NS))
        return 0;
    walk->header.tgid = walk->tgid;
    if (!walk->replaces_code)
        identify_rest(walk);
    copy_codes(walk);
    __u64 words = walk->used;
    if (words > BP_MAX_STACK_WORDS)
        return 0;
    __u64 bytes = sizeof(walk->header) + words * sizeof(walk->words[0]);
    struct bp_process *process = process_of(walk);
    bool has_part = !process || has_room(MAP(stacks), &process->in_stacks, bytes);
    if (!has_part || bpf_ringbuf_output(MAP(stacks), &walk->header, bytes, wakes(MAP(stacks)))) {
        count(BP_LOST_STACK_RING_FULL);
        return 0;
    }
    seen->key = key;
    seen->time_ns = now;
    return 0;
}

/*
 * After the stack of a thread that waits for a GIL: the Python frames of the thread that has it, which lie in the same
 * memory. Its thread id is the result; without frames it is no stack to send_stack(), which gives it the key 0.
 */
FUNCTION(walk_holder)
{
    if (!walk)
        return 0;
    __u32 holder_id = thread_id_of(walk, walk->holder);
    clear_walk(walk, process_of(walk));
    walk->base = NOWHERE;
    if (python_frame_of(walk, walk->holder))
        walk->header.status = CALL(all_python_frames, walk);
    return holder_id;
}

/*
 * Takes the stack of the current task, thread walk->tid of process walk->tgid. walk->header.key becomes its key, 0 if there
 * are no frames: walk->status then says why. In a wait for a GIL walk->holder is who has it.
 */
static __always_inline void take_stack(void *ctx, struct bp_walk *walk, enum bp_purpose purpose, __u64 futex,
                                       bool asks_for_kernel)
{
    walk->purpose = purpose;
    walk->futex = futex;
    walk->asks_for_kernel = asks_for_kernel;
    walk_stack(walk);
    if (walk->wants_look)
        CALL(ask_for, walk);
    if (walk->wants_kernel)
        kernel_frames(ctx, walk);
    CALL(send_stack, walk);
}
