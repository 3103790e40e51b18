// SPDX-License-Identifier: GPL-2.0-only
#include <uapi/linux/ptrace.h>
#include <uapi/linux/bpf_perf_event.h>

#include "abi.h"
#include "maps.bpf.h"
#include "user_memory.bpf.h"
#include "counters.bpf.h"
#include "hash.bpf.h"
#include "unwind_tables.bpf.h"
#include "native_frames.bpf.h"
#include "python_thread.bpf.h"
#include "python_frames.bpf.h"
#include "gil.bpf.h"
#include "repeats.bpf.h"
#include "sample.bpf.h"
#include "waits.bpf.h"
#include "wakers.bpf.h"
#include "walk.bpf.c"
#include "on_cpu.bpf.c"
#include "off_cpu.bpf.c"
#include "lifecycle.bpf.c"
