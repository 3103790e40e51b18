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

#define READ_USER(destination, address) (probe_read_user(&(destination), sizeof(destination), (void *)(address)) == 0)
#define READ_KERNEL(destination, address) \
    (probe_read_kernel(&(destination), sizeof(destination), (void *)(address)) == 0)

/* The loops below are bounded by a constant; unrolled they would not fit. */
#define BOUNDED_LOOP _Pragma("clang loop unroll(disable)")
