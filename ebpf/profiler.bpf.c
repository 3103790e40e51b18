// SPDX-License-Identifier: GPL-2.0-only
#include <uapi/linux/ptrace.h>
#include <uapi/linux/bpf_perf_event.h>

#include "abi.h"
#include "maps.bpf.h"
#include "user_memory.bpf.h"
#include "current_task.bpf.h"
#include "events.bpf.h"
#include "unwind_tables.bpf.h"
#include "native_frames.bpf.h"
#include "python_frames.bpf.h"
#include "python_old_frames.bpf.h"
#include "code_copies.bpf.h"
#include "gil.bpf.h"
#include "stack.bpf.h"
#include "thread_time.bpf.h"
#include "switch_sampling.bpf.h"
#include "wakers.bpf.h"
#include "objects.bpf.h"
#if !BP_ONLY_FUNCTIONS
#include "on_cpu.bpf.c"
#include "off_cpu.bpf.c"
#include "lifecycle.bpf.c"
#if BP_WITH_CALLS
#include "calls.bpf.c"
#endif
#endif
