/* SPDX-License-Identifier: GPL-2.0-only */
/* From the current task to its PyThreadState and the innermost frame. */
#pragma once

/*
 * The thread state is the one bound to the OS thread (pthread-specific slot of autoTSSkey), not the current one, which
 * is null while the GIL is released: that is when a thread waits. The slot lies at a fixed distance from the thread
 * pointer (glibc x86-64: struct pthread.specific_1stblock).
 */
/*
 * CPython 3.11 and 3.12 store tstate->cframe some 20 instructions before cframe.current_frame, which holds until then what
 * the stack held: an old frame, mostly. There the cframe before this one is right. Python/ceval.c, start of
 * _PyEval_EvalFrameDefault (v3.11.7, v3.12.1); _PyCFrame ends with {current_frame, previous}, Include/cpython/pystate.h.
 */
#define EVAL_PROLOGUE_BYTES 256
#define EVAL_FRAME_BYTES 512 /* the new cframe lies in the C frame on top of the stack */
#define TSTATE_BYTES 320     /* of PyThreadState: what is read of it */
#define CFRAME_PREVIOUS 8    /* from current_frame */

static __always_inline enum bp_status python_innermost_frame(struct bp_walk *walk, struct bp_process *process)
{
    struct bp_python_layout *layout = &process->layout;
    __u64 thread_pointer = LOAD_KERNEL(u64, bpf_get_current_task_btf(), BP_OFFSET_TASK_FSBASE), tstate = 0, frame = 0,
          chunk_at = layout->tstate_chunk, frame_at = layout->tstate_frame;
    __u64 ip = walk->native.registers[REGISTER_IP], sp = walk->native.registers[REGISTER_SP];

    if (!READ_USER(tstate, thread_pointer + process->tss_offset))
        return BP_PYTHON_STATE_FAULT;
    walk->tstate = tstate;
    if (!tstate)
        return BP_NO_PYTHON;
    /* The block is not in use yet. Both lie in its first words in every version. */
    if (chunk_at > TSTATE_BYTES - sizeof(__u64) || frame_at > TSTATE_BYTES - sizeof(__u64) ||
        probe_read_user(walk->block, TSTATE_BYTES, (void *)tstate))
        return BP_PYTHON_STATE_FAULT;
    frame = *(__u64 *)(walk->block + frame_at);
    walk->chunk = *(__u64 *)(walk->block + chunk_at);
    if (layout->cframe_frame != 0xffff) {
        bool is_new = ip - process->eval_start < EVAL_PROLOGUE_BYTES && frame - sp < EVAL_FRAME_BYTES;
        if (is_new && !READ_USER(frame, frame + layout->cframe_frame + CFRAME_PREVIOUS))
            return BP_PYTHON_STATE_FAULT;
        if (!READ_USER(frame, frame + layout->cframe_frame))
            return BP_PYTHON_STATE_FAULT;
    }
    walk->frame = frame;
    return frame ? BP_OK : BP_NO_PYTHON;
}

/* The same for another thread of the process: only the Python side of it can be seen from here. */
static __always_inline bool python_frame_of(struct bp_walk *walk, __u64 tstate)
{
    struct bp_python_layout *layout = &walk->layout;
    if (!READ_USER(walk->frame, tstate + layout->tstate_frame))
        return false;
    if (layout->cframe_frame != 0xffff && !READ_USER(walk->frame, walk->frame + layout->cframe_frame))
        return false;
    return READ_USER(walk->chunk, tstate + layout->tstate_chunk) && walk->frame;
}
