"""Libraries of which something is known: that they drive devices or tell them what to do, that ranks talk by them."""

from __future__ import annotations

import re

# Names of files. Those of PyTorch have gloo in them, and those of JAX and TensorFlow NCCL.
OF_RANKS = re.compile(r"lib(?:torch_cpu|torch_python|nccl|rccl|gloo|mpi|mpich|ccl|hccl|ucc)\b.*|xla_.*\.so")
# Paths: packages whose own shared objects call MPI or have what such libraries have.
RANKS_IN_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(?:horovod|mpi4py|paddle|mindspore|megengine)/.*\.so\b[^/]*")
# Names of files as well: what a device is driven with in user space. It has threads of its own in every program,
# and what moves data between devices has, too.
DRIVERS = re.compile(
    r"lib(?:cuda|nvidia-\w+|amdhip64|hsa-runtime64|ascend_hal|runtime|ze_intel_gpu|igdrcl|cnrt|nccl|rccl)\b.*"
)
# The same of JAX, which has a file for each kind of device beside the one that all its programs load.
PLUGINS = re.compile(r"(?:xla_cuda|xla_rocm|pjrt_c_api_gpu|libtpu)\w*\.so")
XLA = re.compile(r".*(?:jax|xla|pjrt)")
# As query.origins calls them: packages, shared objects.
OF_DEVICES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "triton", "jax", "jaxlib", "flax", "optax", "haiku", "equinox"),
        *("jax_plugins", "jax_cuda12_plugin", "jax_cuda13_plugin", "libcuda", "libcudart", "libcublas"),
        *("tensorflow", "keras", "cupy", "cupyx", "cupy_backends", "numba", "paddle", "mindspore", "megengine"),
        *("pytorch_lightning", "lightning", "transformers", "accelerate", "deepspeed", "torch_npu", "torch_xla"),
        *("libcublasLt", "libcudnn", "libamdhip64", "librocblas", "libMIOpen", "libascendcl"),
    )
)
