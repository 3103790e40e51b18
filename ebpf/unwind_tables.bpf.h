/* SPDX-License-Identifier: GPL-2.0-only */
/* Looking things up in the unwind tables: the mapping of an address, and the rule that holds there. */
#pragma once

#define USER_LIMIT (1ULL << 47)
#define MAPPING_WORDS (sizeof(struct bp_mapping) / sizeof(__u32))
#define MAPPING_STEPS 13 /* of a search among fewer than 8192 mappings */
#define PAGE_STEPS 13    /* of a search among up to 4096 rows */
#define PAGE_BITS 12

/* The words of the chunk a word index lies in. */
static __always_inline __u32 *chunk_words(__u32 index)
{
    __u32 number = index / BP_CHUNK_WORDS, zero = 0;
    void *chunk = bpf_map_lookup_elem(MAP(chunks), &number);
    return chunk ? bpf_map_lookup_elem(chunk, &zero) : 0;
}

#define WORD(words, index) ((words)[(index) & (BP_CHUNK_WORDS - 1)])
#define WORD64(words, index) (*(__u64 *)&(words)[(index) & (BP_CHUNK_WORDS - 2)])

/* Brings the mapping of pc, and its file, into `native`. Consecutive frames are often in one file. */
static __always_inline enum bp_status find_mapping(struct bp_native *native, __u64 pc)
{
    if (pc - native->map_start < native->map_bytes)
        return BP_OK;
    __u32 *words = chunk_words(native->mappings);
    if (!words || pc >= USER_LIMIT || !native->mapping_count)
        return BP_NATIVE_NO_MAPPING;
    __u64 first = native->mappings, count = native->mapping_count, low = 0;
    BOUNDED_LOOP
    for (int step = MAPPING_STEPS - 1; step >= 0; step--) {
        __u64 probe = low + (1ULL << step), inside = less(probe, count);
        __u64 start = WORD64(words, first + (probe & -inside) * MAPPING_WORDS);
        low += (inside & less(start, pc + 1)) << step;
    }
    __u64 at = first + low * MAPPING_WORDS;
    __u64 start = WORD64(words, at), end = WORD64(words, at + 2);
    if (pc < start || pc >= end)
        return BP_NATIVE_NO_MAPPING;
    native->map_bias = WORD64(words, at + 4);
    __u32 number = WORD(words, at + 6);
    struct bp_file *file = bpf_map_lookup_elem(MAP(files), &number);
    if (!file)
        return BP_NATIVE_NO_MAPPING;
    native->file = *file;
    native->map_start = start;
    native->map_bytes = end - start;
    return BP_OK;
}

/* native->rule becomes that of pc, which lies in the mapping that was found: the last row at or before it. */
static __always_inline enum bp_status find_rule(struct bp_native *native, __u64 pc)
{
    if (native->file.state != BP_FILE_READY) {
        native->rule = BP_RULE_FRAME_POINTER;
        return native->file.state == BP_FILE_FRAME_POINTERS ? BP_OK : BP_NATIVE_NOT_READY;
    }
    __u64 address = pc - native->map_bias, page = (address >> PAGE_BITS) - native->file.first_page;
    if (page >= native->file.page_count)
        return BP_NATIVE_NO_RULE;
    __u64 at = native->file.pages + 2 * page;
    __u32 *words = chunk_words(at);
    if (!words)
        return BP_NATIVE_NOT_READY;
    __u64 base = WORD(words, at), rows = WORD(words, at + 1);
    words = chunk_words(base);
    if (!words)
        return BP_NATIVE_NOT_READY;
    __u64 key = ((address & ((1 << PAGE_BITS) - 1)) << BP_ROW_RULE_BITS) | ((1 << BP_ROW_RULE_BITS) - 1);
    /* `base` is of the first row that is not known to be at or before the address; `rows` follow. */
    BOUNDED_LOOP
    for (int step = 0; step < PAGE_STEPS; step++) {
        __u64 half = rows >> 1, row = WORD(words, base + half);
        __u64 before = less(row, key + 1) & less(0, rows);
        base += before * (half + 1);
        rows = half - (before & ~rows & 1);
    }
    native->rule = WORD(words, base - 1) & ((1 << BP_ROW_RULE_BITS) - 1);
    if (native->rule == BP_RULE_UNREAD)
        return BP_NATIVE_NOT_READY;
    return native->rule == BP_RULE_NO_RULE ? BP_NATIVE_NO_RULE : BP_OK;
}

/*
 * The rule at pc, out of the cache if it was looked up before: stacks have most of their addresses in common. A file whose
 * table is not ready is not remembered, nor code in no mapping. Without a rule the reason is in native_status.
 */
static __always_inline struct bp_cached_rule *rule_at(struct bp_walk *walk, __u64 pc)
{
    struct bp_native *native = &walk->native;
    __u32 slot = seen_slot(pc ^ pc << 7, BP_CACHED_RULES);
    struct bp_cached_rule *cached = bpf_map_lookup_elem(MAP(cached_rules), &slot);
    if (!cached)
        return 0;
    native->is_unmapped = false;
    __u64 differs = (cached->pc ^ pc) | (cached->generation ^ native->generation);
    /* Found for a leaf, which this is not. */
    differs |= cached->native_flags & BP_NATIVE_BARE_LEAF & -less(1, walk->header.native_count);
    if (!differs)
        return cached;
    enum bp_status status = find_mapping(native, pc);
    if (status == BP_OK)
        status = find_rule(native, pc);
    if (status == BP_NATIVE_NO_RULE && walk->header.native_count == 1) {
        native->rule = BP_RULE_BARE_LEAF; /* code written in assembly that keeps nothing on the stack, mostly */
        status = BP_OK;
    }
    if (status == BP_NATIVE_NO_MAPPING && native->jit_has_no_frames) {
        native->rule = BP_RULE_FRAME_POINTER;
        native->is_unmapped = true;
        status = BP_OK;
    }
    walk->header.native_status = status == BP_OK ? BP_NATIVE_UNSUPPORTED : status;
    if (status != BP_OK)
        return 0;
    __u32 number = native->rule;
    struct bp_rule *rule = bpf_map_lookup_elem(MAP(rules), &number);
    if (!rule)
        return 0;
    cached->pc = pc;
    cached->generation = native->is_unmapped ? 0 : native->generation; /* 0: of no mappings */
    /* 1 and 2, enum bp_native_flags, for rules 2 and 3 */
    cached->native_flags = (number - 1) & -(less(number, BP_RULE_BARE_LEAF + 1) & less(BP_RULE_UNSUPPORTED, number));
    cached->rule = *rule;
    return cached;
}
