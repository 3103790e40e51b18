"""Functions of libraries in which a program waits for a GPU or another accelerator, however they do that."""

from __future__ import annotations

import re

# CUDA's runtime and driver, HIP and ROCr, NCCL and RCCL, Ascend's CANN, oneAPI's Level Zero, OpenCL, Vulkan, Cambricon:
# names of their reference manuals.
_WAITS = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event|Thread|Ctx)Synchronize\w*|cu(?:Ctx|Stream|Event)Synchronize\w*"
    r"|(?:cuda|hip)Memcpy\w*|cuMemcpy\w*|(?:cuda|hip)Free\w*|cuMemFree\w*|hsa_signal_wait_\w+|hsa_amd_signal_wait_\w+"
    r"|p?nccl(?:CommInitRank|CommDestroy|GroupEnd)\w*|aclrtSynchronize\w+|aclrtMemcpy\w*|rtStreamSynchronize\w*"
    r"|ze(?:CommandQueue|CommandList|Event|Fence)(?:Host)?Synchronize|cl(?:Finish|WaitForEvents)"
    r"|vk(?:WaitForFences|QueueWaitIdle|DeviceWaitIdle|WaitSemaphores)|cnrt(?:Queue|SyncDevice)\w*"
)
_LONGEST = 80  # letters of such a name


def waits_for_device(function: str) -> bool:
    """Whether a native function of this name waits for a device: on a CPU as well as asleep."""
    return len(function) <= _LONGEST and _WAITS.fullmatch(function) is not None
