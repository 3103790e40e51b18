// SPDX-License-Identifier: GPL-2.0-only
#include <uapi/linux/ptrace.h>
#include <uapi/linux/bpf_perf_event.h>

#include "abi.h"
#include "maps.bpf.h"
#include "counters.bpf.h"
#include "user_memory.bpf.h"
#include "python_thread.bpf.h"
#include "python_frames.bpf.h"
#include "sample.bpf.h"
#include "walk.bpf.c"
#include "on_cpu.bpf.c"
#include "off_cpu.bpf.c"
#include "lifecycle.bpf.c"
