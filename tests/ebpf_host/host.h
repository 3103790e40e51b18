/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What stands in for the kernel when the BPF programs are compiled for the host: the helpers they call, maps in plain memory.
 * What the programs find is what Python put here (tests/ebpf_host/host.py).
 */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <linux/bpf.h>
#include <linux/types.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define HOST_HELPER static __attribute__((unused))

#define HOST_MAPS 64
#define HOST_RING_BYTES (1 << 20)
#define HOST_ERROR (-14L)

/* A map is known by its number, a map inside a map by its address. Keys only where there are any to compare. */
struct host_map {
    __u32 key_bytes;
    __u32 value_bytes;
    __u32 entries;
    __u8 *keys;
    __u8 *is_used;
    __u8 *values;
    struct host_map **inner;
};

/* Memory that can be read: `size` bytes of address space from `start` on. */
struct host_segment {
    __u64 start;
    __u64 size;
    const __u8 *bytes;
};

struct host_memory {
    const struct host_segment *segments;
    __u64 count;
    __u64 reads;
};

/* Records as they were sent, each after its size. */
struct host_ring {
    __u64 used;
    __u64 is_full;
    __u64 waiting; /* bytes that its reader has not taken, and where it is */
    __u64 since;
    __u64 wakeup; /* flags of the last record */
    __u8 bytes[HOST_RING_BYTES];
};

struct host_state {
    struct host_memory user;
    struct host_memory kernel;
    __u64 now_ns;
    __u64 cpu;
    __u64 pid_tgid;
    __u64 task;
    __u64 registers; /* kernel address of struct pt_regs */
    __u64 kernel_frame_count;
    __u64 kernel_frames[128];
    __u64 random;
    struct host_ring events;
    struct host_ring stacks;
    struct host_ring copies;
};

extern struct host_state host;
extern struct host_map host_maps[HOST_MAPS];

/* What MAP(name) is made of. */
#define bpf_pseudo_fd(kind, number) ((__u64)(number))

HOST_HELPER struct host_map *host_map_of(void *map)
{
    return (__u64)map < HOST_MAPS ? &host_maps[(__u64)map] : map;
}

HOST_HELPER void *bpf_map_lookup_elem(void *number, const void *key)
{
    struct host_map *map = host_map_of(number);
    if (map->keys) {
        for (__u32 i = 0; i < map->entries; i++)
            if (map->is_used[i] && !memcmp(map->keys + (__u64)i * map->key_bytes, key, map->key_bytes))
                return map->values + (__u64)i * map->value_bytes;
        return 0;
    }
    __u32 index = *(const __u32 *)key;
    if (index >= map->entries)
        return 0;
    return map->inner ? (void *)map->inner[index] : map->values + (__u64)index * map->value_bytes;
}

/* Of hash maps, which is where programs update. */
HOST_HELPER long bpf_map_update_elem(void *number, const void *key, const void *value, __u64 flags)
{
    struct host_map *map = host_map_of(number);
    void *found = bpf_map_lookup_elem(number, key);
    (void)flags;
    for (__u32 i = 0; !found && i < map->entries; i++)
        if (!map->is_used[i]) {
            map->is_used[i] = 1;
            memcpy(map->keys + (__u64)i * map->key_bytes, key, map->key_bytes);
            found = map->values + (__u64)i * map->value_bytes;
        }
    if (!found)
        return HOST_ERROR;
    memcpy(found, value, map->value_bytes);
    return 0;
}

HOST_HELPER long bpf_get_current_comm(void *name, __u32 size)
{
    strncpy(name, "host", size);
    return 0;
}

/* A linear congruential generator, for what is chosen at random (Knuth, The Art of Computer Programming 3.3.4: MMIX). */
HOST_HELPER __u32 bpf_get_prandom_u32(void)
{
    host.random = host.random * 6364136223846793005ULL + 1442695040888963407ULL;
    return host.random >> 33;
}

HOST_HELPER long bpf_map_delete_elem(void *number, const void *key)
{
    struct host_map *map = host_map_of(number);
    __u8 *found = bpf_map_lookup_elem(number, key);
    if (!found)
        return HOST_ERROR;
    map->is_used[(found - map->values) / map->value_bytes] = 0;
    return 0;
}

/* All of it or nothing: the kernel fills what it could not read with zeros. */
HOST_HELPER long host_read(struct host_memory *memory, void *destination, __u32 size, __u64 address)
{
    memory->reads += 1;
    for (__u64 i = 0; i < memory->count; i++) {
        const struct host_segment *segment = &memory->segments[i];
        __u64 offset = address - segment->start;
        if (offset < segment->size && size <= segment->size - offset) {
            memcpy(destination, segment->bytes + offset, size);
            return 0;
        }
    }
    memset(destination, 0, size);
    return HOST_ERROR;
}

HOST_HELPER long host_read_user(void *destination, __u32 size, const void *address)
{
    return host_read(&host.user, destination, size, (__u64)address);
}

HOST_HELPER long host_read_kernel(void *destination, __u32 size, const void *address)
{
    return host_read(&host.kernel, destination, size, (__u64)address);
}

HOST_HELPER long host_get_stack(void *ctx, void *frames, __u32 size, __u64 flags)
{
    __u64 bytes = host.kernel_frame_count * sizeof(host.kernel_frames[0]);
    (void)ctx, (void)flags;
    if (bytes > size)
        bytes = size;
    memcpy(frames, host.kernel_frames, bytes);
    return bytes;
}

typedef __u16 u16;
typedef __u64 u64;

/* Where the kernel side loads, memory is asked as by a helper. */
#define LOAD_KERNEL(type, pointer, offset)                                                \
    ({                                                                                    \
        type loaded = 0;                                                                  \
        host_read_kernel(&loaded, sizeof(loaded), (void *)((__u64)(pointer) + (offset))); \
        (__u64) loaded;                                                                   \
    })

/* A function is called as any other is. */
#define CALL(name, walk) name(walk)

#define BPF_FUNC_probe_read_user host_read_user
#define BPF_FUNC_probe_read_kernel host_read_kernel
#define BPF_FUNC_get_stack host_get_stack

HOST_HELPER __u64 bpf_ktime_get_ns(void)
{
    return host.now_ns;
}

HOST_HELPER __u32 bpf_get_smp_processor_id(void)
{
    return host.cpu;
}

HOST_HELPER __u64 bpf_get_current_pid_tgid(void)
{
    return host.pid_tgid;
}

HOST_HELPER __u64 bpf_get_current_task(void)
{
    return host.task;
}

#define CURRENT_TASK ((void *)host.task)
#define TASK_REGISTERS(task) host.registers

__u64 bpf_ringbuf_query(void *map, __u64 flags);
long bpf_ringbuf_output(void *map, void *record, __u64 size, __u64 flags);
