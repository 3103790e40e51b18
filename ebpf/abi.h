/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The only place where a layout shared by the kernel side and user space is written. bpfprof/abi/ reads this file
 * into numpy dtypes and enums, so keep to what it understands: `struct name { type field[count]; };` of fixed-width
 * types and earlier structs, `enum name { NAME = value, };` and `#define NAME number`. Padding is explicit.
 */
#pragma once

#define BP_MAX_THREADS 65536
/* In an instruction that loads the number of an event: none of BPF_PSEUDO_* of include/uapi/linux/bpf.h. */
#define BP_PSEUDO_EVENT 15
/* The same where it is one of the numbers of the running kernel: see current_task.bpf.h. */
#define BP_PSEUDO_KERNEL 14
#define BP_MAX_PROCESSES 16384
/* So many threads and processes are watched that a process and its descendants start: a thread a millisecond or a process
 * in five, and as many as in four seconds of that at once. What user space does for each takes up to half as long. */
#define BP_BIRTH_NS 1000000
#define BP_PROCESS_BIRTH_NS 5000000
#define BP_SCARCE_TIMES 8
#define BP_BIRTHS_AHEAD_NS 4000000000
#define BP_MAX_PYTHON_FRAMES 1024
#define BP_MAX_NATIVE_FRAMES 3072 /* CPython 3.6 to 3.8 has three for each Python function */
#define BP_MAX_KERNEL_FRAMES 64
/* What a stack's frames take at most, in words of 8 bytes: 3 for a Python frame, 1 for each other. */
#define BP_MAX_STACK_WORDS 6208
/* Unwind tables are words of 4 bytes, in chunks that are made as they are needed (see struct bp_chunk). */
#define BP_CHUNK_WORDS 1048576
#define BP_MAX_CHUNKS 256
#define BP_MAX_FILES 32768
#define BP_MAX_RULES 65536
/* One read of the target's stack: it serves most words of a few frames. */
#define BP_STACK_BLOCK_BYTES 1024
/* Rules found lately, for each CPU and program type. */
#define BP_CACHED_RULES 1024
/* Of a native frame's word: the address is of an instruction that runs, not of one that will be returned to. */
#define BP_EXACT_BIT 63
/* Bit of args[0] of a poll() of one descriptor: below it are the first BP_POLLED_BITS of its struct pollfd. */
#define BP_POLLED_BIT 63
#define BP_POLLED_BITS 48
/* Bit of args[1] of a futex() in which a thread is parked: args[0] is the lock's address, not that of its own semaphore. */
#define BP_PARKED_BIT 62
/* Bit of args[2] of an fcntl() that waits for a lock: below it is where in the file the range begins, in place of its address. */
#define BP_RANGE_BIT 63
#define BP_OBJECT_KIND_BIT 60
#define BP_EVENT_RING_BYTES 8388608
#define BP_STACK_RING_BYTES 4194304
#define BP_SEEN_STACKS 8192
#define BP_SEEN_CODES 4096
#define BP_IDENTITY_WORDS 11
/* Copies of code objects, see struct bp_code_copy: their ring, and which were sent lately. */
#define BP_COPY_RING_BYTES 4194304
#define BP_COPIED_CODES 16384
/* PyCodeObject up to its line table: 144 bytes in CPython 3.11, 160 in the free-threaded 3.13. The mask in fill_copy()
 * lets BP_IDENTITY_WORDS begin at 127. */
#define BP_COPIED_OBJECT_BYTES 216
/* 464 ASCII characters, and all that is around them. Functions of 500 lines have tables of 15 KiB at most. */
#define BP_COPIED_TEXT_BYTES 512
#define BP_COPIED_TEXTS_BYTES 1536
#define BP_COPIED_TABLE_BYTES 14592
/* A process has a code object copied so often, and this many more at once: all that a large program has. */
#define BP_COPY_INTERVAL_NS 500000
#define BP_COPIES_SAVED_NS 1000000000
/* Of one stack at most, the innermost ones: a switch must not take long. */
#define BP_COPIES_PER_STACK 32
/* A process that gave the address of a code object to another one so lately has all code of every stack identified. In
 * its first second each counts as one. */
#define BP_REPLACED_NS 10000000000
/* A stack or code object already sent is sent again after this long: bounds how long a reused address can be misread. */
#define BP_RESEND_NS 2000000000
/* struct pthread.tid of glibc x86-64, as its _thread_db_pthread_tid says (2.31 to 2.43). CPython's thread_id points there. */
#define BP_PTHREAD_TID 720
/* Code objects of this many innermost frames are identified with every stack. */
#define BP_LEAF_FRAMES 4
/* Kinds of waits that one thread's short ones are added up by before a sum is sent. */
#define BP_SHORT_WAITS 4
#define BP_COMM_BYTES 16
/* A wait of this length has an event of its own, also where it was not chosen to have a stack. */
#define BP_LONG_WAIT_NS 10000000
/* Calls of libraries (record --cuda): sums, threads that made one, and calls of a thread that are open at a time. */
#define BP_MAX_CALL_SUMS 16384
#define BP_MAX_CALL_THREADS 16384
#define BP_MAX_OPEN_CALLS 8
/* Lengths of calls are counted in two parts of each power of two, the first of which holds all that are shorter. */
#define BP_CALL_LENGTHS 64
#define BP_CALL_LENGTHS_FROM 8
/* The scheduler's clock and ours are read some microseconds apart; a smaller difference is not time that was stolen. */
#define BP_STOLEN_MIN_NS 10000

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
    BP_NATIVE_NOT_READY = 8,         /* unwind table not ready yet */
    BP_NATIVE_NO_MAPPING = 9,        /* code address in no known mapping */
    BP_NATIVE_NO_RULE = 10,          /* no unwind rule for a code address */
    BP_NATIVE_UNSUPPORTED = 11,      /* unwind rule not supported */
    BP_NATIVE_FAULT = 12,            /* native stack unreadable */
    BP_NATIVE_TOO_DEEP = 13,         /* deeper than 3072 native frames */
    BP_NATIVE_NOT_GROWING = 14,      /* native stack does not grow */
    BP_STACK_DISAGREES = 15,         /* native and Python frames disagree */
    BP_NOT_SAMPLED = 16,             /* not sampled */
    BP_OVER_BUDGET = 17,             /* more code addresses or stacks than are recorded of a process */
    BP_LOST_FIRST = 18,              /* (marks the first loss) */
    BP_LOST_EVENT_RING_FULL = 19,    /* event lost, buffer full */
    BP_LOST_STACK_RING_FULL = 20,    /* stack lost, buffer full */
    BP_LOST_THREAD_TABLE_FULL = 21,  /* thread not watched, table full */
    BP_LOST_UNKNOWN_THREAD = 22,     /* sample lost, thread not known yet */
    BP_CODE_NOT_COPIED = 23,         /* code object not copied, too many new ones: no loss where it is read later */
    BP_LOST_PROCESS_TABLE_FULL = 24, /* process not watched, table full */
    BP_SWITCH_NOT_TOLD = 25,         /* switch not told by the kernel: no loss, the scheduler's counters tell of it */
    BP_LOST_CALL = 26,               /* library call not counted, table full */
    BP_LOST_BIRTH = 27,              /* thread or process not watched, those before it started too many */
    BP_STATUS_COUNT = 28,
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
    BP_EVENT_EXIT = 5,   /* thread tid is gone; on_cpu_ns, blocked_ns, runqueue_ns, stolen_ns: totals; args: its comm */
    BP_EVENT_ASK = 6,    /* a stack of process tgid could not be taken: user space has not looked at it yet */
    BP_EVENT_SHORT = 7,  /* waits added up: syscall, task_state, flags, both times, args[0], args[1] is how many */
    BP_EVENT_COUNTED = 8, /* a thread had a perf event: time_ns, stack; args[0]: its number, args[1]: how many it is */
};

/* Added up: `flags` of a sample or wait. */
enum bp_gil_flags {
    BP_HOLDS_GIL = 1,     /* the thread had the GIL of its interpreter */
    BP_WAITS_FOR_GIL = 2, /* it waited for a GIL */
    BP_UNSAMPLED = 4,     /* SHORT: not short, but there were too many switches */
};

enum bp_object_kind {
    BP_OBJECT_UNKNOWN = 0,
    BP_OBJECT_INODE = 1,      /* the number of a file, pipe, device or socket */
    BP_OBJECT_PEER = 2,       /* of a TCP connection the other end: port << 32, and the address of IPv4 as in memory */
    BP_OBJECT_OTHER_PEER = 3, /* of another socket */
    BP_OBJECT_LISTENS = 4,    /* the address at which it listens, in the same way */
};

enum bp_waker_kind {
    BP_WAKER_UNKNOWN = 0,
    BP_WAKER_THREAD = 1,
    BP_WAKER_INTERRUPT = 2,      /* of a device or a timer */
    BP_WAKER_SOFT_INTERRUPT = 3, /* of the network, mostly */
};

/* What a stack is taken for. */
enum bp_purpose {
    BP_FOR_SAMPLE = 0,
    BP_FOR_SWITCH_OUT = 1,
    BP_FOR_WAKER = 2,
};

enum bp_process_flags {
    BP_PROCESS_PYTHON = 1,          /* the layout below is valid */
    BP_PROCESS_FOLLOW_CHILDREN = 2, /* children born by fork are targets too */
    BP_PROCESS_KNOWN = 4,           /* user space has looked at the program it runs */
    BP_PROCESS_UNWIND = 8,          /* its mappings are in the unwind tables */
    BP_PROCESS_ASKED = 16,          /* BP_EVENT_ASK was sent */
    BP_PROCESS_KERNEL = 32,         /* a kernel thread: kernel stacks only */
    BP_PROCESS_MAKES_CODE = 64,     /* it has executable memory of no file */
};

enum bp_config_flags {
    BP_CONFIG_ON_CPU_STACKS = 1,
    BP_CONFIG_OFF_CPU_STACKS = 2,
    BP_CONFIG_STOPPED = 4,        /* the recording is over: every thread stays as it is */
    BP_CONFIG_NATIVE = 8,         /* native frames are wanted */
    BP_CONFIG_KERNEL = 16,        /* kernel frames are wanted with every stack */
    BP_CONFIG_ALL_PROCESSES = 32, /* whatever is born is a target */
    BP_CONFIG_WAKERS = 64,        /* who ends a wait is wanted */
    BP_CONFIG_ALL_EXECS = 128, /* BP_EVENT_EXEC is sent of processes that are no targets, too: they may become some */
};

/* Where the canonical frame address is, which is what rsp will be in the caller. k is `cfa_offset`. */
enum bp_cfa_kind {
    BP_CFA_NO_RULE = 0,      /* no function is known here */
    BP_CFA_UNSUPPORTED = 1,  /* a rule that was not understood */
    BP_CFA_END_OF_STACK = 2, /* the return address is undefined: there is no caller */
    BP_CFA_RSP = 3,          /* rsp + k */
    BP_CFA_RBP = 4,          /* rbp + k */
    BP_CFA_REGISTER = 5,     /* register `cfa_extra` (its DWARF number) + k; only the interrupted frame has its value */
    BP_CFA_DEREF_RBP = 6,    /* *(rbp + k) + cfa_extra */
    BP_CFA_DEREF_RSP = 7,    /* *(rsp + k) + cfa_extra */
    BP_CFA_PLT = 8,          /* rsp + k, and 8 more where (pc & 15) >= cfa_extra */
    BP_CFA_SIGNAL_FRAME = 9, /* *(rsp + k) + cfa_extra, and the return address is at rsp + ra_offset */
};

/* Where the caller's rbp is. k is `fp_offset`; rsp and rbp are those of the frame that is left. */
enum bp_frame_pointer_kind {
    BP_FP_SAME = 0,
    BP_FP_AT_CFA = 1, /* *(CFA + k) */
    BP_FP_AT_RBP = 2, /* *(rbp + k) */
    BP_FP_AT_RSP = 3, /* *(rsp + k) */
    BP_FP_LOST = 4,
};

/* The caller was interrupted ('S' in the augmentation): its pc is looked up as it is, not pc - 1. */
#define BP_RULE_SIGNAL 1
/* The return address is in the register whose DWARF number is `ra_offset`: known of the interrupted frame only. */
#define BP_RULE_IN_REGISTER 2
/* Rule ids that every table has; the third is what code without a table is walked by. */
#define BP_RULE_NO_RULE 0
#define BP_RULE_UNSUPPORTED 1
#define BP_RULE_FRAME_POINTER 2
/* For a leaf without a rule: the return address is where the stack pointer points. */
#define BP_RULE_BARE_LEAF 3
/* Of functions of a large file that nobody has asked for: user space reads their rules when a stack ended there. */
#define BP_RULE_UNREAD 4
/* A row of an unwind table: the low 12 bits of an ELF address, then 20 bits of rule id. */
#define BP_ROW_RULE_BITS 20

enum bp_file_state {
    BP_FILE_PENDING = 0,        /* its table is being made */
    BP_FILE_READY = 1,          /* pages and page_count are valid */
    BP_FILE_FRAME_POINTERS = 2, /* it has no table: frame pointers, if the code keeps them */
};

/* What was needed beside unwind tables. */
enum bp_native_flags {
    BP_NATIVE_BY_FRAME_POINTER = 1, /* some frame was left by its frame pointer */
    BP_NATIVE_BARE_LEAF = 2,        /* the leaf has no rule: it was left by BP_RULE_BARE_LEAF */
};

/* Fixed size, so that user space reads thousands at once as one numpy array. */
struct bp_event {
    __u8 kind;   /* enum bp_event_kind */
    __u8 status; /* enum bp_status of a stack that has no key */
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
    __u64 args[3];     /* WAIT: first arguments of the system call; args[2] of a futex(): see note_lock() */
    __u64 object;     /* WAIT: what the call's descriptor is of: enum bp_object_kind << BP_OBJECT_KIND_BIT, and which */
    __u32 early_ns;   /* WAIT: how long before `time_ns` of the last one sent the scheduler let it run */
    __u32 enqueue_ns; /* WAIT: of runqueue_ns of the last one sent, what went by before it was on a run queue */
    __u64 waker_stack;  /* WAIT: of the thread that ended it */
    __u64 holder_stack; /* WAIT for a GIL: of the thread that had it */
    __u32 waker_tid;
    __u32 waker_tgid;
    __u32 holder;    /* its native_thread_id: the tid in its own pid namespace */
    __u8 flags;      /* enum bp_gil_flags */
    __u8 waker_kind; /* enum bp_waker_kind */
    __u16 one_in;    /* WAIT: the switch was chosen to have a stack as one in so many; 0: it was not */
};

/*
 * Header of a record of the stack ring; python_count bp_python_frame, then native_count __u64 (see BP_EXACT_BIT), then
 * kernel_count __u64 follow. Leaf first.
 */
struct bp_stack {
    __u64 key;
    __u64 time_ns;
    __u32 tgid;
    __u32 generation; /* of the mappings it was walked by */
    __u16 python_count;
    __u16 native_count;
    __u16 kernel_count;
    __u8 status;        /* enum bp_status of the Python frames */
    __u8 native_status; /* enum bp_status of the native frames; BP_STACK_NOT_TAKEN: they were not asked for */
    __u8 native_flags;  /* enum bp_native_flags */
    __u8 pad[7];
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
    __u16 tstate_interpreter; /* PyThreadState.interp */
    __u16 interpreter_gil;    /* PyInterpreterState.ceval.gil, 0xffff: the runtime holds the GIL */
    __u16 gil_holder;         /* _gil_runtime_state.last_holder; .locked follows it */
    __u16 tstate_native_id;   /* PyThreadState.native_thread_id, before 3.11 .thread_id */
    __u16 tstate_base_frame;  /* PyThreadState.base_frame, below the outermost frame; 0xffff: nothing is below that */
    __u16 lasti_bytes;        /* before 3.11: what PyFrameObject.f_lasti counts; 0: frames are _PyInterpreterFrame */
    __u16 tstate_next;
    __u16 tstate_thread_id; /* what pthread_self() returns */
    __u16 interpreter_next;
    __u16 interpreter_threads;
    __u16 slot_stays; /* before 3.12: the slot has the thread's first thread state, whichever interpreter it runs */
    __u16 jit_has_no_frames; /* 3.14: see leave_jit() */
    __u16 object_size;       /* PyVarObject.ob_size; a bytes object's hash follows it, then its contents */
    __u16 shim_mark;         /* frames with this mark or a higher one have no code object; 0xffff: all have one */
    __u16 frame_values;      /* where a frame's variables begin; 0: not known */
    __u16 parks;             /* from 3.13 on: threads wait for locks in the parking lot, see note_parked() */
    __u16 pad[3];
};

/*
 * A record of the copies' ring: what user space reads of a code object, as it was when a stack had it for the first time, for
 * it may be gone when user space comes to it. It is sent before that stack. `addresses` are where the texts and the table
 * were; 0: not readable, or too large. Of the table table_bytes are sent.
 */
struct bp_code_copy {
    __u64 code;
    __u64 identity;     /* as in bp_python_frame */
    __u64 addresses[4]; /* of three texts (before CPython 3.11 two, the first is something else) and the line table */
    __u32 tgid;
    __u32 table_bytes;
    __u8 object[BP_COPIED_OBJECT_BYTES];
    __u8 texts[BP_COPIED_TEXTS_BYTES];
    __u8 table[BP_COPIED_TABLE_BYTES];
};

/*
 * Words of unwind tables. A word index is chunk * BP_CHUNK_WORDS + place. A process's mappings are an array of bp_mapping
 * sorted by address. A file has an array of {word index of its first row, rows} for each 4 KiB page of its addresses; rows
 * are sorted, and the word before a page's first row is the last row before that page. Nothing crosses a chunk.
 */
struct bp_chunk {
    __u32 words[BP_CHUNK_WORDS];
};

/* An executable mapping of a process; bias is what its runtime addresses are above the ELF addresses of the file. */
struct bp_mapping {
    __u64 start;
    __u64 end;
    __u64 bias;
    __u32 file; /* index into `files` */
    __u32 pad;
};

/* The table of one file, for all processes that map it. Every field but the state is written before the state. */
struct bp_file {
    __u32 state; /* enum bp_file_state */
    __u32 pages; /* word index */
    __u32 first_page;
    __u32 page_count;
};

/* How to get from a frame to its caller. */
struct bp_rule {
    __u8 cfa_kind;
    __u8 fp_kind;
    __u8 flags;
    __u8 cfa_extra;
    __s32 cfa_offset;
    __s32 fp_offset;
    __s32 ra_offset; /* from the CFA, but see BP_CFA_SIGNAL_FRAME */
};

/* The rule at an address: a search that was made before. */
struct bp_cached_rule {
    __u64 pc;
    __u32 generation;   /* of the process's mappings; 0: none */
    __u32 native_flags; /* enum bp_native_flags */
    struct bp_rule rule;
};

/* Threads and processes that a process has started: see may_start(). */
struct bp_births {
    __u64 paid_ns; /* each has its price, BP_BIRTH_NS or BP_PROCESS_BIRTH_NS: they are paid for up to then */
    __u32 family;  /* the oldest process that is known of those it descends from, whose account this is */
    __u32 pad;
};

/* What a process has of a ring: see has_room(). */
struct bp_ring_part {
    __u64 since; /* where its reader was */
    __u64 bytes; /* that were sent from then on */
};

struct bp_process {
    __u32 flags;       /* enum bp_process_flags */
    __s32 thread_slot; /* from the thread pointer to the slot that holds the thread state, or leads to it */
    __u32 mappings;    /* word index of an array of bp_mapping */
    __u32 mapping_count;
    __u32 generation; /* of these mappings: no others ever have it */
    __u32 slot_loads; /* how many of the next two offsets are used, each from the address that was loaded before */
    __s32 slot_second;
    __s32 slot_third;
    __u32 tls_module; /* the slot leads to a dynamic thread vector, which must have this entry; 0: to none */
    __s32 tls_count;  /* from the vector to the number of its entries */
    __u64 eval_start; /* of the C evaluation function, 0: not known */
    __u64 gil;        /* address of the GIL (of the main interpreter, where each has one), 0: none is known */
    __u64 gil_bytes;
    __u64 gil_current;  /* CPython 3.6: address of _PyThreadState_Current, 0: later ones */
    __u64 interpreters; /* address of the pointer to the newest interpreter, 0: only the main one is looked at */
    __u64 main_interpreter;
    __u64 replaced_ns; /* when code was last seen where other code had been */
    __u64 copied_ns;   /* its copies of code objects are spent up to then */
    struct bp_ring_part in_events;
    struct bp_ring_part in_stacks;
    struct bp_ring_part in_copies;
    struct bp_python_layout layout;
};

/* Waits of one thread that are not sent one by one; count 0: unused. */
struct bp_short_wait {
    __s16 syscall;
    __u16 task_state;
    __u8 flags; /* enum bp_gil_flags */
    __u8 pad[3];
    __u32 arg; /* first argument of the call, if it is a small number */
    __u32 count;
    __u64 blocked_ns;
    __u64 runqueue_ns;
};

/* One thread that is watched. Made by user space or at fork; at a switch only updated in place. */
struct bp_thread {
    __u32 tgid;
    __u8 state;  /* enum bp_thread_state */
    __u8 status; /* of the stack taken at switch-out */
    __s16 syscall;
    __u16 task_state;
    __u8 flags;      /* enum bp_gil_flags of the wait */
    __u8 waker_kind; /* enum bp_waker_kind */
    __u32 wait_count;
    __u64 since_ns; /* when the state began; UNKNOWN: when the thread began to be watched */
    __u64 wake_ns;  /* when it was made runnable, 0: not yet */
    __u64 stack;
    __u64 args[3];
    __u64 object;
    __u64 on_cpu_ns; /* totals of the intervals that ended */
    __u64 blocked_ns;
    __u64 runqueue_ns;
    __u64 stolen_ns;
    __u64 exec_ns;       /* the scheduler's sum_exec_runtime at since_ns */
    __u64 run_stolen_ns; /* stolen of the last time on a CPU */
    __u64 first_ns;      /* when the thread began to be watched */
    __u64 gil;           /* of its interpreter, where that is not the process's; 0: not known */
    __u64 waker_stack;   /* of the wait, as in bp_event */
    __u64 holder_stack;
    __u32 waker_tid;
    __u32 waker_tgid;
    __u32 holder;
    __u32 next_short;   /* the sum that is sent next to make room */
    __u64 run_delay_ns; /* the scheduler's sched_info.run_delay at since_ns */
    __u32 early_ns;     /* as in bp_event */
    __u32 enqueue_ns;
    __u64 last_runqueue_ns; /* of the last wait */
    __u32 last_short;       /* 1 + the sum that the last wait is in, 0: it was sent */
    __u16 one_in;           /* as in bp_event */
    __u8 woken_early;       /* a wake-up found it on the CPU and on the run queue: of its next wait, or none */
    __u8 pad;
    __u64 spent_ns; /* its stacks are spent up to then: see switch_sampling.bpf.h */
    __u64 task;     /* its task_struct, 0: not known; another one after execve in another thread */
    struct bp_short_wait short_waits[BP_SHORT_WAITS];
};

struct bp_config {
    __u32 flags;             /* enum bp_config_flags */
    __u32 is_late;           /* set by the programs: half of the event ring was full when a wait was sent last */
    __u64 min_block_ns;      /* shorter waits are added up */
    __u64 stack_interval_ns; /* a thread's switches have a stack about so often; 0: each has one */
    __u64 key_factor;        /* odd, and random: no program can tell which stacks would have the same key */
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

/* A code object that was copied: a hash of its address and process, and its identity. */
struct bp_copied_code {
    __u64 place;
    __u64 identity;
};

/* A native frame being left, and what was read on the way. */
struct bp_native {
    __u64 pc;
    __u64 bases[4];  /* by enum bp_frame_pointer_kind: unused, CFA (rsp in the caller), rbp, rsp */
    __u32 is_exact;  /* pc is of an instruction that runs, not of one that will be returned to */
    __u32 bp_lost;   /* bp is not known in this frame */
    __u64 word;      /* what was read last */
    __u64 rule;      /* number of the rule at pc */
    __u64 map_start; /* the mapping that was found last, and its file */
    __u64 map_bytes;
    __u64 map_bias;
    struct bp_file file;
    __u32 mappings;
    __u32 mapping_count;
    __u32 generation;
    __u16 jit_has_no_frames; /* of bp_python_layout, of a process that makes code */
    __u16 is_unmapped;       /* pc lies in no mapping that is known, and is taken for code of that JIT */
    __u64 block_base; /* `block` is a copy of the stack from here on; its tail lets a word begin at the last byte */
    __u8 block[1032];
    __u64 registers[21]; /* struct pt_regs of the user side */
};

/*
 * Scratch memory of one stack being taken. `block` is one read of a data-stack chunk, from user address `base` on; its tail
 * lets a frame begin at the last byte. `header` and as many words as are used go to the stack ring as they are.
 */
struct bp_walk {
    struct bp_event event; /* on CPU: sent when the stack is there */
    __u64 frame;
    __u64 root; /* what the outermost frame has for its previous one */
    __u64 chunk;
    __u64 base;
    __u64 span; /* frames up to so far above `base` are in the block */
    __u64 hash; /* becomes the key, see add_to_key() */
    __u64 key_factor;
    __u32 tid;
    __u32 tgid;
    __u32 next; /* Python frame to go on with */
    __u32 used; /* words */
    __u32 wants_native;
    __u32 wants_kernel;
    __u32 wants_look;      /* user space has to look at the process */
    __u32 asks_for_kernel; /* kernel frames are wanted with this stack, even if not with others */
    __u32 purpose;         /* enum bp_purpose */
    __u32 status;          /* enum bp_status of the result */
    __u32 gil_flags;       /* enum bp_gil_flags */
    __u32 replaces_code;   /* the process did so lately: see BP_REPLACED_NS */
    __u32 copies_left;     /* of code objects, for this stack */
    __u32 in_call;         /* of a library whose calls are counted: see calls.bpf.h */
    __u64 futex;           /* that the thread waits for, 0: for none */
    __u64 innermost;       /* Python frame, 0: none */
    __u64 tstate;
    __u64 thread_pointer;
    __u64 interpreter;              /* that thread states are looked for in next, 0: in none */
    __u64 candidate;                /* the next thread state to look at, 0: the first of the next interpreter */
    __u64 outer;                    /* the thread state that was found */
    __u64 holder;                   /* PyThreadState of who has the GIL that is waited for, 0: none */
    struct bp_python_layout layout; /* of the process */
    struct bp_native native;
    __u8 block[4224];
    __u64 met; /* a frame before `frame`: see mark_frame() */
    struct bp_code_copy copy;
    struct bp_stack header;
    __u64 words[BP_MAX_STACK_WORDS];
};

/* A call of a library that has not returned. `slot` is where its return address lies, which is not there while it is open. */
struct bp_open_call {
    __u64 slot;
    __u64 returns_to;
    __u64 address; /* of the function */
    __u64 begin_ns;
    __u64 bytes;
    __u16 function; /* its number */
    __u8 direction; /* enum cudaMemcpyKind plus 1, 0: it has none */
    __u8 is_inside; /* another one that is open */
    __u32 pad;
};

/* Those of one thread, the outermost first. */
struct bp_calls {
    __u64 first_ns; /* of the thread: a tid may be given again */
    __u32 depth;
    __u32 left; /* how many did not return: their frames were gone when the next one began, or returned */
    struct bp_open_call open[BP_MAX_OPEN_CALLS];
};

struct bp_call_key {
    __u64 first_ns; /* of the thread */
    __u32 tid;
    __u16 function;
    __u8 direction;
    __u8 is_inside;
};

struct bp_call_sum {
    __u64 count;
    __u64 total_ns;
    __u64 max_ns;
    __u64 bytes;
    __u32 lengths[BP_CALL_LENGTHS];
};
