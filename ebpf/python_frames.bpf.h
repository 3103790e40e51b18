/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * From the current task to its PyThreadState and the innermost frame, and from that to the outermost one, through
 * _PyInterpreterFrame.previous (CPython 3.11 and later). Frames of older ones are in python_old_frames.bpf.h.
 */
#pragma once

/*
 * The thread state is the one bound to the OS thread, not the current one, which is null while the GIL is released: that
 * is when a thread waits. It lies at a fixed distance from the thread pointer, or up to two loads away from there:
 * bpfprof/cpython/thread_slot.py.
 *
 * CPython 3.11 and 3.12 store tstate->cframe some 20 instructions before cframe.current_frame, which holds until then what
 * the stack held: an old frame, mostly. There the cframe before this one is right. Python/ceval.c, start of
 * _PyEval_EvalFrameDefault (v3.11.7, v3.12.1); _PyCFrame ends with {current_frame, previous}, Include/cpython/pystate.h.
 *
 * Compilers may store both at once, so that `previous` is old, too. Until they do, the right one is in a register, and
 * after it the new frame is: one of them has to be what is read.
 */
#define BLOCK_BYTES 4096
#define EVAL_PROLOGUE_BYTES 256
#define EVAL_FRAME_BYTES 512 /* the new cframe lies in the C frame on top of the stack */
#define TSTATE_BYTES 320     /* of PyThreadState: what is read of it */
#define CFRAME_PREVIOUS 8    /* from current_frame */

static __always_inline enum bp_status python_thread_state(struct bp_walk *walk, struct bp_process *process)
{
    __u64 thread_pointer = LOAD_MEMBER(u64, CURRENT_TASK, BP_OFFSET_TASK_FSBASE), tstate = 0;

    if (!READ_USER(tstate, thread_pointer + process->thread_slot))
        return BP_PYTHON_STATE_FAULT;
    if (process->slot_loads) {
        __u64 count = 0;
        /* A vector grows when its thread first needs more of it. */
        if (process->tls_module && !READ_USER(count, tstate + process->tls_count))
            return BP_PYTHON_STATE_FAULT;
        if (count < process->tls_module || tstate + 1 <= 1)
            return BP_NO_PYTHON;
        if (!READ_USER(tstate, tstate + process->slot_second))
            return BP_PYTHON_STATE_FAULT;
        /* 0 and -1 (TLS_DTV_UNALLOCATED, elf/dl-tls.c, glibc 2.36): a block that this thread has not used yet. */
        if (process->slot_loads > 1) {
            if (tstate + 1 <= 1)
                return BP_NO_PYTHON;
            if (!READ_USER(tstate, tstate + process->slot_third))
                return BP_PYTHON_STATE_FAULT;
        }
    }
    walk->tstate = tstate;
    walk->thread_pointer = thread_pointer;
    return tstate ? BP_OK : BP_NO_PYTHON;
}

/* The newest interpreter is the first one in which next_thread_state() looks. */
static __always_inline void look_in_interpreters(struct bp_walk *walk, struct bp_process *process)
{
    walk->candidate = 0;
    if (process->interpreters)
        READ_USER(walk->interpreter, process->interpreters);
}

/* Registers of the thread that hold a value: 0 is none. */
static __always_inline __u64 registers_with(struct bp_walk *walk, __u64 value)
{
    __u64 count = 0;
    for (int place = 0; place < REGISTER_ORIG_AX; place++)
        count += less(walk->native.registers[place] ^ value, 1);
    return count;
}

static __always_inline enum bp_status python_innermost_frame(struct bp_walk *walk, struct bp_process *process)
{
    struct bp_python_layout *layout = &process->layout;
    __u64 tstate = walk->tstate, frame = 0, chunk_at = layout->tstate_chunk, frame_at = layout->tstate_frame,
          base_at = layout->tstate_base_frame, interpreter_at = layout->tstate_interpreter;
    __u64 ip = walk->native.registers[REGISTER_IP], sp = walk->native.registers[REGISTER_SP];

    /* The block is not in use yet. Both lie in its first words in every version. */
    if (chunk_at > TSTATE_BYTES - sizeof(__u64) || interpreter_at > TSTATE_BYTES - sizeof(__u64) ||
        frame_at > TSTATE_BYTES - sizeof(__u64) || probe_read_user(walk->block, TSTATE_BYTES, (void *)tstate))
        return BP_PYTHON_STATE_FAULT;
    HIDE(frame_at); /* from the compiler, which would leave out the masks: older verifiers forget the check */
    HIDE(chunk_at);
    HIDE(interpreter_at);
    frame = *(__u64 *)(walk->block + (frame_at & (BLOCK_BYTES - 1)));
    walk->chunk = *(__u64 *)(walk->block + (chunk_at & (BLOCK_BYTES - 1)));
    if (layout->cframe_frame != 0xffff) {
        bool is_new = ip - process->eval_start < EVAL_PROLOGUE_BYTES && frame - sp < EVAL_FRAME_BYTES;
        __u64 cframe = frame, previous = 0;
        if (!READ_USER(frame, cframe + layout->cframe_frame))
            return BP_PYTHON_STATE_FAULT;
        if (is_new) {
            if (!READ_USER(previous, cframe + layout->cframe_frame + CFRAME_PREVIOUS) ||
                !(registers_with(walk, previous) + registers_with(walk, frame)) ||
                !READ_USER(frame, previous + layout->cframe_frame))
                return BP_PYTHON_STATE_FAULT;
        }
    }
    walk->frame = frame;
    walk->root = 0;
    if (*(__u64 *)(walk->block + (interpreter_at & (BLOCK_BYTES - 1))) != process->main_interpreter)
        look_in_interpreters(walk, process);
    if (base_at <= TSTATE_BYTES - sizeof(__u64)) {
        HIDE(base_at);
        walk->root = *(__u64 *)(walk->block + (base_at & (BLOCK_BYTES - 1)));
    }
    return frame != walk->root ? BP_OK : BP_NO_PYTHON;
}

/* The same for another thread of the process: only the Python side of it can be seen from here. */
static __always_inline bool python_frame_of(struct bp_walk *walk, __u64 tstate)
{
    struct bp_python_layout *layout = &walk->layout;
    if (!READ_USER(walk->frame, tstate + layout->tstate_frame))
        return false;
    if (layout->cframe_frame != 0xffff && !READ_USER(walk->frame, walk->frame + layout->cframe_frame))
        return false;
    walk->root = 0;
    if (layout->tstate_base_frame != 0xffff && !READ_USER(walk->root, tstate + layout->tstate_base_frame))
        return false;
    return READ_USER(walk->chunk, tstate + layout->tstate_chunk) && walk->frame != walk->root;
}

#define THREAD_STATE_STEPS 512 /* of a search among interpreters and their thread states */
enum search { SEARCH_GOES_ON, SEARCH_FOUND, SEARCH_ENDS };

/* Whether this thread runs Python with a thread state; before CPython 3.12 another thread may have made it. */
static __always_inline bool is_of_thread(struct bp_walk *walk, __u64 tstate)
{
    __u64 value = 0, sp = walk->native.registers[REGISTER_SP], stack_bytes = walk->thread_pointer - sp;
    if (walk->layout.cframe_frame == 0xffff)
        return READ_USER(value, tstate + walk->layout.tstate_thread_id) && value == walk->thread_pointer;
    /* Its cframe is on the stack of the thread, which ends at the thread pointer; that of the first thread lies above. */
    if (stack_bytes >= USER_LIMIT)
        stack_bytes = USER_LIMIT;
    return READ_USER(value, tstate + walk->layout.tstate_frame) && value - sp < stack_bytes;
}

/*
 * A thread that lets another interpreter run has a thread state in each, and the frames of the outer one continue those of
 * the inner one. No pointer leads from one to the other: CPython keeps what it comes back to in variables of C
 * (Modules/_xxsubinterpretersmodule.c, v3.11.7 and v3.12.1; _PyXI_Enter, Python/crossinterp.c, v3.13.0). So the lists of
 * thread states are gone through, newest interpreter first: the inner one is the newer one, but where it was made before
 * the one that runs it and four are nested. This is one step; where it finds a state, walk->outer is it.
 */
static __always_inline int next_thread_state(struct bp_walk *walk)
{
    __u64 tstate = walk->candidate, interpreter = walk->interpreter;
    if (!tstate) {
        if (!interpreter || !READ_USER(walk->candidate, interpreter + walk->layout.interpreter_threads) ||
            !READ_USER(walk->interpreter, interpreter + walk->layout.interpreter_next))
            return SEARCH_ENDS;
        return SEARCH_GOES_ON;
    }
    walk->outer = tstate;
    if (!READ_USER(walk->candidate, tstate + walk->layout.tstate_next))
        return SEARCH_ENDS;
    return tstate != walk->tstate && is_of_thread(walk, tstate) && python_frame_of(walk, tstate) ? SEARCH_FOUND
                                                                                                 : SEARCH_GOES_ON;
}

#define FRAME_BYTES 80           /* _PyInterpreterFrame without localsplus: 72 before CPython 3.14 */
#define CHUNK_SPAN_BYTES 0x10000 /* a frame this close above the chunk's start is taken to be in the chunk */
/* Frames that one call walks, and code objects that one call identifies: enough to make the call cheap beside them. */
#define PYTHON_FRAMES_PER_CALL 16
#define CODES_PER_CALL 8
/* Of a frame's reference to its code object. CPython 3.14 and later have tags in the low bits: Py_TAG_BITS,
 * Include/internal/pycore_stackref.h (v3.14.10, v3.15.2). */
#define ADDRESS_MASK 0x00fffffffffffffcULL
/* Words of Python frame n of a stack: struct bp_python_frame. They come first, so n says where they are. */
#define FRAME_WORDS (sizeof(struct bp_python_frame) / sizeof(__u64))
#define FRAME_CODE(walk, n) ((walk)->words[(n)*FRAME_WORDS])
#define FRAME_INSTRUCTION(walk, n) ((walk)->words[(n)*FRAME_WORDS + 1])
#define FRAME_IDENTITY(walk, n) ((walk)->words[(n)*FRAME_WORDS + 2])

/*
 * Brings FRAME_BYTES at walk->frame into the block; true when they are there. Frames of one data-stack chunk lie next
 * to each other, callers below, so one read that ends with this frame serves many: a read of 4 KiB costs little more
 * than one of 80 bytes. It never begins before the chunk (an unmapped page makes the whole read fail, dearly). Frames
 * elsewhere (generators, C stack, older chunks) are read alone; so is one of an older chunk that lies so close above the
 * newest that it looks like a part of it, with nothing mapped in front of it.
 */
static __always_inline bool frame_in_block(struct bp_walk *walk)
{
    __u64 frame = walk->frame;
    if (frame - walk->base <= walk->span)
        return true;
    __u64 above = frame - walk->chunk;
    if (above < CHUNK_SPAN_BYTES) {
        __u64 size = above + FRAME_BYTES;
        if (size > BLOCK_BYTES)
            size = BLOCK_BYTES;
        walk->base = frame + FRAME_BYTES - size;
        walk->span = size - FRAME_BYTES;
        if (probe_read_user(walk->block, size, (void *)walk->base) == 0)
            return true;
    }
    walk->base = frame;
    walk->span = 0; /* what is above it in the block is of another read */
    if (probe_read_user(walk->block, FRAME_BYTES, (void *)frame) == 0)
        return true;
    walk->base = NOWHERE; /* the block holds zeros: not this frame, if it is asked for again */
    return false;
}

/*
 * Remembers the frame that comes next, each time that twice as many were taken: a chain that comes back to one it has met
 * goes round, and is not one of calls (R. P. Brent, An improved Monte Carlo factorization algorithm, 1980).
 */
static __always_inline void mark_frame(struct bp_walk *walk)
{
    if (!(walk->next & (walk->next - 1)))
        walk->met = walk->frame;
}

/*
 * Takes up to PYTHON_FRAMES_PER_CALL frames, leaf first, from number walk->next on; BP_OK at the root,
 * BP_PYTHON_TOO_DEEP when there are more. What one turn of the loop hands to the next goes through memory, where the
 * verifier does not tell values apart: it then looks at each turn once instead of at each path.
 */
static __always_inline enum bp_status python_walk(struct bp_walk *walk)
{
    __u64 code_at = walk->layout.frame_code & 63, previous_at = walk->layout.frame_previous & 63;
    __u64 instruction_at = walk->layout.frame_instruction & 63, mark_at = walk->layout.frame_mark & 127;

    mark_frame(walk);
    BOUNDED_LOOP
    for (int i = 0; i < PYTHON_FRAMES_PER_CALL; i++) {
        if (!frame_in_block(walk)) /* nothing follows the first frame of a greenlet, in CPython 3.15 too */
            return walk->frame ? BP_PYTHON_FRAME_FAULT : BP_OK;
        __u8 *bytes = walk->block + ((walk->frame - walk->base) & (BLOCK_BYTES - 1));
        __u64 code = *(__u64 *)(bytes + code_at), mark = *(bytes + mark_at);
        __u64 instruction = *(__u64 *)(bytes + instruction_at);
        code = (code & ADDRESS_MASK) | mark << 56;
        __u32 n = walk->next;
        if (n >= BP_MAX_PYTHON_FRAMES)
            return BP_PYTHON_TOO_DEEP;
        FRAME_CODE(walk, n) = code;
        FRAME_INSTRUCTION(walk, n) = instruction;
        FRAME_IDENTITY(walk, n) = 0;
        walk->next = n + 1;
        add_to_key(walk, code);
        add_to_key(walk, instruction);
        walk->frame = *(__u64 *)(bytes + previous_at);
        if (walk->frame == walk->root)
            return BP_OK;
        if (walk->frame == walk->met)
            return BP_PYTHON_FRAME_FAULT;
    }
    return BP_PYTHON_TOO_DEEP;
}

/*
 * What tells a code object from another that takes its address later: its version, where CPython numbers them (3.12 and
 * later), its first line, and the pointers to its filename, name, qualified name (3.11 and later), line table and variables.
 * An allocator that gives out the same addresses again can repeat all pointers, so without a version the hash of the name,
 * which the string holds, is taken too. User space reads the same in the copy or in the process, and compares. 0 when it
 * cannot be read.
 */
static __always_inline __u64 code_identity(struct bp_walk *walk, __u64 code)
{
    __u64 *words = (__u64 *)walk->block, hash = 1, name_hash = 0; /* the frames' memory is not needed any more */
    if (probe_read_user(words, BP_IDENTITY_WORDS * sizeof(*words), (void *)(code + walk->layout.code_identity)))
        return 0;
    if (walk->layout.name_hash)
        READ_USER(name_hash, words[BP_IDENTITY_WORDS - (walk->layout.lasti_bytes ? 2 : 3)] + walk->layout.name_hash);
    words[BP_IDENTITY_WORDS] = name_hash;
    for (int i = 0; i <= BP_IDENTITY_WORDS; i += 2) /* by two: each waits for the one before */
        hash = mix(hash, words[i] + words[i + 1] * 0x9e3779b97f4a7c15ULL);
    return hash | 1;
}

static __always_inline __u64 identity_of(struct bp_walk *walk, __u64 marked_code)
{
    return marked_code >> 56 >= walk->layout.shim_mark ? 0 : code_identity(walk, marked_code & ADDRESS_MASK);
}

/* Identities of the innermost frames, which become part of the stack's key: code that is replaced within BP_RESEND_NS
 * is mostly there. */
static __always_inline void identify_leaf(struct bp_walk *walk)
{
    BOUNDED_LOOP
    for (int n = 0; n < BP_LEAF_FRAMES; n++) {
        if (n >= walk->header.python_count)
            break;
        __u64 identity = identity_of(walk, FRAME_CODE(walk, n));
        FRAME_IDENTITY(walk, n) = identity;
        add_to_key(walk, identity);
    }
}

/*
 * Gives frames from walk->next on whose code object was not sent lately their identity; true when all frames are done. In a
 * process that replaces code all have one, which becomes part of the stack's key.
 */
static __always_inline bool python_identify(struct bp_walk *walk, __u64 now)
{
    BOUNDED_LOOP
    for (int i = 0; i < CODES_PER_CALL; i++) {
        __u32 n = walk->next, tgid = walk->tgid;
        if (n >= BP_MAX_PYTHON_FRAMES || n >= walk->header.python_count)
            return true;
        walk->next = n + 1;
        FRAME_IDENTITY(walk, n) = 0;
        __u64 code = FRAME_CODE(walk, n) & ADDRESS_MASK;
        __u32 slot = seen_slot(mix(code, tgid), BP_SEEN_CODES);
        struct bp_seen_code *seen = bpf_map_lookup_elem(MAP(seen_codes), &slot);
        if (!seen)
            continue;
        __u64 differs = (seen->code ^ code) | (seen->tgid ^ tgid) | less(BP_RESEND_NS - 1, now - seen->time_ns);
        if (!(differs | walk->replaces_code))
            continue;
        __u64 identity = identity_of(walk, FRAME_CODE(walk, n));
        FRAME_IDENTITY(walk, n) = identity;
        if (walk->replaces_code)
            add_to_key(walk, identity);
        if (!identity)
            continue;
        seen->code = code;
        seen->tgid = tgid;
        seen->time_ns = now;
    }
    return false;
}
