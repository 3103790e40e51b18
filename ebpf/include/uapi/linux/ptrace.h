/* SPDX-License-Identifier: GPL-2.0-only */
#pragma once
#include <linux/types.h>

/* arch/x86/include/uapi/asm/ptrace.h, 64-bit */
struct pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
