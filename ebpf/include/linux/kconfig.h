/* SPDX-License-Identifier: GPL-2.0-only */
#define CONFIG_BPF_SYSCALL 1
