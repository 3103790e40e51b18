/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Copies of code objects: in go the identified frames of a stack that is about to be sent, out go the code objects among
 * them that were not sent yet. Code that lives for a millisecond is gone when user space comes to read it; a frame keeps
 * it alive until its stack is taken. What is copied is memory as it is: user space reads in it as it reads in the process.
 */
#pragma once

#define PAGE_BYTES 4096
#define TABLE_MASK 16383 /* of BP_COPIED_TABLE_BYTES; what follows the table in a bp_walk is longer */

/* False when the process has had too many lately. As is_sampled() does for stacks. */
static __always_inline bool may_copy(struct bp_process *process, __u64 now)
{
    if (process->copied_ns + BP_COPIES_SAVED_NS < now)
        process->copied_ns = now - BP_COPIES_SAVED_NS;
    if (process->copied_ns > now)
        return false;
    process->copied_ns += BP_COPY_INTERVAL_NS;
    return true;
}

/* Where the kind of an object, and so its size, is not known: a part of it is enough where nothing is mapped behind it. */
static __always_inline __u64 copy_text(__u8 *text, __u64 address)
{
    if (probe_read_user(text, BP_COPIED_TEXT_BYTES, (void *)address) == 0)
        return address;
    __u64 size = PAGE_BYTES - (address & (PAGE_BYTES - 1));
    HIDE(size); /* from the compiler, which would check another value than it uses */
    if (size >= BP_COPIED_TEXT_BYTES)
        return 0;
    return probe_read_user(text, size, (void *)address) ? 0 : address;
}

/* Bytes of the table that were copied, 0: it is not readable or too large. */
static __always_inline __u64 copy_table(struct bp_walk *walk, __u64 address)
{
    __u64 size = 0, size_at = walk->layout.object_size;
    if (!READ_USER(size, address + size_at))
        return 0;
    __u64 bytes = size + size_at + 2 * sizeof(__u64);
    if (size > BP_COPIED_TABLE_BYTES || bytes > BP_COPIED_TABLE_BYTES)
        return 0;
    HIDE(bytes); /* from the compiler, which would leave out the mask: older verifiers forget the check */
    bytes &= TABLE_MASK;
    return probe_read_user(walk->copy.table, bytes, (void *)address) ? 0 : bytes;
}

/* The copy of one code object; false when it was replaced meanwhile, or has no such identity. */
static __always_inline bool fill_copy(struct bp_walk *walk, __u64 code, __u64 identity)
{
    struct bp_code_copy *copy = &walk->copy;
    __u64 words_at = walk->layout.code_identity & 127;

    HIDE(words_at); /* from the compiler, which would leave out the masks: older verifiers forget the check */
    words_at &= 127;
    if (probe_read_user(copy->object, words_at + BP_IDENTITY_WORDS * sizeof(__u64), (void *)code))
        return false;
    __u64 *words = (__u64 *)(copy->object + words_at);
    __u64 table_address = words[BP_IDENTITY_WORDS - 1];
    copy->addresses[0] = copy_text(copy->texts, words[BP_IDENTITY_WORDS - 4]);
    copy->addresses[1] = copy_text(copy->texts + BP_COPIED_TEXT_BYTES, words[BP_IDENTITY_WORDS - 3]);
    copy->addresses[2] = copy_text(copy->texts + 2 * BP_COPIED_TEXT_BYTES, words[BP_IDENTITY_WORDS - 2]);
    copy->table_bytes = copy_table(walk, table_address);
    copy->addresses[3] = copy->table_bytes ? table_address : 0;
    copy->code = code;
    copy->identity = identity;
    copy->tgid = walk->tgid;
    return code_identity(walk, code) == identity; /* another thread's frames may end meanwhile */
}

static __always_inline void send_copy(struct bp_walk *walk, struct bp_copied_code *copied, __u64 place, __u64 code,
                                      __u64 identity)
{
    struct bp_process *process = process_of(walk);
    if (!process)
        return;
    if (copied->place == place) /* with another identity */
        process->replaced_ns = walk->header.time_ns;
    if (!walk->copies_left || !may_copy(process, walk->header.time_ns)) {
        count(BP_CODE_NOT_COPIED);
        return;
    }
    walk->copies_left--;
    if (!fill_copy(walk, code, identity))
        return;
    __u64 bytes = walk->copy.table_bytes;
    if (bytes > BP_COPIED_TABLE_BYTES)
        return;
    bytes += sizeof(walk->copy) - BP_COPIED_TABLE_BYTES;
    if (!has_room(MAP(copies), &process->in_copies, bytes) ||
        bpf_ringbuf_output(MAP(copies), &walk->copy, bytes, wakes(MAP(copies)))) {
        count(BP_CODE_NOT_COPIED);
        return;
    }
    copied->place = place;
    copied->identity = identity;
}

/* The same for frame walk->next, if it is identified; true when there are no more frames. */
static __always_inline bool copy_next_code(struct bp_walk *walk)
{
    __u32 n = walk->next;
    if (n >= BP_MAX_PYTHON_FRAMES || n >= walk->header.python_count)
        return true;
    walk->next = n + 1;
    __u64 code = FRAME_CODE(walk, n) & ADDRESS_MASK, identity = FRAME_IDENTITY(walk, n);
    if (!identity)
        return false;
    __u64 place = mix(code, walk->tgid);
    __u32 slot = (place >> 7) & (BP_COPIED_CODES - 1);
    struct bp_copied_code *copied = bpf_map_lookup_elem(MAP(copied_codes), &slot);
    if (copied && ((copied->place ^ place) | (copied->identity ^ identity)))
        send_copy(walk, copied, place, code, identity);
    return false;
}
