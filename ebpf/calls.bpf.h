/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Calls of libraries that are open, and stacks that lead through them. Only with BP_WITH_CALLS, which record --cuda sets.
 *
 * While a probe waits for a function's return, the kernel has put the address of code of its own in place of the return
 * address (prepare_uretprobe(), kernel/events/uprobes.c), and a walk finds it there. The program counter of a thread that is
 * interrupted at a probe is not in its own code either. It is one of these, of Linux 6.18:
 *      behind the breakpoint, which is one byte and in place of the first instruction, until handle_swbp() sets it back;
 *      in a copy of that instruction, on a page of the kernel's at the end of the address space (xol_add_vma());
 *      in the first bytes of that page, which is what the function returns to: they push three registers, call the kernel and
 *      pop them (arch/x86/kernel/uprobes.c: uretprobe_trampoline_entry; before Linux 6.11 it was a breakpoint, too).
 */
#pragma once

/* Calls by thread, function, direction of a copy, and whether inside another call. Made by programs, read and removed by
 * user space. */
BP_MAP(call_sums, HASH, struct bp_call_key, struct bp_call_sum, BP_MAX_CALL_SUMS)
/* Calls that are open, by tid. Made by programs, removed by user space when the thread has ended. */
BP_MAP(open_calls, HASH, __u32, struct bp_calls, BP_MAX_CALL_THREADS)
/* What new elements of both are made of: too large for the programs' stack. */
BP_MAP(no_calls, ARRAY, __u32, struct bp_calls, 1)

#define BREAKPOINT 0xcc
#define PROBES_PAGE ((1ULL << 47) - 8192) /* TASK_SIZE - PAGE_SIZE, or above it with five levels of page tables */
#define COPY_BYTES 128                    /* UPROBE_XOL_SLOT_BYTES: the first is what functions return to */
#define TRAMPOLINE_STACK_BYTES 24

/* The calls of the thread whose stack is taken; 0: it made none. */
static __always_inline struct bp_calls *calls_of(struct bp_walk *walk)
{
    __u32 tid = walk->tid;
    return bpf_map_lookup_elem(MAP(open_calls), &tid);
}

/* Where the walk begins: in the thread's own code. */
static __always_inline void begin_in_call(struct bp_walk *walk)
{
    struct bp_native *native = &walk->native;
    struct bp_calls *calls = calls_of(walk);
    struct bp_thread *thread = thread_of(walk);
    walk->in_call = 0;
    if (!calls || !thread || calls->first_ns != thread->first_ns)
        return;
    walk->in_call = calls->depth > 0;
    __u64 pc = native->pc, sp = native->registers[REGISTER_SP];
    bool has_begun = false;
    __u8 before[2] = {};
    if (pc < PROBES_PAGE) {
#pragma unroll
        for (int i = 0; i < BP_MAX_OPEN_CALLS; i++)
            has_begun |=
                i < calls->depth && calls->open[i].address == pc - 1; /* its first instruction is one byte, too */
        /* Of several in a row it is what a linker fills gaps with. */
        if (!has_begun && READ_USER(before, pc - 2) && before[1] == BREAKPOINT && before[0] != BREAKPOINT)
            native->pc = pc - 1;
        return;
    }
    if ((pc & 4095) >= COPY_BYTES) { /* of the call that began last, behind it when it was executed */
        if (calls->depth)
            native->pc = calls->open[(calls->depth - 1) & (BP_MAX_OPEN_CALLS - 1)].address + (pc & (COPY_BYTES - 1));
        return;
    }
#pragma unroll
    for (int i = 0; i < BP_MAX_OPEN_CALLS; i++) {
        struct bp_open_call *open = &calls->open[i];
        __u64 popped = open->slot + sizeof(__u64) - sp;              /* what the kernel's code has on the stack */
        if (i <= calls->depth && popped <= TRAMPOLINE_STACK_BYTES) { /* the last has its end already, maybe */
            native->pc = open->returns_to;
            native->bases[SP] = open->slot + sizeof(__u64);
            native->is_exact = false;
        }
    }
}

/* What is returned to by the address that lies in `slot`. */
static __always_inline __u64 called_from(struct bp_walk *walk, __u64 slot, __u64 address)
{
    struct bp_calls *calls = calls_of(walk);
    if (!calls)
        return address;
#pragma unroll
    for (int i = 0; i < BP_MAX_OPEN_CALLS; i++) {
        if (i < calls->depth && calls->open[i].slot == slot)
            address = calls->open[i].returns_to;
    }
    return address;
}
