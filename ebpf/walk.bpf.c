// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tail programs: each goes on with the stack in scratch memory. See enum bp_tail. Compiled once and loaded for each
 * program type, with that type's maps (MAP(walks), MAP(tails)).
 */

int repeat_stack(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &walk->tid);
    __u64 key = thread ? repeated_stack(walk, thread) : 0;
    if (key && walk->purpose == BP_FOR_SWITCH_OUT)
        keep_stack(ctx, walk, thread, key, BP_OK);
    else if (key)
        finish_stack(ctx, walk, key, BP_OK);
    else
        tail_call(ctx, walk, BP_TAIL_WALK);
    return 0;
}

int walk_frames(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    __u8 status = python_walk(walk);
    if (status == BP_PYTHON_TOO_DEEP && walk->next < BP_MAX_PYTHON_FRAMES)
        tail_call(ctx, walk, BP_TAIL_WALK);
    else
        after_python(ctx, walk, status);
    return 0;
}

int unwind_frames(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    native_walk(walk);
    if (walk->header.native_status == BP_NATIVE_NO_MAPPING) {
        struct bp_process *process = bpf_map_lookup_elem(MAP(processes), &walk->tgid);
        if (process)
            ask_for(walk, process);
    }
    bool is_more = walk->header.native_status == BP_NATIVE_TOO_DEEP && walk->header.native_count < BP_MAX_NATIVE_FRAMES;
    tail_call(ctx, walk, is_more ? BP_TAIL_UNWIND : BP_TAIL_COMPLETE);
    return 0;
}

int complete_stack(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (walk)
        after_frames(ctx, walk);
    return 0;
}

int identify_codes(void *ctx)
{
    struct bp_walk *walk = scratch_walk();
    if (!walk)
        return 0;
    if (!python_identify(walk, walk->header.time_ns) && ++walk->rounds < BP_IDENTIFY_PROGRAMS) {
        tail_call(ctx, walk, BP_TAIL_IDENTIFY);
        return 0;
    }
    send_stack(walk);
    finish_stack(ctx, walk, walk->header.key, BP_OK);
    return 0;
}
