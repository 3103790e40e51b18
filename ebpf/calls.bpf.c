// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls of libraries, by uprobes at a function's first instruction and at its return. A function has a number, which says too
 * where its size is (bpfprof/capture/called_functions.py). With links of many uprobes (Linux 6.6) it is the probe's cookie; else
 * each function has programs of its own, loaded with it.
 *      bits 0 to 9    the function
 *      bits 10 to 13  the argument that is how many bytes, or units, 1 for the first; 0: none
 *      bits 14 to 17  another one, or a number, to multiply it by
 *      bits 18 to 19  how: 0 not at all, 1 by that argument, 2 by the size of the type of NCCL that it is, 3 by that number
 *      bits 20 to 23  the argument that is the direction of a copy; 0: none
 */
#if BP_HAS_UPROBE_LINKS
static __u64 (*get_attach_cookie)(void *) =
    (void *)174; /* bpf_get_attach_cookie, by number as those in current_task.bpf.h */
#define CALL_NUMBER get_attach_cookie(ctx)
#else
#define CALL_NUMBER bpf_pseudo_fd(BP_PSEUDO_EVENT, 0)
#endif
#define MAX_CALL_BYTES (1ULL << 48) /* more is no size */
#define MAX_DIRECTION 4             /* cudaMemcpyDefault */
/* Bytes of ncclDataType_t 0 to 11, 4 bits each: nccl.h of NCCL 2.27. */
#define NCCL_TYPES 0x112842884411ULL
#define LONGEST_CALL_NS ((1ULL << 40) - 1)

/* The argument with this number, by the System V ABI of x86-64; 0 for number 0. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u64 number)
{
    __u64 value = 0, first = ctx->di, second = ctx->si, third = ctx->dx, fourth = ctx->cx, fifth = ctx->r8,
          sixth = ctx->r9;
    HIDE(first); /* so that they are read here, each at an offset that is a constant */
    HIDE(second);
    HIDE(third);
    HIDE(fourth);
    HIDE(fifth);
    HIDE(sixth);
    if (number == 1)
        value = first;
    if (number == 2)
        value = second;
    if (number == 3)
        value = third;
    if (number == 4)
        value = fourth;
    if (number == 5)
        value = fifth;
    if (number == 6)
        value = sixth;
    if (number == 7 && !READ_USER(value, ctx->sp + sizeof(__u64)))
        value = 0;
    return value;
}

static __always_inline __u64 call_bytes(struct pt_regs *ctx, __u64 number)
{
    __u64 bytes = argument(ctx, number >> 10 & 15), factor = number >> 14 & 15, how = number >> 18 & 3;
    if (how == 1)
        factor = argument(ctx, factor);
    if (how == 2) {
        __u64 type = (__u32)argument(ctx, factor);
        factor = type < 16 ? NCCL_TYPES >> (4 * type) & 15 : 0;
    }
    if (bytes >= MAX_CALL_BYTES || factor >= MAX_CALL_BYTES)
        return 0;
    if (how)
        bytes *= factor;
    return bytes < MAX_CALL_BYTES ? bytes : 0;
}

/* Its place in bp_call_sum.lengths. */
static __always_inline __u32 length_place(__u64 ns)
{
    __u64 rest = ns, power = 0, more;
    if (rest < 1 << BP_CALL_LENGTHS_FROM)
        rest = 1 << BP_CALL_LENGTHS_FROM;
    if (rest > LONGEST_CALL_NS)
        rest = LONGEST_CALL_NS;
    ns = rest;
#pragma unroll
    for (int step = 5; step >= 0; step--) {
        more = less((1ULL << (1 << step)) - 1, rest) << step;
        rest >>= more;
        power += more;
    }
    return 2 * (power - BP_CALL_LENGTHS_FROM) + (ns >> (power - 1) & 1);
}

/* The calls of the current thread, 0: it is not watched, or there is no room. */
static __always_inline struct bp_calls *calls_of_current(__u32 tid)
{
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &tid);
    if (!thread || config_flags() & BP_CONFIG_STOPPED)
        return 0;
    struct bp_calls *calls = bpf_map_lookup_elem(MAP(open_calls), &tid);
    if (!calls) {
        __u32 zero = 0;
        struct bp_calls *none = bpf_map_lookup_elem(MAP(no_calls), &zero);
        if (!none || bpf_map_update_elem(MAP(open_calls), &tid, none, BPF_NOEXIST)) {
            count(BP_LOST_CALL);
            return 0;
        }
        calls = bpf_map_lookup_elem(MAP(open_calls), &tid);
    }
    if (calls && calls->first_ns != thread->first_ns) {
        calls->first_ns = thread->first_ns;
        calls->left += calls->depth;
        calls->depth = 0;
    }
    return calls;
}

/*
 * Calls whose frames are gone at this place of the stack, or overwritten, have not returned, and will not. One whose return address lies where
 * this one's does is still open if it jumped here at its end: then there is no other return address than its own. The same
 * call comes twice where one file was probed under two names (an overlay's and its layer's).
 */
static __always_inline __u64 open_depth(struct bp_calls *calls, __u64 slot, __u64 function, __u64 *returns_to)
{
    __u64 depth = calls->depth, word = 0;
#pragma unroll
    for (int i = 0; i < BP_MAX_OPEN_CALLS; i++) {
        struct bp_open_call *last = &calls->open[(depth - 1) & (BP_MAX_OPEN_CALLS - 1)];
        if (!depth || (last->slot > slot && READ_USER(word, last->slot) && word >= PROBES_PAGE))
            break;
        if (last->slot == slot && last->function != function && last->returns_to != *returns_to) {
            *returns_to = last->returns_to;
            break;
        }
        if (last->slot != slot || last->function != function)
            calls->left += 1;
        depth--;
    }
    return depth;
}

int call_begin(struct pt_regs *ctx)
{
    __u64 number = CALL_NUMBER, slot = ctx->sp, returns_to = 0;
    struct bp_calls *calls = calls_of_current(bpf_get_current_pid_tgid());
    if (!calls || !READ_USER(returns_to, slot))
        return 0;
    __u64 depth = open_depth(calls, slot, number & 1023, &returns_to);
    calls->depth = depth;
    if (depth >= BP_MAX_OPEN_CALLS) {
        count(BP_LOST_CALL);
        return 0;
    }
    struct bp_open_call *open = &calls->open[depth & (BP_MAX_OPEN_CALLS - 1)];
    __u64 direction = number >> 20 & 15;
    open->slot = slot;
    open->returns_to = returns_to;
    open->address = ctx->ip;
    open->bytes = call_bytes(ctx, number);
    open->function = number & 1023;
    open->is_inside = depth > 0;
    open->direction = 0;
    if (direction) {
        direction = (__u32)argument(ctx, direction);
        open->direction = direction <= MAX_DIRECTION ? direction + 1 : 0;
    }
    calls->depth = depth + 1;
    open->begin_ns = bpf_ktime_get_ns();
    return 0;
}

int call_end(struct pt_regs *ctx)
{
    __u64 now = bpf_ktime_get_ns(), slot = ctx->sp - sizeof(__u64), function = CALL_NUMBER & 1023;
    __u32 tid = bpf_get_current_pid_tgid(), zero = 0;
    struct bp_calls *calls = bpf_map_lookup_elem(MAP(open_calls), &tid);
    if (!calls || config_flags() & BP_CONFIG_STOPPED)
        return 0;
    __u64 depth = calls->depth;
#pragma unroll
    for (int i = 0; i < BP_MAX_OPEN_CALLS; i++) {
        if (!depth || calls->open[(depth - 1) & (BP_MAX_OPEN_CALLS - 1)].slot >= slot)
            break;
        depth--;
    }
    calls->left += calls->depth - depth;
    calls->depth = depth;
    struct bp_open_call *open = &calls->open[(depth - 1) & (BP_MAX_OPEN_CALLS - 1)];
    if (!depth || open->slot != slot || open->function != function)
        return 0;
    calls->depth = depth - 1;
    struct bp_call_key key = {.first_ns = calls->first_ns, .tid = tid, .function = function};
    key.direction = open->direction;
    key.is_inside = open->is_inside;
    struct bp_call_sum *sum = bpf_map_lookup_elem(MAP(call_sums), &key);
    if (!sum) {
        void *none = bpf_map_lookup_elem(MAP(no_calls), &zero); /* an element of open_calls is larger */
        if (!none || bpf_map_update_elem(MAP(call_sums), &key, none, BPF_NOEXIST)) {
            count(BP_LOST_CALL);
            return 0;
        }
        sum = bpf_map_lookup_elem(MAP(call_sums), &key);
        if (!sum)
            return 0;
    }
    __u64 ns = now - open->begin_ns, place = length_place(ns);
    HIDE(place); /* from the compiler, which would not check what it knows */
    sum->count += 1;
    sum->total_ns += ns;
    sum->bytes += open->bytes;
    if (ns > sum->max_ns)
        sum->max_ns = ns;
    sum->lengths[place & (BP_CALL_LENGTHS - 1)] += 1;
    return 0;
}
