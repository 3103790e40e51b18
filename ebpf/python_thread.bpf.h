/* SPDX-License-Identifier: GPL-2.0-only */
/* From a task to its PyThreadState and the innermost frame. */
#pragma once

/*
 * The thread state is the one bound to the OS thread (pthread-specific slot of autoTSSkey), not the current one, which
 * is null while the GIL is released: that is when a thread waits. The slot lies at a fixed distance from the thread
 * pointer (glibc x86-64: struct pthread.specific_1stblock).
 */
static __always_inline enum bp_status python_innermost_frame(struct bp_walk *walk, __u64 task,
                                                             struct bp_process *process)
{
    struct bp_python_layout *layout = &process->layout;
    __u64 thread_pointer = 0, tstate = 0, frame = 0;

    READ_KERNEL(thread_pointer, task + BP_OFFSET_TASK_FSBASE);
    if (!READ_USER(tstate, thread_pointer + process->tss_offset))
        return BP_PYTHON_STATE_FAULT;
    if (!tstate)
        return BP_NO_PYTHON;
    if (!READ_USER(frame, tstate + layout->tstate_frame))
        return BP_PYTHON_STATE_FAULT;
    if (layout->cframe_frame != 0xffff && !READ_USER(frame, frame + layout->cframe_frame))
        return BP_PYTHON_STATE_FAULT;
    if (!READ_USER(walk->chunk, tstate + layout->tstate_chunk))
        return BP_PYTHON_STATE_FAULT;
    walk->frame = frame;
    return frame ? BP_OK : BP_NO_PYTHON;
}
