/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Functions that the verifier looks at once, whatever calls them and however often: to it a call is one instruction. In
 * Documentation/bpf they are called global functions. Each is FUNCTION(name) at the beginning of a line, is called as
 * CALL(name, walk), and returns a number.
 *
 * BCC knows no calls between functions. So CALL compiles to a call of a helper with a number that no helper has;
 * bpfprof/kernel/loader.py puts the function behind the program and makes it a call of that.
 */
#pragma once

#define FUNCTION(name) int name(struct bp_walk *walk)
#ifndef CALL
#define CALL(name, walk) (((int (*)(struct bp_walk *))BP_FUNCTION_##name)(walk))
#endif
