/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A thread that waits or wakes again where it did before has the same stack, and need not be walked again. What tells:
 * instruction and stack pointer; the address, code and position of each Python frame, and which code object the innermost
 * ones have; and each return address, where it was before. Other registers hold values that change, and lead nowhere else.
 * Reading a code object takes about as long as all the rest of a frame, so those that hardly ever change are not always read.
 */
#pragma once

/* The signature of the stack that begins with walk->frame; 0: it has none, for it is too deep or cannot be read. */
static __always_inline __u64 stack_signature(struct bp_walk *walk)
{
    __u64 code_at = walk->layout.frame_code & 63, previous_at = walk->layout.frame_previous & 63;
    __u64 instruction_at = walk->layout.frame_instruction & 63, mark_at = walk->layout.frame_mark & 127;
    __u64 *registers = walk->native.registers;
    walk->signature = mix(mix(walk->hash, registers[REGISTER_IP]), registers[REGISTER_SP]);
    walk->innermost = walk->frame;
    for (int n = 0; n < BP_LEAF_FRAMES; n++)
        FRAME_CODE(walk, n) = 0;
    BOUNDED_LOOP
    for (int i = 0; i < BP_REPEAT_FRAMES; i++) {
        if (!frame_in_block(walk))
            break;
        __u8 *bytes = walk->block + ((walk->frame - walk->base) & (BLOCK_BYTES - 1));
        __u64 code = (*(__u64 *)(bytes + code_at) & ADDRESS_MASK) | (__u64) * (bytes + mark_at) << 56;
        walk->signature = mix_frame(walk->signature, walk->frame, code, *(__u64 *)(bytes + instruction_at));
        walk->frame = *(__u64 *)(bytes + previous_at);
        if (i < BP_LEAF_FRAMES)
            FRAME_CODE(walk, i) = code;
        if (!walk->frame)
            break;
    }
    bool is_whole = !walk->frame;
    walk->frame = walk->innermost;
    return is_whole ? walk->signature | 1 : 0;
}

/* Whether the native stack has the return addresses again that it had. */
static __always_inline bool returns_repeat(struct bp_walk *walk, struct bp_repeat *repeat)
{
    walk->returns = 1;
    walk->last_place = walk->native.registers[REGISTER_SP] - sizeof(__u64);
    BOUNDED_LOOP
    for (int i = 0; i < BP_REPEAT_RETURNS; i++) {
        __u64 words = repeat->places[i];
        if (!words)
            break;
        walk->last_place += words * sizeof(__u64);
        if (!read_stack(&walk->native, walk->last_place))
            break;
        walk->returns = mix(walk->returns, walk->native.word);
    }
    bool is_same = walk->returns == repeat->returns;
    walk->returns = 1;
    walk->last_place = walk->native.registers[REGISTER_SP];
    return is_same;
}

/* Whether the innermost frames, as stack_signature() found them, have the code objects again that were at their addresses. */
static __always_inline bool codes_repeat(struct bp_walk *walk, struct bp_repeat *repeat)
{
    __u64 now = walk->header.time_ns, codes = 1;
    if (repeat->looked_ns - repeat->since_ns >= BP_SETTLED_NS && now - repeat->looked_ns < BP_SETTLED_LOOK_NS)
        return true;
    BOUNDED_LOOP
    for (int n = 0; n < BP_LEAF_FRAMES; n++) {
        if (!FRAME_CODE(walk, n))
            break;
        codes = mix(codes, code_identity(walk, FRAME_CODE(walk, n) & ADDRESS_MASK));
    }
    if (codes != repeat->codes)
        return false;
    repeat->looked_ns = now;
    return true;
}

/* What is known of the stack with this signature, 0: nothing. Which one it is goes through memory, see python_walk(). */
static __always_inline struct bp_repeat *find_repeat(struct bp_walk *walk, struct bp_thread *thread)
{
    walk->place = 0;
    BOUNDED_LOOP
    for (int i = 0; i < BP_REPEATS; i++)
        if (thread->repeats[i].signature == walk->signature)
            walk->place = i;
    asm volatile("" ::: "memory");
    __u64 place = walk->place;
    if (place >= BP_REPEATS)
        place = 0;
    struct bp_repeat *repeat = &thread->repeats[place];
    return repeat->signature == walk->signature ? repeat : 0;
}

/* The key of the stack that begins with walk->frame, if the thread had it before; 0: it must be walked. */
static __always_inline __u64 repeated_stack(struct bp_walk *walk, struct bp_thread *thread)
{
    walk->signature = stack_signature(walk);
    struct bp_repeat *repeat = walk->signature ? find_repeat(walk, thread) : 0;
    if (!repeat || walk->header.time_ns - repeat->time_ns > BP_REPEAT_NS || !returns_repeat(walk, repeat) ||
        !codes_repeat(walk, repeat))
        return 0;
    if (!(config_flags() & BP_CONFIG_CHECK_REPEATS))
        return repeat->stack;
    walk->repeated = repeat->stack;
    return 0;
}

/* A stack was walked to its end: the next one may be the same. */
static __always_inline void remember_stack(struct bp_walk *walk, __u64 key)
{
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &walk->tid);
    if (walk->repeated) {
        count(BP_COUNT_REPEATED);
        if (walk->repeated != key)
            count(BP_COUNT_REPEAT_WRONG);
        return; /* as if it had not been walked */
    }
    bool is_whole = walk->header.status == BP_OK &&
                    (walk->header.native_status == BP_OK || walk->header.native_status == BP_STACK_NOT_TAKEN);
    if (!thread || !is_whole || walk->cannot_repeat)
        return;
    struct bp_repeat *repeat = find_repeat(walk, thread);
    if (!repeat) {
        __u32 place = thread->next_repeat;
        if (place >= BP_REPEATS)
            place = 0;
        thread->next_repeat = place + 1;
        repeat = &thread->repeats[place];
    }
    __u64 codes = 1;
    BOUNDED_LOOP
    for (int n = 0; n < BP_LEAF_FRAMES; n++) {
        if (n >= walk->header.python_count)
            break;
        codes = mix(codes, FRAME_IDENTITY(walk, n));
    }
    repeat->looked_ns = walk->header.time_ns;
    if (repeat->signature != walk->signature || repeat->codes != codes)
        repeat->since_ns = repeat->looked_ns;
    repeat->codes = codes;
    repeat->signature = walk->signature;
    repeat->returns = walk->returns;
    BOUNDED_LOOP
    for (int i = 0; i < BP_REPEAT_RETURNS; i += sizeof(__u64))
        *(__u64 *)(repeat->places + i) = *(__u64 *)(walk->places + i);
    repeat->stack = key;
    repeat->time_ns = walk->header.time_ns;
}
