/* SPDX-License-Identifier: GPL-2.0-only */
#include <linux/types.h>
#define PAGE_SIZE 4096
