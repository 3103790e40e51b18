"""Libraries whose work is mostly to tell a device what to do, as query.origins calls them: packages, shared objects."""

OF_DEVICES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "triton", "jax", "jaxlib", "flax", "optax", "haiku", "equinox"),
        *("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "libcuda", "libcudart", "libcublas"),
        *("tensorflow", "keras", "cupy", "cupyx", "cupy_backends", "numba", "paddle", "mindspore", "megengine"),
        *("pytorch_lightning", "lightning", "transformers", "accelerate", "deepspeed", "torch_npu", "torch_xla"),
        *("libcublasLt", "libcudnn", "libamdhip64", "librocblas", "libMIOpen", "libascendcl"),
    )
)
