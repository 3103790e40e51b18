/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The current task and its user registers. Kernels that know the helper bpf_task_pt_regs let programs read both by load
 * instructions, for the verifier knows their types: Linux 5.15, commit dd6e10fbd9fb ("bpf: Add bpf_task_pt_regs() helper").
 * On others each read calls a helper. Those also have no pointers as arguments of functions: see stack.bpf.h.
 *
 * Where members of the kernel's structures are differs from kernel to kernel. BP_OFFSET_... is an instruction that loads
 * this number, which is put in before a program is loaded, so that the same programs serve all kernels: the verifier knows
 * it as it does a constant, and does not follow what depends on another one.
 */
#pragma once

#ifndef BP_HAS_TASK_POINTERS
#define BP_HAS_TASK_POINTERS 1
#endif

#ifndef CURRENT_TASK
#if BP_HAS_TASK_POINTERS
/* By number: the oldest BCC that compiles this does not know their names. include/uapi/linux/bpf.h */
static void *(*get_current_task)(void) = (void *)158;     /* bpf_get_current_task_btf */
static void *(*get_task_registers)(void *) = (void *)175; /* bpf_task_pt_regs */
#else
static __u64 (*get_current_task)(void) = (void *)35; /* bpf_get_current_task */
#endif
#define CURRENT_TASK get_current_task()
#define TASK_REGISTERS(task) get_task_registers(task)
#endif

/* A number in the current task or its user registers; 0 when it cannot be read. */
#ifndef LOAD_KERNEL
#if BP_HAS_TASK_POINTERS
#define LOAD_KERNEL(type, pointer, offset)                                                       \
    ({                                                                                           \
        __u64 loaded;                                                                            \
        asm volatile("%0 = *(" #type " *)(%1 + %2)" : "=r"(loaded) : "r"(pointer), "i"(offset)); \
        loaded;                                                                                  \
    })
#else
#define LOAD_KERNEL(type, pointer, offset)                \
    ({                                                    \
        type loaded = 0;                                  \
        READ_KERNEL(loaded, (__u64)(pointer) + (offset)); \
        (__u64) loaded;                                   \
    })
#endif
#endif

/* The same of a member whose place is BP_OFFSET_...: this number cannot stand in the instruction that reads. */
#define LOAD_MEMBER(type, pointer, offset) LOAD_KERNEL(type, (__u64)(pointer) + (offset), 0)

/* Places in struct pt_regs of x86-64, in words: arch/x86/include/asm/ptrace.h. */
#define REGISTER_BP 4
#define REGISTER_DX 12
#define REGISTER_SI 13
#define REGISTER_DI 14
#define REGISTER_ORIG_AX 15
#define REGISTER_IP 16
#define REGISTER_CS 17
#define REGISTER_SP 19
/* They end where the kernel's stack of the task begins: THREAD_SIZE of arch/x86/include/asm/page_64_types.h. */
#define KERNEL_STACK_BYTES 16384

/* Where the user registers of the current task are, for USER_REGISTER. */
static __always_inline __u64 user_registers(void)
{
#if BP_HAS_TASK_POINTERS
    return (__u64)TASK_REGISTERS(CURRENT_TASK);
#else
    return LOAD_MEMBER(u64, CURRENT_TASK, BP_OFFSET_TASK_STACK) + KERNEL_STACK_BYTES - sizeof(struct pt_regs);
#endif
}

#define USER_REGISTER(at, place) LOAD_KERNEL(u64, at, (place)*8)
#define USER_CS(at) LOAD_KERNEL(u16, at, REGISTER_CS * 8) /* beside it there are other things on some kernels */

/* registers[place] of the current task, of those that unwinding can ask for. */
static __always_inline void read_user_registers(__u64 *registers)
{
    __u64 at = user_registers();
#if BP_HAS_TASK_POINTERS
#pragma unroll
    for (int place = 0; place < REGISTER_ORIG_AX; place++)
        registers[place] = USER_REGISTER(at, place);
    registers[REGISTER_IP] = USER_REGISTER(at, REGISTER_IP);
    registers[REGISTER_SP] = USER_REGISTER(at, REGISTER_SP);
#else
    probe_read_kernel(registers, sizeof(struct pt_regs), (void *)at);
#endif
}
