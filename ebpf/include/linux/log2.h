/* SPDX-License-Identifier: GPL-2.0-only */
#pragma once
#include <linux/types.h>
#define roundup_pow_of_two(n) (1ULL << (64 - __builtin_clzll((n) - 1)))
