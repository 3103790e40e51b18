/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The only place where a layout shared by the kernel side and user space is written. bpfprof/abi.py reads this file
 * into numpy dtypes and enums, so keep to what it understands: `struct name { type field[count]; };` of fixed-width
 * types and earlier structs, `enum name { NAME = value, };` and `#define NAME number`. Padding is explicit.
 */
#pragma once

#define BP_MAX_THREADS 65536
#define BP_MAX_PROCESSES 4096
#define BP_MAX_PYTHON_FRAMES 1024
#define BP_PYTHON_FRAMES_PER_PROGRAM 64
#define BP_MAX_NATIVE_FRAMES 128
#define BP_MAX_KERNEL_FRAMES 64
#define BP_EVENT_RING_BYTES 8388608
#define BP_STACK_RING_BYTES 4194304
#define BP_SEEN_STACKS 8192
#define BP_SEEN_CODES 4096
#define BP_IDENTITY_WORDS 7
/* A stack or code object already sent is sent again after this long: bounds how long a reused address can be misread. */
#define BP_RESEND_NS 2000000000
/* Code objects of this many innermost frames are identified with every stack. */
#define BP_LEAF_FRAMES 4
/* The scheduler's clock and ours are read some microseconds apart; a smaller difference is not time that was stolen. */
#define BP_STOLEN_MIN_NS 50000

/*
 * One index for three uses: a counter in the `counters` map, the status of a stack, and, by the comment, the sentence
 * shown to the user. Statuses below BP_LOST_FIRST belong to a stack; the others count what was lost.
 */
enum bp_status {
    BP_OK = 0,                       /* complete */
    BP_NO_PYTHON = 1,                /* no Python frames */
    BP_PYTHON_NOT_READY = 2,         /* interpreter not known yet */
    BP_PYTHON_STATE_FAULT = 3,       /* Python thread state unreadable */
    BP_PYTHON_FRAME_FAULT = 4,       /* Python frame unreadable */
    BP_PYTHON_TOO_DEEP = 5,          /* deeper than 1024 Python frames */
    BP_STACK_NOT_TAKEN = 6,          /* stack not taken */
    BP_NOT_STARTED = 7,              /* not started yet */
    BP_LOST_FIRST = 16,              /* (marks the first loss) */
    BP_LOST_EVENT_RING_FULL = 17,    /* event lost, buffer full */
    BP_LOST_STACK_RING_FULL = 18,    /* stack lost, buffer full */
    BP_LOST_THREAD_TABLE_FULL = 19,  /* thread not watched, table full */
    BP_LOST_UNKNOWN_THREAD = 20,     /* sample lost, thread not known yet */
    BP_LOST_TAIL_CALL = 21,          /* sample lost, program missing */
    BP_LOST_PROCESS_TABLE_FULL = 22, /* process not watched, table full */
    BP_STATUS_COUNT = 32,
};

enum bp_thread_state {
    BP_THREAD_UNKNOWN = 0, /* no event seen yet */
    BP_THREAD_ON_CPU = 1,
    BP_THREAD_RUNNABLE = 2,
    BP_THREAD_BLOCKED = 3,
    BP_THREAD_DEAD = 4,
};

enum bp_event_kind {
    BP_EVENT_SAMPLE = 1, /* a thread was on CPU: time_ns, on_cpu_ns, stack */
    BP_EVENT_WAIT = 2,   /* a thread came back to a CPU: every field */
    BP_EVENT_FORK = 3,   /* thread tid of process tgid was born; args[0] = parent tgid */
    BP_EVENT_EXEC = 4,   /* process tgid runs another program */
    BP_EVENT_EXIT = 5,   /* thread tid is gone; on_cpu_ns, blocked_ns, runqueue_ns and stolen_ns are its totals */
};

/* Programs that a stack is handed on to by tail call. */
enum bp_tail {
    BP_TAIL_WALK = 0,     /* Python frames, from walk->frame on */
    BP_TAIL_IDENTIFY = 1, /* a new stack: identify its code objects and send it */
    BP_TAIL_COUNT = 2,
};

enum bp_process_flags {
    BP_PROCESS_PYTHON = 1,          /* the layout below is valid */
    BP_PROCESS_FOLLOW_CHILDREN = 2, /* children born by fork are targets too */
    BP_PROCESS_KNOWN = 4,           /* user space has looked at the program it runs */
};

enum bp_config_flags {
    BP_CONFIG_ON_CPU_STACKS = 1,
    BP_CONFIG_OFF_CPU_STACKS = 2,
    BP_CONFIG_STOPPED = 4, /* the recording is over: every thread stays as it is */
};

/* Fixed size, so that user space reads thousands at once as one numpy array. */
struct bp_event {
    __u8 kind;   /* enum bp_event_kind */
    __u8 status; /* enum bp_status of the stack */
    __u16 cpu;
    __u32 tid;
    __u32 tgid;
    __s16 syscall;     /* WAIT: number of the system call it waited in, -1: not in one */
    __u16 task_state;  /* WAIT: prev_state of sched_switch, 0: still runnable (preempted) */
    __u64 time_ns;     /* CLOCK_MONOTONIC; WAIT: when it was back on a CPU */
    __u64 on_cpu_ns;   /* of this thread since it is watched, up to the event (WAIT: up to the switch-out) */
    __u64 blocked_ns;  /* WAIT: from switch-out to being made runnable */
    __u64 runqueue_ns; /* WAIT: from being runnable to running */
    __u64 stolen_ns;   /* WAIT: of the time on a CPU before it, what the hypervisor or interrupts took */
    __u64 stack;       /* key of a bp_stack sent earlier; 0: none, see status */
    __u64 args[3];     /* WAIT: first arguments of the system call */
};

/*
 * Header of a record of the stack ring; python_count bp_python_frame, then native_count __u64, then kernel_count __u64
 * follow. Leaf first.
 */
struct bp_stack {
    __u64 key;
    __u64 time_ns;
    __u32 tgid;
    __u16 python_count;
    __u16 native_count;
    __u16 kernel_count;
    __u8 status;
    __u8 pad[5];
};

/*
 * code: address of the code object in bits 0-55, entry mark in bits 56-63. instruction: address of the code unit.
 * identity: hash of what tells the code object from another at the same address, 0: sent less than BP_RESEND_NS ago.
 */
struct bp_python_frame {
    __u64 code;
    __u64 instruction;
    __u64 identity;
};

/* Where one CPython version keeps things; offsets in bytes. See bpfprof/cpython/layout.py. */
struct bp_python_layout {
    __u16 tstate_frame; /* PyThreadState.cframe (<= 3.12) or .current_frame */
    __u16 cframe_frame; /* _PyCFrame.current_frame, 0xffff: tstate_frame is the frame itself */
    __u16 tstate_chunk; /* PyThreadState.datastack_chunk */
    __u16 frame_code;
    __u16 frame_previous;
    __u16 frame_instruction;
    __u16 frame_mark;
    __u16 code_identity; /* BP_IDENTITY_WORDS words that end with co_filename, co_name, co_qualname, co_linetable */
    __u16 name_hash;     /* PyASCIIObject.hash, where code objects have no version; 0: they have one */
    __u16 pad[3];
};

struct bp_process {
    __u32 flags;      /* enum bp_process_flags */
    __u32 tss_offset; /* from the thread pointer to the slot that holds the thread state */
    struct bp_python_layout layout;
};

/* One thread that is watched. Made by user space or at fork; at a switch only updated in place. */
struct bp_thread {
    __u32 tgid;
    __u8 state;  /* enum bp_thread_state */
    __u8 status; /* of the stack taken at switch-out */
    __s16 syscall;
    __u16 task_state;
    __u16 pad;
    __u32 wait_count;
    __u64 since_ns; /* when the state began; UNKNOWN: when the thread began to be watched */
    __u64 wake_ns;  /* when it was made runnable, 0: not yet */
    __u64 stack;
    __u64 args[3];
    __u64 on_cpu_ns; /* totals of the intervals that ended */
    __u64 blocked_ns;
    __u64 runqueue_ns;
    __u64 stolen_ns;
    __u64 exec_ns;         /* the scheduler's sum_exec_runtime at since_ns */
    __u64 burst_stolen_ns; /* stolen of the last time on a CPU */
    __u64 first_ns;        /* when the thread began to be watched */
};

struct bp_config {
    __u32 flags; /* enum bp_config_flags */
    __u32 pad;
};

struct bp_seen_stack {
    __u64 key;
    __u64 time_ns;
};

struct bp_seen_code {
    __u64 code;
    __u32 tgid;
    __u32 pad;
    __u64 time_ns;
};

/*
 * Scratch memory of one stack being taken, kept across tail calls. `block` is one read of a data-stack chunk, from user
 * address `base` on; its tail lets a frame begin at the last byte. `record` goes to the stack ring as it is.
 */
struct bp_walk {
    struct bp_event event; /* on CPU: sent when the stack is there */
    __u64 frame;
    __u64 chunk;
    __u64 base;
    __u64 hash;
    __u32 tid;
    __u32 tgid;
    __u32 next; /* frame to go on with after a tail call */
    __u32 pad;
    struct bp_python_layout layout; /* of the process */
    __u8 block[4224];
    struct bp_stack header;
    struct bp_python_frame python[BP_MAX_PYTHON_FRAMES];
};
