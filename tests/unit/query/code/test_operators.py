"""Operators of frameworks: what frames are named, and which of a stack has its own time."""

from __future__ import annotations

import pytest

from bpfprof.known.patterns import parse_group
from bpfprof.model.frames import Frame
from bpfprof.query.code.operators import find_operators
from bpfprof.query.code.stack_frames import StackFrames
from bpfprof.query.tables.rows import rows_by
from bpfprof.query.work.table import work_of
from tests.unit.render.profiles import MS, ON_CPU, ProfileBuilder, native, python

LIBRARIES = "/v/lib/python3.11/site-packages"
TORCH, NUMPY = f"{LIBRARIES}/torch/lib/libtorch_cpu.so", f"{LIBRARIES}/numpy/_core/_multiarray_umath.so"
ADD = native("DOUBLE_add_AVX2", NUMPY)
BLAS = f"{LIBRARIES}/numpy.libs/libscipy_openblas64_-32a4b2a6.so"
JAX, TENSORFLOW = f"{LIBRARIES}/jaxlib/libjax_common.so", f"{LIBRARIES}/tensorflow/libtensorflow_cc.so.2"
PADDLE, ARROW = f"{LIBRARIES}/paddle/libs/libphi_core.so", f"{LIBRARIES}/pyarrow/libarrow_compute.so.2600"
ACERO, POLARS = f"{LIBRARIES}/pyarrow/libarrow_acero.so.2600", f"{LIBRARIES}/_polars_runtime/_polars_runtime.abi3.so"
MINDSPORE, MEGENGINE = f"{LIBRARIES}/mindspore", f"{LIBRARIES}/megengine"
MEGDNN = f"{MEGENGINE}/core/lib/libmegengine_shared.so"
IN_EIGEN = (
    "void absl::lts_20260107::internal_any_invocable::LocalInvoker<false, void, xla::cpu::ConvolutionThunk::"
    "HandleEigen2DConvolution(xla::cpu::Thunk::ExecuteParams const&)::$_0::operator()<float>(float) const>"
)
MULTIPLY = (
    "arrow::compute::internal::applicator::ScalarBinary<arrow::DoubleType, arrow::DoubleType, arrow::DoubleType, "
    "arrow::compute::internal::Multiply>::Exec(arrow::compute::KernelContext*, arrow::compute::ExecSpan const&)"
)
# Functions as the libraries have them (PyTorch 2.6, NumPy 2.3, OpenBLAS 0.3.29, JAX 0.10, TensorFlow 2.21, Paddle 3.3,
# PyArrow 26, Polars 2.1, MindSpore 2.10, MegEngine 1.13) -> the operator.
NAMES = [
    (native("at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)", TORCH), "aten::addmm"),
    (native("at::_ops::addmm::redispatch(c10::DispatchKeySet, at::Tensor const&)", TORCH), "aten::addmm"),
    (native("at::_ops::add__Tensor::call(at::Tensor&, at::Tensor const&)", TORCH), "aten::add_"),
    (native("at::_ops::sum_dim_IntList::call(at::Tensor const&)", TORCH), "aten::sum"),
    (native("at::_ops::mm_out::call(at::Tensor const&)", TORCH), "aten::mm"),
    (native("at::_ops::max_pool2d_with_indices::call(at::Tensor const&)", TORCH), "aten::max_pool2d_with_indices"),
    (native("at::_ops::native_layer_norm_backward::call(at::Tensor)", TORCH), "aten::native_layer_norm_backward"),
    (native("at::_ops::_softmax::call(at::Tensor const&, long, bool)", TORCH), "aten::_softmax"),
    (native("at::_ops::transpose_int::call(at::Tensor const&, long, long)", TORCH), "aten::transpose"),
    (native("at::_ops::native_batch_norm::call(at::Tensor const&)", TORCH), "aten::native_batch_norm"),
    (native("at::_ops::set_data::call(at::Tensor&)", TORCH), "aten::set_data"),
    (native("at::_ops::mean_dim::redispatch(c10::DispatchKeySet)", TORCH), "aten::mean"),
    (native("at::_ops::std_correction_out::call(at::Tensor const&)", TORCH), "aten::std"),
    (native("at::_ops::to_dtype_layout::call(at::Tensor const&)", TORCH), "aten::to"),
    (native("at::_ops::bernoulli__float::call(at::Tensor&, double)", TORCH), "aten::bernoulli_"),
    (native("at::_ops::random__from::redispatch(c10::DispatchKeySet)", TORCH), "aten::random_"),
    (native("at::_ops::_copy_from::call(at::Tensor const&)", TORCH), "aten::_copy_from"),
    (native("at::_ops::scatter_reduce_two::call(at::Tensor const&)", TORCH), "aten::scatter_reduce"),
    (native("at::_ops::scatter_reduce::call(at::Tensor const&)", TORCH), "aten::scatter"),
    (native("at::_ops::lstm_input::call(at::Tensor const&)", TORCH), "aten::lstm"),
    (native("at::_ops::mkldnn_linear_backward_input::call(at::Tensor)", TORCH), "aten::mkldnn_linear_backward_input"),
    (native("at::_ops::normal_float_Tensor_out::call(double)", TORCH), "aten::normal"),
    (native("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", TORCH), "AddmmBackward0"),
    (python("AdamW.step", f"{LIBRARIES}/torch/optim/adamw.py", 9), "Optimizer.step#AdamW.step"),
    (native("DOUBLE_add_X86_V3", NUMPY), "numpy.add"),
    (native("DOUBLE_matmul_matrixmatrix.isra.0", NUMPY), "numpy.matmul"),
    (native("array_sort", NUMPY), "numpy.sort"),
    (python("svd", f"{LIBRARIES}/numpy/linalg/_linalg.py", 7), "numpy.linalg.svd"),
    (native("scipy_cblas_dgemm64_", BLAS), "blas dgemm"),
    (native("dgemm_kernel_SKYLAKEX", BLAS), "blas dgemm"),
    (native("scipy_dgesdd_64_", BLAS), "lapack dgesdd"),
    (native("xsf::gammaln(double)", f"{LIBRARIES}/scipy/special/_special_ufuncs.so"), "scipy.special.gammaln"),
    (native("xsf_expi", f"{LIBRARIES}/scipy/special/_ufuncs.so"), "scipy.special.expi"),
    (python("_cs_matrix._matmul_vector", f"{LIBRARIES}/scipy/sparse/_compressed.py", 9), "scipy.sparse.matmul"),
    (python("DataFrame.groupby", f"{LIBRARIES}/pandas/core/frame.py", 3), "pandas DataFrame.groupby"),
    (native("xla::cpu::SortThunk::Execute(xla::cpu::Thunk::ExecuteParams const&)", JAX), "xla::Sort"),
    (
        native("xla::cpu::SmallKernelThunk<2l, 1l>::Execute(xla::cpu::Thunk::ExecuteParams const&)", JAX),
        "xla::SmallKernel",
    ),
    (native(IN_EIGEN, JAX), "xla::Convolution"),
    (native("void xla::cpu::Worker::Parallelize<xla::cpu::Kernel::Task<true> >(unsigned short)", JAX), "xla::Kernel"),
    (native("xla::cpu::ThunkExecutor::TracedExecute(xla::cpu::Thunk&, int const&)", JAX), ""),
    (native("copy_bitcast_fusion", "[jit]"), "xla::copy_bitcast_fusion"),
    (
        native(
            "tensorflow::MklSoftmaxOp<Eigen::ThreadPoolDevice, float>::Compute(tensorflow::OpKernelContext*)",
            TENSORFLOW,
        ),
        "tf::MklSoftmax",
    ),
    (
        native(
            "tensorflow::TopK<Eigen::ThreadPoolDevice, float, int>::Compute(tensorflow::OpKernelContext*)", TENSORFLOW
        ),
        "tf::TopK",
    ),
    (native("tensorflow::ThreadPoolDevice::Compute(tensorflow::OpKernel*, int)", TENSORFLOW), ""),
    (native("paddle::experimental::add_grad(paddle::Tensor const&, paddle::Tensor*)", PADDLE), "phi::add_grad"),
    (native("paddle::experimental::PrepareData(paddle::Tensor const&, int)", PADDLE), ""),
    (native("phi::is_xpu_place(phi::Place const&)", PADDLE), ""),
    (native("matmul_ad_func(paddle::Tensor const&, bool)", "/v/paddle/base/libpaddle.so"), "phi::matmul"),
    (native(MULTIPLY, ARROW), "arrow::Multiply"),
    (
        native(
            "arrow::compute::internal::(anonymous namespace)::SortIndicesMetaFunction::ExecuteImpl(int) const", ARROW
        ),
        "arrow::SortIndices",
    ),
    (native("arrow::compute::MetaFunction::Execute(std::vector<arrow::Datum> const&) const", ARROW), ""),
    (native("arrow::acero::aggregate::GroupByNode::Consume(arrow::compute::ExecSpan)", ACERO), "arrow::GroupBy"),
    (
        native(
            "rayon::slice::sort::par_merge::<(u32, f64), polars_core::chunked_array::ops::sort::sort_by_branch<f64>>",
            POLARS,
        ),
        "polars::sort",
    ),
    (
        native("<&polars_core::frame::group_by::hashing::group_by_threaded_slice<u64, &[u64]>::{closure#0}>", POLARS),
        "polars::group_by",
    ),
    (
        native(
            "mindspore::kernel::pyboost::relu(std::shared_ptr<mindspore::tensor::Tensor> const&)",
            f"{MINDSPORE}/lib/libmindspore_pyboost.so",
        ),
        "mindspore::relu",
    ),
    (python("OnesLike.__call__", f"{MINDSPORE}/ops/auto_generate/gen_ops_prim.py", 4195), "mindspore::OnesLike"),
    (python("Conv2d.construct", f"{MINDSPORE}/nn/layer/conv.py", 373), "mindspore.nn.Conv2d"),
    (python("Cell.__call__", f"{MINDSPORE}/nn/cell.py", 1420), ""),
    (
        native(
            "void megdnn::naive::convolution::compute2d<float, float, float, float, "
            "megdnn::naive::convolution::StrategyBwdFlt>(megdnn::TensorND const&, float*)",
            MEGDNN,
        ),
        "megengine::convolution",
    ),
    (
        native("megdnn::x86::ConvBiasImpl::AlgoDirect::do_conv_kern(megdnn::WorkspaceBundle const&)", MEGDNN),
        "megengine::ConvBias",
    ),
    (
        native(
            "std::_Function_handler<void (), megdnn::fallback::ElemwiseImpl::binary_kern<megdnn::dtype::Float32, 25u>"
            "(megdnn::ElemwiseOpParamN<2> const&)::{lambda()#1}>::_M_invoke(std::_Any_data const&)",
            MEGDNN,
        ),
        "megengine::Elemwise",
    ),
    (
        native(
            "megdnn::x86::OpCallerUnary<megdnn::x86::ReluOp<(megdnn::x86::SIMDType)6, float, float>, "
            "(megdnn::x86::SIMDType)6>::run(float const*, float*, megdnn::DType, megdnn::DType, unsigned long)",
            MEGDNN,
        ),
        "megengine::Relu",
    ),
    (native("megdnn::x86::max_pooling_w2x2_s2x2_sse(float const*, int, int)", MEGDNN), "megengine::max_pooling"),
    (native("mgb::opr::Elemwise::perform(megdnn::param::Elemwise::Mode)", MEGDNN), "megengine::Elemwise"),
    (native("mgb::opr::intl::get_megdnn_handle(mgb::CompNode)", MEGDNN), ""),
    (python("conv2d", f"{MEGENGINE}/functional/nn.py", 288), "megengine.functional.conv2d"),
    (native("dgemm", "/usr/lib/libc.so.6"), ""),
    (python("svd", "/srv/app/linalg.py", 7), ""),
    (python("_svd", f"{LIBRARIES}/numpy/linalg/_linalg.py", 7), ""),
]


@pytest.mark.parametrize(("frame", "name"), NAMES, ids=[frame.name[:40] for frame, _ in NAMES])
def test_a_function_has_the_name_that_its_framework_gives_it(frame: Frame, name: str) -> None:
    found = find_operators([frame], StackFrames([frame], [(0,)]))
    assert [*found.names] == [name] * bool(name)
    assert found.owner.tolist() == [0 if name else -1]


def test_own_time_is_of_the_innermost_that_the_framework_calls_one() -> None:
    main, line = python("train", line=3), python("train", line=9)
    mm = native("at::_ops::mm::call(at::Tensor const&)", TORCH)
    matmul = native("at::_ops::matmul::call(at::Tensor const&)", TORCH)
    made = ProfileBuilder()
    thread = made.thread(1)
    made.spend(thread, ON_CPU, 5 * MS, [main, matmul, mm, native("sgemm_kernel_HASWELL", BLAS)])
    made.spend(thread, ON_CPU, 2 * MS, [line, matmul])
    made.spend(thread, ON_CPU, 3 * MS, [main, native("dot_kernel", "/srv/app/fast.so")])
    made.spend(thread, ON_CPU, 1 * MS, [line, python("sum", f"{LIBRARIES}/numpy/_core/fromnumeric.py", 1), ADD])
    profile = made.build()
    work = work_of(profile)
    found = {row.name: row for row in rows_by(profile, work, "operator")}
    assert {name: (row.own_ns[0] / MS, row.total_ns[0] / MS) for name, row in found.items()} == {
        "aten::mm": (5, 5),
        "aten::matmul": (2, 7),
        "numpy.sum": (1, 1),
        "numpy.add": (0, 1),
        "blas sgemm": (0, 5),
    }
    assert (found["aten::mm"].frame, found["aten::matmul"].frame) == (main, line)
    mine = rows_by(profile, work, "operator", operators=[parse_group(r"mine=dot_kernel|sgemm")])
    assert [(row.name, row.own_ns[0] / MS) for row in mine][:2] == [("mine", 8), ("aten::matmul", 2)]


@pytest.mark.parametrize("text", ["", "x", "=x", "x=", "x=("])
def test_a_group_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (group|regular)"):
        parse_group(text)
