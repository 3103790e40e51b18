/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reading memory by address; each is true when the whole of it was read. Addresses are __u64, never pointers: BCC
 * rewrites dereferences of pointers it does not know. The helpers are called by number, for BCC, when it meets the names
 * bpf_probe_read_user or _kernel, reads all of /proc/kallsyms (0.4 s) to see whether the kernel has them.
 */
#pragma once

static long (*probe_read_user)(void *destination, __u32 size, const void *address) = (void *)BPF_FUNC_probe_read_user;
static long (*probe_read_kernel)(void *destination, __u32 size,
                                 const void *address) = (void *)BPF_FUNC_probe_read_kernel;
static long (*get_kernel_stack)(void *ctx, void *addresses, __u32 size, __u64 flags) = (void *)BPF_FUNC_get_stack;

#define READ_USER(destination, address) (probe_read_user(&(destination), sizeof(destination), (void *)(address)) == 0)
#define READ_KERNEL(destination, address) \
    (probe_read_kernel(&(destination), sizeof(destination), (void *)(address)) == 0)

/* The loops below are bounded by a constant; unrolled they would not fit. */
#define BOUNDED_LOOP _Pragma("clang loop unroll(disable)")

/* The compiler knows nothing of the value after this. */
#define HIDE(value) asm volatile("" : "+r"(value))

/*
 * 1 where a < b, both less than 2^63. Without a branch, so that the verifier has one path to look at and not two;
 * the compiler would make one if it saw what is compared.
 */
static __always_inline __u64 less(__u64 a, __u64 b)
{
    __u64 difference = a - b;
    HIDE(difference);
    return difference >> 63;
}

/* Far from any address: what a copy of memory that holds nothing is a copy of. A number that programs do not happen to
 * have where an address belongs, as they do 1 << 63 (-0.0, INT64_MIN); a multiple of 4096. */
#define NOWHERE 0x8c3f59a6d1e74000ULL
