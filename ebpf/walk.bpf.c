// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tail programs: each goes on with the stack in scratch memory. See enum bp_tail. Compiled once and loaded for each
 * program type, with that type's maps (MAP(walks), MAP(tails)).
 */

int walk_frames(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (walk)
        after_walk(ctx, walk, python_walk(walk));
    return 0;
}

int identify_codes(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    if (!python_identify(walk, walk->header.time_ns)) {
        tail_call(ctx, BP_TAIL_IDENTIFY);
        return 0;
    }
    send_stack(walk);
    finish_stack(walk, walk->header.key, walk->header.status);
    return 0;
}
