/* SPDX-License-Identifier: GPL-2.0-only */
/* What the descriptor is of that a thread waits for, read when it begins to: it may be closed when the wait is over. */
#pragma once

/* arch/x86/entry/syscalls/syscall_64.tbl */
#define SYSCALL_READ 0
#define SYSCALL_IOCTL 16 /* to 20: pread64, pwrite64, readv, writev */
#define SYSCALL_RECVMSG 47
#define SYSCALL_FCNTL 72 /* to 75: flock, fsync, fdatasync */
#define SYSCALL_FDATASYNC 75
#define SYSCALL_GETDENTS64 217
#define SYSCALL_SYNC_FILE_RANGE 277
#define SYSCALL_FALLOCATE 285
#define SYSCALL_ACCEPT4 288
#define SYSCALL_PREADV 295 /* and pwritev */
#define SYSCALL_PWRITEV 296
#define SYSCALL_RECVMMSG 299
#define SYSCALL_SYNCFS 306

#define FILE_TYPE 0170000 /* S_IFMT and S_IFSOCK, include/uapi/linux/stat.h */
#define FILE_IS_SOCKET 0140000
#define FAMILY_INET 2 /* AF_INET and AF_INET6, include/linux/socket.h */
#define FAMILY_INET6 10
#define TCP_STATE_LISTEN 10 /* TCP_LISTEN, include/net/tcp_states.h */
#define SOCKET_STREAM 1     /* SOCK_STREAM, include/linux/net.h */
#define MAPPED_IPV4 \
    0xffff0000 /* third word of an IPv4 address in one of IPv6, in the network's order (RFC 4291, 2.5.5.2) */

/* Whether the call waits for a descriptor, and which: note_syscall() was called. */
static __always_inline bool descriptor_of(struct bp_thread *thread, __u32 *descriptor)
{
    __s16 call = thread->syscall;
    *descriptor = thread->args[0];
    if (call == SYSCALL_POLL || call == SYSCALL_PPOLL)
        return thread->args[0] >> BP_POLLED_BIT;
    return call == SYSCALL_READ || call == SYSCALL_WRITE || (call >= SYSCALL_IOCTL && call <= SYSCALL_WRITEV) ||
           call == SYSCALL_SENDFILE || (call >= SYSCALL_CONNECT && call <= SYSCALL_RECVMSG) ||
           (call >= SYSCALL_FCNTL && call <= SYSCALL_FDATASYNC) || call == SYSCALL_GETDENTS64 ||
           call == SYSCALL_SPLICE || call == SYSCALL_SYNC_FILE_RANGE || call == SYSCALL_FALLOCATE ||
           call == SYSCALL_ACCEPT4 || (call >= SYSCALL_PREADV && call <= SYSCALL_PWRITEV) || call == SYSCALL_RECVMMSG ||
           call == SYSCALL_SYNCFS || call == SYSCALL_SENDMMSG;
}

static __always_inline __u64 inet_object(__u64 kind, __u16 port, __u32 address)
{
    return kind << BP_OBJECT_KIND_BIT | (__u64)port << 32 | address;
}

/* The other end of a socket, or where it listens, if that is an address of IPv4; else 0. */
static __always_inline __u64 socket_object(__u64 file)
{
    __u64 socket = 0, sock = 0;
    __u32 address[4] = {};
    __u16 family = 0, port = 0, type = 0;
    __u8 state = 0;
    if (!READ_KERNEL(socket, file + BP_OFFSET_FILE_DATA) || !READ_KERNEL(sock, socket + BP_OFFSET_SOCKET_SOCK) ||
        !READ_KERNEL(type, socket + BP_OFFSET_SOCKET_TYPE) || !READ_KERNEL(family, sock + BP_OFFSET_SOCK_FAMILY) ||
        (family != FAMILY_INET && family != FAMILY_INET6) || !READ_KERNEL(state, sock + BP_OFFSET_SOCK_STATE))
        return 0;
    bool is_stream = type == SOCKET_STREAM;
    if (is_stream && state == TCP_STATE_LISTEN) {
        if (family != FAMILY_INET || !READ_KERNEL(port, sock + BP_OFFSET_SOCK_PORT) ||
            !READ_KERNEL(address[3], sock + BP_OFFSET_SOCK_ADDRESS))
            return 0;
        return inet_object(BP_OBJECT_LISTENS, port, address[3]);
    }
    if (!READ_KERNEL(port, sock + BP_OFFSET_SOCK_PEER_PORT) || !port)
        return 0;
    port = port << 8 | port >> 8; /* it is in the network's order */
    if (family == FAMILY_INET) {
        if (!READ_KERNEL(address[3], sock + BP_OFFSET_SOCK_PEER))
            return 0;
    } else if (!BP_OFFSET_SOCK_PEER6 || !READ_KERNEL(address, sock + BP_OFFSET_SOCK_PEER6) || address[0] ||
               address[1] || address[2] != MAPPED_IPV4) {
        return 0;
    }
    return inet_object(is_stream ? BP_OBJECT_PEER : BP_OBJECT_OTHER_PEER, port, address[3]);
}

#define OWN_STACK_BYTES 4096 /* above the stack pointer: that far the functions reach that wait in the parking lot */
#define MUTEX_IS_PARKED 3    /* _Py_LOCKED | _Py_HAS_PARKED, Include/cpython/lock.h (v3.13.0 to v3.15.2) */

/*
 * A thread that waits for a PyMutex sleeps in a semaphore on its own stack: struct wait_entry, Python/parking_lot.c (v3.13.0 to
 * v3.15.2), begins {park_arg, addr, sema}. The address of the mutex replaces that of the semaphore.
 */
static __always_inline void note_parked(struct bp_thread *thread, struct bp_python_layout *layout)
{
    __u64 mutex = 0, futex = thread->args[0];
    __u8 state = 0;
    if (!layout->parks || futex - USER_REGISTER(user_registers(), REGISTER_SP) >= OWN_STACK_BYTES ||
        !READ_USER(mutex, futex - sizeof(mutex)) || !READ_USER(state, mutex) || (state & 3) != MUTEX_IS_PARKED)
        return;
    thread->args[0] = mutex;
    thread->args[1] |= 1ULL << BP_PARKED_BIT;
}

/*
 * What a futex is of, where its address says who waits, not for what. args[2] becomes the address of the first variable of the
 * innermost Python frame: in Condition.wait() `self`. Whether it is that function is known when the recording is read.
 */
static __always_inline void note_lock(struct bp_walk *walk, struct bp_thread *thread)
{
    __u64 first = 0;
    thread->args[2] = 0;
    if (!walk->innermost)
        return;
    note_parked(thread, &walk->layout);
    if (walk->layout.frame_values && READ_USER(first, walk->innermost + walk->layout.frame_values))
        thread->args[2] = first & ADDRESS_MASK;
}

#define LOCK_WAITS 7 /* F_SETLKW, F_OFD_SETLKW, include/uapi/asm-generic/fcntl.h */
#define OPEN_FILE_LOCK_WAITS 38
#define RANGE_BEGIN 8 /* struct flock: l_start comes after l_type and l_whence */

/* A file can be locked range by range. */
static __always_inline void note_range(struct bp_thread *thread)
{
    __u64 begin = 0;
    if ((thread->args[1] == LOCK_WAITS || thread->args[1] == OPEN_FILE_LOCK_WAITS) &&
        READ_USER(begin, thread->args[2] + RANGE_BEGIN))
        thread->args[2] = begin | 1ULL << BP_RANGE_BIT;
}

/*
 * Of the thread whose stack was just taken: thread->object becomes what its call's descriptor is of, 0 where it has none, or it
 * is not known. A function, for with it sched_switch would have more stack than Linux 5.10 allows.
 */
FUNCTION(note_object)
{
    __u32 tid = walk ? walk->tid : 0; /* a copy: 6.1 takes no map key from an argument */
    struct bp_thread *thread = bpf_map_lookup_elem(MAP(threads), &tid);
    __u64 table = 0, files = 0, file = 0, inode = 0, number = 0, found = 0;
    __u32 descriptor = 0, count = 0;
    __u16 mode = 0;
    if (walk && thread && futex_of(thread))
        note_lock(walk, thread);
    if (thread && thread->syscall == SYSCALL_FCNTL)
        note_range(thread);
    if (!thread || !BP_OFFSET_TASK_FILES || !descriptor_of(thread, &descriptor))
        return 0;
    files = LOAD_MEMBER(u64, CURRENT_TASK, BP_OFFSET_TASK_FILES);
    if (!READ_KERNEL(table, files + BP_OFFSET_FILES_TABLE) || !READ_KERNEL(count, table + BP_OFFSET_TABLE_COUNT) ||
        descriptor >= count || !READ_KERNEL(files, table + BP_OFFSET_TABLE_FILES) ||
        !READ_KERNEL(file, files + (__u64)descriptor * sizeof(file)) || !file ||
        !READ_KERNEL(inode, file + BP_OFFSET_FILE_INODE) || !READ_KERNEL(mode, inode + BP_OFFSET_INODE_MODE))
        return 0;
    if ((mode & FILE_TYPE) == FILE_IS_SOCKET)
        found = socket_object(file);
    if (!found && READ_KERNEL(number, inode + BP_OFFSET_INODE_NUMBER))
        found = (__u64)BP_OBJECT_INODE << BP_OBJECT_KIND_BIT | (number & ((1ULL << BP_OBJECT_KIND_BIT) - 1));
    thread->object = found;
    return 0;
}
