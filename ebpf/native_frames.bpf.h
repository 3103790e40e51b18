/* SPDX-License-Identifier: GPL-2.0-only */
/* From the thread's user registers to its start routine, by the unwind tables. */
#pragma once

/* Places in struct pt_regs, as above, of the DWARF register numbers 0 to 15 (rax rdx rcx rbx rsi rdi rbp - r8 to r15), 4 bits each. */
#define REGISTER_PLACES 0x0123678904ed5bcaULL
#define BLOCK_BELOW 64 /* how far below a word its block begins: saved registers lie below the return address */

/* Places in bp_native.bases. */
#define CFA BP_FP_AT_CFA
#define BP BP_FP_AT_RBP
#define SP BP_FP_AT_RSP

#if BP_WITH_CALLS
#include "calls.bpf.h"
#endif

/* Where struct pt_regs has a register of this DWARF number. */
static __always_inline __u32 register_place(__u32 number)
{
    return (REGISTER_PLACES >> (4 * (number & 15))) & 15;
}

/* native->word becomes the word at a place of the stack, mostly out of the block. */
static __always_inline bool read_stack(struct bp_native *native, __u64 address)
{
    if (address - native->block_base > BP_STACK_BLOCK_BYTES - sizeof(__u64)) {
        native->block_base = address - BLOCK_BELOW;
        if (probe_read_user(native->block, BP_STACK_BLOCK_BYTES, (void *)native->block_base)) {
            native->block_base = NOWHERE; /* the block would reach beyond the stack */
            return probe_read_user(&native->word, sizeof(native->word), (void *)address) == 0;
        }
    }
    native->word = *(__u64 *)(native->block + ((address - native->block_base) & (BP_STACK_BLOCK_BYTES - 1)));
    return true;
}

static __always_inline void native_begin(struct bp_native *native, struct bp_process *process)
{
    native->pc = native->registers[REGISTER_IP];
    native->bases[SP] = native->registers[REGISTER_SP];
    native->bases[BP] = native->registers[REGISTER_BP];
    native->is_exact = true;
    native->bp_lost = false;
    native->map_bytes = 0;
    native->mappings = process->mappings;
    native->mapping_count = process->mapping_count;
    native->generation = process->generation;
    native->jit_has_no_frames = process->layout.jit_has_no_frames && process->flags & BP_PROCESS_MAKES_CODE;
    native->block_base = NOWHERE;
}

/* The CFA becomes rsp in the caller. */
static __always_inline enum bp_status native_cfa(struct bp_walk *walk, struct bp_rule *rule, __u64 pc)
{
    struct bp_native *native = &walk->native;
    __u8 kind = rule->cfa_kind, extra = rule->cfa_extra;

    native->bases[CFA] = native->bases[SP];
    if (kind == BP_CFA_RBP || kind == BP_CFA_DEREF_RBP) {
        if (native->bp_lost)
            return BP_NATIVE_UNSUPPORTED;
        native->bases[CFA] = native->bases[BP];
    } else if (kind == BP_CFA_REGISTER) {
        if (walk->header.native_count > 1) /* only the leaf's registers are known */
            return BP_NATIVE_UNSUPPORTED;
        native->bases[CFA] = native->registers[register_place(extra)];
    }
    native->bases[CFA] += (__s64)rule->cfa_offset;
    if (kind == BP_CFA_PLT && (pc & 15) >= extra)
        native->bases[CFA] += 8;
    if (kind == BP_CFA_DEREF_RBP || kind == BP_CFA_DEREF_RSP || kind == BP_CFA_SIGNAL_FRAME) {
        if (!read_stack(native, native->bases[CFA]))
            return BP_NATIVE_FAULT;
        native->bases[CFA] = native->word + extra;
    }
    return BP_OK;
}

/* rbp becomes that of the caller. */
static __always_inline bool native_frame_pointer(struct bp_native *native, struct bp_rule *rule)
{
    __u32 kind = rule->fp_kind;
    if (kind == BP_FP_SAME || (native->bp_lost && kind == BP_FP_AT_RBP))
        return true;
    native->bp_lost = kind == BP_FP_LOST;
    if (native->bp_lost)
        return true;
    if (!read_stack(native, native->bases[kind & 3] + (__s64)rule->fp_offset))
        return false;
    native->bases[BP] = native->word;
    return true;
}

/*
 * The JIT of CPython 3.14 compiles its templates with the calling convention preserve_none (Tools/jit/template.c, v3.14.0),
 * of which rbp alone is kept (CSR_64_NoneRegs, llvm/lib/Target/X86/X86CallingConv.td, LLVM 19). They set up no frame, but may
 * push rbp and take room on the stack. The evaluation function enters such code through another one, which begins a page,
 * pushes the five other registers that are to be kept, and calls what is right behind it (Tools/jit/shim.c). So on the stack
 * are: what templates have there, with the evaluation function's rbp unless that is still in rbp; where the shim is returned
 * to; five registers; where the evaluation function is returned to.
 */
#define JIT_STACK_WORDS 80 /* templates take up to 25; the evaluation function below has more than 90 */
#define SHIM_CODE_BYTES 64 /* the one of LLVM 19 has 33 */
#define SHIM_CALL_BYTES 5
#define SHIM_CALL 0x0000000ae8ULL /* of what is behind five pops and a return */
#define SHIM_STACK_BYTES (6 * sizeof(__u64))
#define EVAL_STACK_BYTES 4096 /* up to where its rbp points: 0x2d0 as gcc 16.2 has it */

/* True when the shim's call is before this address. */
static __always_inline bool is_in_shim(__u64 address)
{
    __u64 code = 0;
    if ((address & ((1 << PAGE_BITS) - 1)) >= SHIM_CODE_BYTES || address < USER_LIMIT >> 32)
        return false;
    return READ_USER(code, address - SHIM_CALL_BYTES) && (code & ((1ULL << 40) - 1)) == SHIM_CALL;
}

/* From code of the JIT to the evaluation function; false: it is not on the stack. */
static __always_inline bool leave_jit(struct bp_native *native)
{
    __u64 at = native->bases[SP], pushed = 0, eval;
    BOUNDED_LOOP
    for (int i = 0; i < JIT_STACK_WORDS; i++, at += sizeof(__u64)) {
        if (!read_stack(native, at))
            return false;
        __u64 word = native->word;
        if (is_in_shim(word))
            goto found;
        if (word - at < 2 * EVAL_STACK_BYTES)
            pushed = word;
    }
    return false;
found:
    eval = at + SHIM_STACK_BYTES;
    if (!read_stack(native, eval))
        return false;
    native->pc = native->word;
    if (native->bp_lost || native->bases[BP] - eval >= EVAL_STACK_BYTES) {
        native->bases[BP] = pushed;
        native->bp_lost = pushed - eval >= EVAL_STACK_BYTES;
    }
    native->bases[SP] = eval + sizeof(__u64);
    native->is_exact = false;
    return true;
}

/* native_status says why the walk ends. */
static __always_inline bool end_walk(struct bp_walk *walk, enum bp_status status)
{
    walk->header.native_status = status;
    return false;
}

/* Goes from one frame to its caller; false: there is none, or it cannot be found. */
static __always_inline bool native_step(struct bp_walk *walk)
{
    struct bp_native *native = &walk->native;
    /* A call may be the last instruction of its function: what is returned to is already in the next one. */
    __u64 pc = native->pc - 1 + native->is_exact;

    struct bp_cached_rule *found = rule_at(walk, pc);
    if (!found)
        return false;
    struct bp_rule *rule = &found->rule;
    if (rule->cfa_kind == BP_CFA_UNSUPPORTED)
        return end_walk(walk, BP_NATIVE_UNSUPPORTED);
    if (rule->cfa_kind == BP_CFA_END_OF_STACK)
        return end_walk(walk, BP_OK);
    if (found->native_flags & BP_NATIVE_BY_FRAME_POINTER && native->jit_has_no_frames) {
        if (leave_jit(native))
            return true;
        if (native->is_unmapped)
            return end_walk(walk, BP_NATIVE_NO_MAPPING);
    }
    walk->header.native_flags |= found->native_flags;
    enum bp_status status = native_cfa(walk, rule, pc);
    if (status != BP_OK)
        return end_walk(walk, status);
    native->is_exact = rule->flags & BP_RULE_SIGNAL;
    if (rule->flags & BP_RULE_IN_REGISTER) {
        if (walk->header.native_count > 1)
            return end_walk(walk, BP_NATIVE_UNSUPPORTED);
        native->pc = native->registers[register_place(rule->ra_offset)];
        goto registers;
    }
    if (native->bases[CFA] <= native->bases[SP] && !native->is_exact) /* a handler may run on a stack of its own */
        return end_walk(walk, BP_NATIVE_NOT_GROWING);
    native->word = rule->cfa_kind == BP_CFA_SIGNAL_FRAME ? native->bases[SP] : native->bases[CFA];
    __u64 slot = native->word + (__s64)rule->ra_offset;
    if (!read_stack(native, slot))
        return end_walk(walk, BP_NATIVE_FAULT);
    native->pc = native->word;
#if BP_WITH_CALLS
    if (walk->in_call)
        native->pc = called_from(walk, slot, native->pc);
#endif
registers:
    if (!native_frame_pointer(native, rule))
        return end_walk(walk, BP_NATIVE_FAULT);
    native->bases[SP] = native->bases[CFA];
    return native->pc ? true : end_walk(walk, BP_OK);
}

/* Takes one frame and goes on to its caller; false when the walk has ended, native_status says why. */
static __always_inline bool native_walk(struct bp_walk *walk)
{
    struct bp_native *native = &walk->native;
    __u32 used = walk->used;
    if (used >= BP_MAX_STACK_WORDS)
        return false;
    walk->words[used] = native->pc | (__u64)native->is_exact << BP_EXACT_BIT;
    walk->used = used + 1;
    walk->header.native_count += 1;
    add_to_key(walk, native->pc);
    return native_step(walk);
}
