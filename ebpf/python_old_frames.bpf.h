/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Python frames of CPython 3.6 to 3.10: PyFrameObjects, each by itself on the heap, from PyThreadState.frame on linked by
 * f_back. Each is one call of the C evaluation function, so none needs an entry mark. f_lasti tells the instruction:
 * what a stack has for its address is that of the code object and, added to it, the offset in the bytecode.
 */
#pragma once

#define FRAME_OBJECT_BYTES 128 /* of PyFrameObject: what is read of it. f_lasti is in there, and all have more */

static __always_inline enum bp_status old_innermost_frame(struct bp_walk *walk)
{
    if (!READ_USER(walk->frame, walk->tstate + walk->layout.tstate_frame))
        return BP_PYTHON_STATE_FAULT;
    return walk->frame ? BP_OK : BP_NO_PYTHON;
}

/* As python_walk(). */
static __always_inline enum bp_status old_python_walk(struct bp_walk *walk)
{
    __u64 code_at = walk->layout.frame_code & 63, previous_at = walk->layout.frame_previous & 63;
    __u64 lasti_at = walk->layout.frame_instruction & 127 & ~3, lasti_bytes = walk->layout.lasti_bytes;

    mark_frame(walk);
    BOUNDED_LOOP
    for (int i = 0; i < PYTHON_FRAMES_PER_CALL; i++) {
        if (probe_read_user(walk->block, FRAME_OBJECT_BYTES, (void *)walk->frame))
            return BP_PYTHON_FRAME_FAULT;
        __u64 code = *(__u64 *)(walk->block + code_at) & ADDRESS_MASK;
        __s64 lasti = *(__s32 *)(walk->block + lasti_at); /* -1: not started */
        __u64 instruction = code + lasti * lasti_bytes;
        __u32 n = walk->next;
        if (n >= BP_MAX_PYTHON_FRAMES)
            return BP_PYTHON_TOO_DEEP;
        FRAME_CODE(walk, n) = code;
        FRAME_INSTRUCTION(walk, n) = instruction;
        FRAME_IDENTITY(walk, n) = 0;
        walk->next = n + 1;
        add_to_key(walk, code);
        add_to_key(walk, instruction);
        walk->frame = *(__u64 *)(walk->block + previous_at);
        if (!walk->frame)
            return BP_OK;
        if (walk->frame == walk->met)
            return BP_PYTHON_FRAME_FAULT;
    }
    return BP_PYTHON_TOO_DEEP;
}

/* Id of a thread in its own pid namespace: before CPython 3.11 only the C library has it, where thread_id points to. */
static __always_inline __u32 thread_id_of(struct bp_walk *walk, __u64 tstate)
{
    __u64 at = tstate + walk->layout.tstate_native_id;
    __u32 id = 0;
    if (walk->layout.lasti_bytes) {
        __u64 thread = 0;
        if (!READ_USER(thread, at))
            return 0;
        at = thread + BP_PTHREAD_TID;
    }
    READ_USER(id, at);
    return id;
}
