/* SPDX-License-Identifier: GPL-2.0-only */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
/* What BCC itself includes asks for it; nothing that is used here depends on it. */
#define LINUX_VERSION_CODE KERNEL_VERSION(6, 1, 0)
