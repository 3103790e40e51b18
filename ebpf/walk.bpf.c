// SPDX-License-Identifier: GPL-2.0-only
/* Tail programs: each goes on with the stack in scratch memory. See enum bp_tail. */

static __always_inline int walk_frames(void *ctx, enum bp_kind kind)
{
    struct bp_walk *walk = scratch_walk(kind);
    if (walk)
        after_walk(ctx, walk, kind, python_walk(walk));
    return 0;
}

static __always_inline int identify(void *ctx, enum bp_kind kind)
{
    struct bp_walk *walk = scratch_walk(kind);
    if (!walk)
        return 0;
    if (!python_identify(walk, walk->header.time_ns)) {
        tail_call(ctx, kind, BP_TAIL_IDENTIFY);
        return 0;
    }
    send_stack(walk);
    finish_stack(walk, kind, walk->header.key, walk->header.status);
    return 0;
}

int perf_walk(struct bpf_perf_event_data *ctx)
{
    return walk_frames(ctx, BP_KIND_PERF);
}

int perf_identify(struct bpf_perf_event_data *ctx)
{
    return identify(ctx, BP_KIND_PERF);
}

int sched_walk(struct bpf_raw_tracepoint_args *ctx)
{
    return walk_frames(ctx, BP_KIND_SCHED);
}

int sched_identify(struct bpf_raw_tracepoint_args *ctx)
{
    return identify(ctx, BP_KIND_SCHED);
}
