/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map. bpfprof/kernel/tables.py makes them from the BP_MAP lines before the programs are compiled and hands their
 * descriptors over as -DBP_FD_name=N, so this list is the only one.
 *      BP_MAP(name, type, key type, value type, entries)
 * The type is one of the kernel's, or one of these: CPU_ARRAY, an ARRAY of that many entries for each possible CPU;
 * SHARED_ARRAY, an ARRAY that user space maps into its memory; CHUNK_ARRAY, an ARRAY_OF_MAPS of them, empty. MAP(walks) and
 * MAP(cached_rules) are perf_walks and so on in programs of perf events, sched_walks and so on in the others.
 */
#pragma once

#define BP_MAP(name, type, key, value, entries)
#define MAP(name) ((void *)bpf_pseudo_fd(1, BP_FD_##name))

/* Threads that are watched, by tid. Written by user space and at fork, updated in place at a switch, removed when the
 * task is freed. */
BP_MAP(threads, HASH, __u32, struct bp_thread, BP_MAX_THREADS)
/* Target processes, by tgid. Written by user space and at fork; read at each stack. */
BP_MAP(processes, HASH, __u32, struct bp_process, BP_MAX_PROCESSES)
/* By tgid, of those that have started something, and of what they started. Written at fork, removed with the process. */
BP_MAP(births, HASH, __u32, struct bp_births, BP_MAX_PROCESSES)
/* One element, written once by user space before anything is attached. */
BP_MAP(config, ARRAY, __u32, struct bp_config, 1)
/* enum bp_status -> how often; read by user space. */
BP_MAP(counters, PERCPU_ARRAY, __u32, __u64, BP_STATUS_COUNT)
/* Samples and intervals, all of one size: 1.9 s of 50,000 switches a second. */
BP_MAP(events, RINGBUF, none, none, BP_EVENT_RING_BYTES)
/* Stacks that are new (or were not sent for BP_RESEND_NS). */
BP_MAP(stacks, RINGBUF, none, none, BP_STACK_RING_BYTES)
/* MAP(walks): scratch memory of the clock's and of the scheduler's programs: an interrupt can land inside another program. */
BP_MAP(perf_walks, CPU_ARRAY, __u32, struct bp_walk, 1)
BP_MAP(sched_walks, CPU_ARRAY, __u32, struct bp_walk, 1)
/* Direct-mapped: what was sent lately by this CPU. A collision only sends again. A PERCPU_ARRAY of so many elements takes
 * 50 ms to make, so these are plain arrays with a part for each CPU. */
BP_MAP(seen_stacks, CPU_ARRAY, __u32, struct bp_seen_stack, BP_SEEN_STACKS)
BP_MAP(seen_codes, CPU_ARRAY, __u32, struct bp_seen_code, BP_SEEN_CODES)
/* Code objects as they were when a stack first had them, and, direct-mapped by place, which of all CPUs were sent. */
BP_MAP(copies, RINGBUF, none, none, BP_COPY_RING_BYTES)
BP_MAP(copied_codes, ARRAY, __u32, struct bp_copied_code, BP_COPIED_CODES)
/* What a new thread's entry is made of: too large for the programs' stack. Used at fork only. */
BP_MAP(new_threads, CPU_ARRAY, __u32, struct bp_thread, 1)
/* Unwind tables, see struct bp_chunk and below it. Written by user space while programs read: rows, then what refers to
 * them. Chunks are made and put in as they are needed. */
BP_MAP(chunks, CHUNK_ARRAY, __u32, struct bp_chunk, BP_MAX_CHUNKS)
BP_MAP(files, SHARED_ARRAY, __u32, struct bp_file, BP_MAX_FILES)
BP_MAP(rules, SHARED_ARRAY, __u32, struct bp_rule, BP_MAX_RULES)
/* MAP(cached_rules): direct-mapped by address. An interrupt must not meet an entry half written, so one for each type. */
BP_MAP(perf_cached_rules, CPU_ARRAY, __u32, struct bp_cached_rule, BP_CACHED_RULES)
BP_MAP(sched_cached_rules, CPU_ARRAY, __u32, struct bp_cached_rule, BP_CACHED_RULES)

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
    hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
    return hash ^ (hash >> 32);
}

/* By a factor that is another in each recording, so that no stack can be made up to have the key of another process's. */
static __always_inline void add_to_key(struct bp_walk *walk, __u64 value)
{
    __u64 hash = (walk->hash ^ value) * walk->key_factor;
    walk->hash = hash ^ (hash >> 32);
}

/* Index of a hash in this CPU's part of a CPU_ARRAY. */
static __always_inline __u32 seen_slot(__u64 hash, __u32 entries)
{
    return bpf_get_smp_processor_id() * entries + ((hash >> 7) & (entries - 1));
}

/* Keys are copied: before Linux 6.2 helpers take none from the memory that a function's argument points to. */
static __always_inline struct bp_process *process_of(struct bp_walk *walk)
{
    __u32 tgid = walk->tgid;
    return bpf_map_lookup_elem(MAP(processes), &tgid);
}

static __always_inline struct bp_thread *thread_of(struct bp_walk *walk)
{
    __u32 tid = walk->tid;
    return bpf_map_lookup_elem(MAP(threads), &tid);
}
