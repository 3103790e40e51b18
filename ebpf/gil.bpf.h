/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has the GIL: struct _gil_runtime_state, Python/ceval_gil.c. A thread that waits for it is in futex with an address
 * inside; `last_holder` is who has it while `locked` is not 0. Up to CPython 3.11 the runtime holds one, later each
 * interpreter points to its own or to that of the main interpreter. In 3.6 the members are static variables, and
 * _PyThreadState_Current is who has it.
 */
#pragma once

#define SYSCALL_FUTEX 202 /* arch/x86/entry/syscalls/syscall_64.tbl */

struct gil_state {
    __u64 holder;
    __u32 locked;
    __u32 pad;
};

static __always_inline bool in_gil(__u64 address, __u64 gil, struct bp_process *process)
{
    return gil && address - gil < process->gil_bytes;
}

/* The GIL of the thread's own interpreter; 0: not known. Remembered where it is not that of the process. */
static __always_inline __u64 own_gil(struct bp_walk *walk, struct bp_thread *thread, struct bp_process *process)
{
    __u64 interpreter = 0, gil = 0;
    if (process->layout.interpreter_gil == 0xffff)
        return process->gil;
    if (!READ_USER(interpreter, walk->tstate + process->layout.tstate_interpreter) ||
        !READ_USER(gil, interpreter + process->layout.interpreter_gil))
        return process->gil;
    thread->gil = gil == process->gil ? 0 : gil;
    return gil;
}

static __always_inline bool read_gil(struct gil_state *state, __u64 gil, struct bp_process *process)
{
    if (!process->gil_current)
        return READ_USER(*state, gil + process->layout.gil_holder);
    if (!READ_USER(state->holder, process->gil_current))
        return false;
    state->locked = state->holder != 0;
    return true;
}

/* Flags of enum bp_gil_flags. In a wait for the GIL walk->holder becomes the thread state of who has it. */
static __always_inline __u8 gil_flags(struct bp_walk *walk, struct bp_thread *thread, struct bp_process *process)
{
    __u64 futex = walk->futex;
    struct gil_state state = {};
    __u64 gil = thread->gil ? thread->gil : process->gil;
    if (!process->gil)
        return 0;
    if (in_gil(futex, process->gil, process)) { /* on its way there the slot is empty, or has the state of before */
        thread->gil = 0;
        gil = process->gil;
    } else if (!walk->tstate) {
        return 0;
    } else if (walk->purpose == BP_FOR_SAMPLE || (futex && !in_gil(futex, gil, process))) {
        gil = own_gil(walk, thread, process); /* it may have moved on to another interpreter */
    }
    if (!read_gil(&state, gil, process))
        return 0;
    if (in_gil(futex, gil, process)) {
        walk->holder = state.locked && state.holder != walk->tstate ? state.holder : 0;
        return BP_WAITS_FOR_GIL;
    }
    return state.locked && state.holder == walk->tstate ? BP_HOLDS_GIL : 0;
}
