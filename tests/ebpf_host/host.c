// SPDX-License-Identifier: GPL-2.0-only
/* The BPF programs as a library of the host, and what drives them. */
#include "host.h"

#include "profiler.bpf.c"

struct host_state host;
struct host_map host_maps[HOST_MAPS];

static struct host_ring *ring_of(void *map)
{
    return map == MAP(events) ? &host.events : map == MAP(copies) ? &host.copies : &host.stacks;
}

/* As much as the test says, which its reader has not taken yet. */
__u64 bpf_ringbuf_query(void *map, __u64 flags)
{
    if (flags == BPF_RB_RING_SIZE)
        return BP_STACK_RING_BYTES; /* as large as that of copies */
    return flags == BPF_RB_AVAIL_DATA ? ring_of(map)->waiting : ring_of(map)->since;
}

long bpf_ringbuf_output(void *map, void *record, __u64 size, __u64 flags)
{
    struct host_ring *ring = ring_of(map);
    ring->wakeup = flags;
    if (ring->is_full || size + sizeof(size) > HOST_RING_BYTES - ring->used)
        return HOST_ERROR;
    memcpy(ring->bytes + ring->used, &size, sizeof(size));
    memcpy(ring->bytes + ring->used + sizeof(size), record, size);
    ring->used += sizeof(size) + size;
    return 0;
}

/* A map with memory of its own, filled with zeros. */
int host_make_map(__u32 number, __u32 key_bytes, __u32 value_bytes, __u32 entries, bool is_hash, bool is_outer)
{
    struct host_map *map = &host_maps[number];
    *map = (struct host_map){.key_bytes = key_bytes, .value_bytes = value_bytes, .entries = entries};
    if (is_outer) {
        map->inner = calloc(entries, sizeof(*map->inner));
        return !map->inner;
    }
    if (is_hash) {
        map->keys = calloc(entries, key_bytes);
        map->is_used = calloc(entries, 1);
    }
    map->values = calloc(entries, value_bytes);
    return !map->values || (is_hash && (!map->keys || !map->is_used));
}

/* Memory that Python writes. */
void host_share_map(__u32 number, __u8 *values)
{
    host_maps[number].values = values;
}

/* Puts a map of one value into a map of maps; without values it is taken out. */
int host_put_inner(__u32 number, __u32 index, __u8 *values)
{
    struct host_map *map = 0;
    if (values) {
        map = calloc(1, sizeof(*map));
        if (!map)
            return 1;
        *map = (struct host_map){.key_bytes = 4, .entries = 1, .values = values};
    }
    free(host_maps[number].inner[index]);
    host_maps[number].inner[index] = map;
    return 0;
}

int host_update(__u32 number, const void *key, const void *value)
{
    return bpf_map_update_elem((void *)(__u64)number, key, value, BPF_ANY) != 0;
}

/* Where a map has the value of a key, 0: nowhere. */
void *host_value(__u32 number, const void *key)
{
    return bpf_map_lookup_elem((void *)(__u64)number, key);
}

/* Takes everything out of a hash map. */
void host_clear_map(__u32 number)
{
    memset(host_maps[number].is_used, 0, host_maps[number].entries);
}

/* The enum bp_status and the rule's number of one search. */
int host_find_rule(__u32 mappings, __u32 mapping_count, __u64 pc, __u64 *rule)
{
    struct bp_native native = {.mappings = mappings, .mapping_count = mapping_count};
    enum bp_status status = find_mapping(&native, pc);
    if (status == BP_OK)
        status = find_rule(&native, pc);
    *rule = native.rule;
    return status;
}
