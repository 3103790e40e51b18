/* SPDX-License-Identifier: GPL-2.0-only */
/* BP_KERNEL_VERSION_CODE is given on the command line of the compiler, from uname. */
#define LINUX_VERSION_CODE BP_KERNEL_VERSION_CODE
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
