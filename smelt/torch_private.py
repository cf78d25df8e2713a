"""The private names of torch that smelt uses: all of them, each with what it is for. No other module names one.

torch promises nothing about them: a new version may drop any. They are looked for here, once, when smelt is imported. One
that is needed and is not there goes into `MISSING`, and smelt then compiles nothing: every call runs eagerly (`eager_only`).
Without one that is optional, only what needs it is refused: what stands in its place raises when it is called, and the call
that met it runs eagerly.

Attributes of objects (`tensor._version`) are read where they are needed; `_has` checks that they are there. Names that only
a string holds, to recognise a function or a module by, are harmless where nothing bears them any more.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import BuiltinFunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributions
import torch.fx
import torch.nn.attention
import torch.overrides
import torch.utils._python_dispatch
import torch.utils.checkpoint
from torch.autograd import forward_ad

with suppress(ImportError):
    import torch._numpy

T = TypeVar("T")
MISSING: dict[str, str] = {}  # what it is for, by the path of a name that is needed and is not there
ABSENT: dict[str, str] = {}  # the same, of names that only some features need


def summary() -> str:
    """One line about `MISSING`, which holds something."""
    path, use = next(iter(MISSING.items()))
    more = f", and {len(MISSING) - 1} more" if len(MISSING) > 1 else ""
    return f"torch {torch.__version__} has no {path} ({use}){more}"


def _path(look: Callable[[], object]) -> str:
    """`torch.a.b` of `lambda: torch.a.b`."""
    return ".".join(look.__code__.co_names)


def _needed(look: Callable[[], T], use: str) -> T:
    """What `look` finds. Without it, nothing is compiled."""
    return _found(look, use, MISSING)


def _optional(look: Callable[[], T], use: str) -> T:
    """What `look` finds, or a class that raises where it is called."""
    return _found(look, use, ABSENT)


def _found(look: Callable[[], T], use: str, missing: dict[str, str]) -> T:
    try:
        return look()
    except (AttributeError, KeyError):
        path = _path(look)
        missing[path] = use
        return _stand_in(path, use)


def _stand_in(path: str, use: str) -> Any:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"torch {torch.__version__} has no {path} ({use})")

    return type(path, (), {"__new__": refuse})


def _has(owner: object, name: str, *attributes: str, use: str) -> None:
    """Notes attributes of `owner`, called `name`, that are not there."""
    MISSING.update({f"{name}.{attribute}": use for attribute in attributes if not hasattr(owner, attribute)})


# ---- who is asked before an operator runs: torch functions, dispatch modes, transforms

DisableTorchFunction = _needed(
    lambda: torch._C.DisableTorchFunction, "tensors are looked at behind the back of modes"
)
DisableTorchFunctionSubclass = _needed(
    lambda: torch._C.DisableTorchFunctionSubclass, "tensors of subclasses are looked at as they are"
)
EnableTorchFunction = _needed(
    lambda: torch._C._EnableTorchFunction, "the program's own modes see what it calls"
)
DisableTorchDispatch = _needed(
    lambda: torch._C._DisableTorchDispatch, "fake tensors are looked at unrecorded"
)
DisableFuncTorch = _needed(lambda: torch._C._DisableFuncTorch, "fake tensors are made outside of transforms")
is_torch_function_enabled = _needed(
    lambda: torch._C._is_torch_function_enabled, "whether subclasses are asked"
)
is_torch_function_all_disabled = _needed(
    lambda: torch._C._is_torch_function_all_disabled, "whether modes are asked"
)
disabled_torch_function_impl = _needed(
    lambda: torch._C._disabled_torch_function_impl, "classes that are never asked"
)
len_torch_function_stack = _needed(
    lambda: torch._C._len_torch_function_stack, "whether function modes are on"
)
push_on_torch_function_stack = _needed(lambda: torch._C._push_on_torch_function_stack, "modes are put back")
pop_torch_function_stack = _needed(lambda: torch._C._pop_torch_function_stack, "modes are put back")
len_torch_dispatch_stack = _needed(
    lambda: torch._C._len_torch_dispatch_stack, "whether dispatch modes are on"
)
push_on_torch_dispatch_stack = _needed(lambda: torch._C._push_on_torch_dispatch_stack, "modes are put back")
pop_torch_dispatch_stack = _needed(lambda: torch._C._pop_torch_dispatch_stack, "modes are put back")
current_function_mode = _needed(
    lambda: torch.overrides._get_current_function_mode, "the innermost function mode"
)
current_function_modes = _needed(
    lambda: torch.overrides._get_current_function_mode_stack, "the function modes that are on"
)
pop_function_mode = _needed(lambda: torch.overrides._pop_mode, "functions that leave modes are recognised")
push_function_mode = _needed(lambda: torch.overrides._push_mode, "functions that enter modes are recognised")
pop_function_mode_temporarily = _needed(
    lambda: torch.overrides._pop_mode_temporarily, "a mode's handler runs outside of the mode"
)
current_dispatch_modes = _needed(
    lambda: torch.utils._python_dispatch._get_current_dispatch_mode_stack, "the dispatch modes that are on"
)
# Functions that change which modes are on, and are not called in a capture.
CHANGING_MODES = (
    _optional(lambda: torch.utils._python_dispatch._pop_mode, "is refused"),
    _optional(lambda: torch.utils._python_dispatch._push_mode, "is refused"),
    _optional(lambda: torch.utils._python_dispatch._pop_mode_temporarily, "is refused"),
    _optional(lambda: torch.utils._python_dispatch._disable_current_modes, "is refused"),
    pop_function_mode,
    push_function_mode,
    pop_function_mode_temporarily,
    pop_torch_dispatch_stack,
    push_on_torch_dispatch_stack,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)

# ---- settings of a thread

set_grad_enabled = _needed(lambda: torch._C._set_grad_enabled, "the grad mode is put back")
InferenceMode = _needed(lambda: torch._C._InferenceMode, "the inference mode is put back")
DisableAutocast = _needed(
    lambda: torch._C._DisableAutocast, "operators are recorded after autocast has chosen types"
)
below_autograd = _needed(
    lambda: torch._C._AutoDispatchBelowAutograd, "inference runs without autograd's bookkeeping"
)
is_fwd_grad_enabled = _needed(lambda: torch._C._is_fwd_grad_enabled, "forward mode is put back")
set_fwd_grad_enabled = _needed(lambda: torch._C._set_fwd_grad_enabled, "forward mode is put back")
_has(
    forward_ad,
    "torch.autograd.forward_ad",
    "_current_level",
    use="calls inside a level of forward mode run eagerly",
)


def forward_mode_level() -> int:
    """Of the innermost level of forward mode; -1 where none is open."""
    return forward_ad._current_level


is_multithreading_enabled = _needed(
    lambda: torch._C._is_multithreading_enabled, "a call that changes it runs eagerly"
)
_SETTING_QUERY = re.compile(
    r"_get_(autograd_fallback_mode|backcompat_\w+|\w+_preferred_backend|cublas_allow_\w+_reduction|cudnn_allow_tf32|qengine"
    r"|cudnn_depthwise_kernel|dtensor_\w+|fp32_precision_getter|graph_executor_optimize|miopen_immediate|nnpack_enabled"
    r"|sm_carveout_\w+|thread_name|\w+_sdp_enabled)"
    r"|_is_(grad_layout_enforcement|multithreading|vmap_fallback)_enabled|_saved_tensors_hooks_is_enabled"
    r"|_jit_(get_\w+_(mode|runs|count|size|levels|code|cpu|warn)|\w+_enabled|nvfuser_\w+_mode)"
    r"|get_(inplace_requires_grad|single_level_autograd_function)_allowed|_check_sparse_tensor_invariants"
    r"|_debug_only_are_vmap_fallback_warnings_enabled"
)
FP32_PRECISION = _optional(lambda: torch._C._get_fp32_precision_getter, "settings of backends are read")
# Functions that return a setting that no operator of the compiled graph depends on: guards compare it where it is read.
SETTING_QUERIES = frozenset(
    query
    for module in (torch._C, torch._C._autograd, torch._C._functorch)
    for name, query in vars(module).items()
    if _SETTING_QUERY.fullmatch(name) and isinstance(query, BuiltinFunctionType)
)

is_profiler_enabled = _needed(
    lambda: torch._C._autograd._profiler_enabled, "record_function is left out where nobody listens"
)

# ---- transforms of torch.func

maybe_current_level = _needed(lambda: torch._C._functorch.maybe_current_level, "whether a transform is open")
is_functorch_wrapped_tensor = _needed(
    lambda: torch._C._functorch.is_functorch_wrapped_tensor, "tensors of an open transform are not compiled"
)
are_transforms_active = _needed(
    lambda: torch._C._are_functorch_transforms_active, "whether a transform is open"
)
transform_depth = _needed(
    lambda: torch._C._functorch.get_dynamic_layer_stack_depth, "how many transforms are open"
)
all_transforms: Callable[[], list[Any] | None] = _optional(
    lambda: torch._C._functorch.get_interpreter_stack, "cond under vmap"
)
level_of: Callable[[torch.Tensor], int] = _optional(
    lambda: torch._C._functorch.maybe_get_level, "cond under vmap"
)
VMAP = _needed(lambda: torch._C._functorch.TransformType.Vmap, "cond under vmap")
innermost_transform = _needed(lambda: torch._C._functorch.peek_interpreter_stack, "open transforms are left")
get_inplace_requires_grad_allowed = _needed(
    lambda: torch._C._functorch.get_inplace_requires_grad_allowed, "inputs are made inside a transform"
)
set_inplace_requires_grad_allowed = _needed(
    lambda: torch._C._functorch.set_inplace_requires_grad_allowed, "inputs are made inside a transform"
)
functions_allowed_in_transforms = _needed(
    lambda: torch._C._functorch.get_single_level_autograd_function_allowed,
    "inputs with a history are made inside a transform",
)
set_functions_allowed_in_transforms = _needed(
    lambda: torch._C._functorch.set_single_level_autograd_function_allowed,
    "inputs with a history are made inside a transform",
)
# What leaves the innermost transform, by its kind. One by one: `pop_dynamic_layer_stack_and_undo_to_depth` of torch 2.11
# leaves two levels for each.
LEAVE_TRANSFORM: dict[object, Callable[[], object]] = {
    _needed(lambda: torch._C._functorch.TransformType.Vmap, "open transforms are left"): _needed(
        lambda: torch._C._functorch._vmap_decrement_nesting, "open transforms are left"
    ),
    _needed(lambda: torch._C._functorch.TransformType.Grad, "open transforms are left"): _needed(
        lambda: torch._C._functorch._grad_decrement_nesting, "open transforms are left"
    ),
    _needed(lambda: torch._C._functorch.TransformType.Jvp, "open transforms are left"): _needed(
        lambda: torch._C._functorch._jvp_decrement_nesting, "open transforms are left"
    ),
    _needed(lambda: torch._C._functorch.TransformType.Functionalize, "open transforms are left"): _needed(
        lambda: torch._C._functorch._func_decrement_nesting, "open transforms are left"
    ),
}
enter_vmap = _needed(lambda: torch._C._functorch._vmap_increment_nesting, "batches of any size")
leave_batch = _needed(lambda: torch._C._functorch._remove_batch_dim, "batches of any size")
# The functions of transforms that ask autograd for gradients, and that import decompositions.
gradients_in_transforms = _needed(lambda: torch.func.vjp.__globals__["_autograd_grad"], "torch.func.grad")
load_decompositions = _needed(
    lambda: torch.func.vmap.__globals__["vmap_impl"].__globals__["lazy_load_decompositions"], "torch.vmap"
)

# ---- autograd

run_engine = _needed(lambda: torch.autograd.graph._engine_run_backward, "backwards are recorded")
current_autograd_node = _needed(lambda: torch._C._current_autograd_node, "lines of a backward")
set_version_counter = _needed(
    lambda: torch._C._autograd._unsafe_set_version_counter, "writes are counted as eager does"
)
CreationMeta = _needed(lambda: torch._C._autograd.CreationMeta, "views are made as eager makes them")
get_creation_meta = _needed(
    lambda: torch._C._autograd._get_creation_meta, "views are made as eager makes them"
)
set_creation_meta = _needed(
    lambda: torch._C._autograd._set_creation_meta, "views are made as eager makes them"
)
top_saved_tensors_hooks = _needed(
    lambda: torch._C._autograd._top_saved_tensors_default_hooks, "hooks of the user's see no fake tensors"
)
pop_saved_tensors_hooks = _needed(
    lambda: torch._C._autograd._pop_saved_tensors_default_hooks, "hooks of the user's see no fake tensors"
)
push_saved_tensors_hooks = _needed(
    lambda: torch._C._autograd._push_saved_tensors_default_hooks, "hooks of the user's see no fake tensors"
)
why_hooks_are_disabled = _needed(
    lambda: torch._C._autograd._saved_tensors_hooks_get_disabled_error_message, "transforms disable hooks"
)
are_saved_tensors_hooks_enabled = _needed(
    lambda: torch._C._autograd._saved_tensors_hooks_is_enabled,  # type: ignore[attr-defined]
    "a call that changes it runs eagerly",
)
disable_saved_tensors_hooks = _needed(
    lambda: torch._C._autograd._saved_tensors_hooks_disable, "transforms disable hooks"
)
enable_saved_tensors_hooks = _needed(
    lambda: torch._C._autograd._saved_tensors_hooks_enable, "transforms disable hooks"
)
operator_registry: Any = _optional(
    lambda: torch._library.simple_registry.singleton,
    "effects and fake kernels that the program registers for its operators",
)
NODES_IN_C: Any = _needed(lambda: torch._C._functions, "what nodes of autograd save")
DelayedError: Any = _needed(
    lambda: torch._C._functions.DelayedError, "outputs that cannot be differentiated twice say so"
)
is_setup_context_defined = _needed(
    lambda: torch.autograd.function._is_setup_context_defined, "custom functions with setup_context"
)
shape_as_tensor = _optional(lambda: torch._shape_as_tensor, "shapes as tensors, of ONNX exports")
is_checkpoint_valid = _optional(
    lambda: torch.autograd._is_checkpoint_valid, "whether a backward computes gradients of all leaves"
)
# Since torch 2.14: what a function under `@checkpoint(...)` calls.
old_is_compiling: Any = getattr(torch._utils, "is_compiling", None)  # warns that it is deprecated
checkpoint_of_decorated = getattr(torch.utils.checkpoint, "_checkpoint_impl", None)
StopRecomputation: type[Exception] = _needed(
    lambda: torch.utils.checkpoint._StopRecomputationError, "checkpoints around compiled functions stop early"
)
CachingTorchDispatchMode = _needed(
    lambda: torch.utils.checkpoint._CachingTorchDispatchMode, "selective checkpoints"
)
CachedTorchDispatchMode = _needed(
    lambda: torch.utils.checkpoint._CachedTorchDispatchMode, "selective checkpoints"
)

# ---- tensors and operators

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    OpOverload = _needed(lambda: torch._ops.OpOverload, "operators of a graph")
    HigherOrderOperator = _needed(lambda: torch._ops.HigherOrderOperator, "operators that take functions")
    OpOverloadPacket = _needed(lambda: torch._ops.OpOverloadPacket, "operators called by name")
    TorchDispatchMode = _needed(
        lambda: torch.utils._python_dispatch.TorchDispatchMode, "operators are recorded"
    )

make_subclass = _needed(lambda: torch.Tensor._make_subclass, "fake tensors are made")
return_and_correct_aliasing = _needed(
    lambda: torch.utils._python_dispatch.return_and_correct_aliasing, "a `__torch_dispatch__` ends in it"
)
make_wrapper_subclass = _needed(lambda: torch.Tensor._make_wrapper_subclass, "wrappers are created")
swap_tensor_impl = _needed(lambda: torch._C._swap_tensor_impl, "is refused in a capture")
_has(torch.Tensor, "torch.Tensor", "_version", use="writes are counted")
_has(torch.Tensor, "torch.Tensor", "_base", "_is_view", use="views are made as eager makes them")
_has(torch.Tensor, "torch.Tensor", "_backward_hooks", use="hooks are called")
_has(torch.UntypedStorage, "torch.UntypedStorage", "_cdata", use="which tensors share memory")
_has(
    torch.ops.aten.add.Tensor,
    "torch._ops.OpOverload",
    "_schema",
    "_overloadname",
    "py_kernels",
    use="graphs are read",
)
WRAPPED_CALL_IMPL: Any = _needed(lambda: torch.nn.Module._wrapped_call_impl, "modules are called")
CALL_IMPL: Any = _needed(lambda: torch.nn.Module._call_impl, "modules are called")
_has(
    torch.nn.modules.module, "torch.nn.modules.module",
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
    use="hooks are called",
)  # fmt: skip
_has(
    torch.nn.Module(), "torch.nn.Module()", "_parameters", "_buffers", "_modules",
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", use="modules are read",
)  # fmt: skip
has_kernel = _needed(
    lambda: torch._C._dispatch_has_kernel_for_dispatch_key, "which operators are taken apart"
)
set_fake_context: Any = _optional(
    lambda: torch._library.fake_impl.set_ctx_getter, "fake kernels that create sizes"
)
META_KEY = _needed(lambda: torch._C.DispatchKey.Meta, "shapes of the user's operators")
variable_functions: Any = _needed(lambda: torch._C._VariableFunctions, "names of torch's functions")
functions_of_c: Any = torch._C
functions_of_nn: Any = _needed(lambda: torch._C._nn, "names of torch's functions")
VF: Any = _needed(lambda: torch._VF, "names of torch's functions")
pack_padded_sequence = _optional(
    lambda: torch._C._VariableFunctions._pack_padded_sequence, "packed sequences"
)
pad_packed_sequence = _optional(lambda: torch._C._VariableFunctions._pad_packed_sequence, "packed sequences")
one_hot: Callable[..., object] = _optional(lambda: torch._C._nn.one_hot, "torch.nn.functional.one_hot")
# What a program asserts of its sizes.
ASSERTIONS = _needed(
    lambda: (torch._check, torch._check_index, torch._check_value, torch._check_type),
    "what a program asserts of sizes is a fact",
)
_check_is_size: Any = getattr(torch, "_check_is_size", None)  # deprecated
# The wrapper that warns, and the function that checks.
CHECK_IS_SIZE = [] if _check_is_size is None else [_check_is_size, inspect.unwrap(_check_is_size)]
assert_condition: Any = _needed(lambda: torch._assert, "an assertion whose message is not read")
assert_async = _needed(lambda: torch._assert_async, "what a graph takes for granted is checked")
unscale = _optional(lambda: torch._amp_foreach_non_finite_check_and_unscale_, "GradScaler")
# Launches a kernel on the addresses of its operands, which fakes do not have.
jiterated: Any = _optional(lambda: torch.cuda.jiterator._JittedFunction.__call__, "is refused")
chunk_or_narrow_cat = getattr(torch._utils, "_chunk_or_narrow_cat", None)
# Since torch 2.15: what distributions check their arguments with.
all_true_or_assert: Any = getattr(torch.distributions.distribution, "_all_true_or_runtime_assert", None)
all_operator_names: Callable[[], list[str]] = _optional(
    lambda: torch._C._dispatch_get_all_op_names, "`smelt ops` lists all operators"
)
torch_numpy: Any = _optional(lambda: torch._numpy, "NumPy's functions on what stands for an array")
profiler_enabled: Callable[[], bool] = _optional(
    lambda: torch._C._autograd._profiler_enabled, "times of kernels"
)
tensor_text: Callable[..., str] = _optional(lambda: torch._tensor_str._str, "tensors as text")

# ---- kernels that torch chooses

storage_at: Callable[[int, torch.device, int], Any] = _optional(
    lambda: torch._C._construct_storage_from_data_pointer, "convolutions of symbolic sizes on a GPU"
)
select_conv_backend: Callable[..., Any] = _optional(
    lambda: torch._C._select_conv_backend, "strides of convolutions"
)
conv_memory_format: Callable[..., Any] = _optional(
    lambda: torch._C._conv_determine_backend_memory_format, "strides of convolutions"
)
ConvBackend: Any = _optional(lambda: torch._C._ConvBackend, "strides of convolutions")  # type: ignore[attr-defined]
SDPBackend = _needed(lambda: torch._C._SDPBackend, "kernels of attention")
sdpa_kernel = _needed(lambda: torch.nn.attention._sdpa_kernel, "kernels of attention")
_sdp_kernels: Any = _needed(lambda: torch.nn.attention._backend_names, "kernels of attention")
_sdp_names = tuple(_sdp_kernels) if isinstance(_sdp_kernels, dict) else ()
sdp_enabled = tuple(getattr(torch._C, f"_get_{name}_sdp_enabled") for name in _sdp_names)
set_sdp_enabled = tuple(getattr(torch._C, f"_set_sdp_use_{name}") for name in _sdp_names)
get_sdp_priority_order = _needed(lambda: torch._C._get_sdp_priority_order, "kernels of attention")
set_sdp_priority_order = _needed(lambda: torch._C._set_sdp_priority_order, "kernels of attention")
fused_sdp_choice: Callable[..., int] = _needed(lambda: torch._fused_sdp_choice, "kernels of attention")  # type: ignore[attr-defined]

# ---- other tracers and compilers, TorchScript

get_tracing_state = _needed(lambda: torch._C._get_tracing_state, "is told that nothing traces")
is_tracing = _needed(lambda: torch._C._is_tracing, "is told that nothing traces")
if TYPE_CHECKING:
    from torch._C import Block as Block
    from torch._C import FunctionSchema as FunctionSchema
    from torch._C import Graph as Graph
    from torch._C import JitType as JitType
    from torch._C import Node as Node
    from torch._C import ScriptFunction as ScriptFunction
    from torch._C import ScriptMethod as ScriptMethod
    from torch._C import ScriptModule as ScriptModule
else:
    Block = _optional(lambda: torch._C.Block, "TorchScript")
    FunctionSchema = _optional(lambda: torch._C.FunctionSchema, "TorchScript")
    Graph = _optional(lambda: torch._C.Graph, "TorchScript")
    JitType = _optional(lambda: torch._C.Type, "TorchScript")  # torch's stubs call it JitType
    Node = _optional(lambda: torch._C.Node, "TorchScript")
    ScriptFunction = _optional(lambda: torch._C.ScriptFunction, "TorchScript")
    ScriptMethod = _optional(lambda: torch._C.ScriptMethod, "TorchScript")
    ScriptModule = _optional(lambda: torch._C.ScriptModule, "TorchScript")
parse_schema = _optional(lambda: torch._C.parse_schema, "TorchScript")

# ---- jagged nested tensors

NestedTensor: Any = _optional(
    lambda: torch.nested._internal.nested_tensor.NestedTensor, "jagged nested tensors are captured"
)
NestedIntNode: Any = _optional(
    lambda: torch.nested._internal.nested_int.NestedIntNode, "sizes of the ragged dimension are compared"
)
_nested_module: Any = _optional(
    lambda: torch.nested._internal.nested_tensor, "which tensors have a ragged size"
)
ragged_size_of: Any = _optional(
    lambda: torch.nested._internal.nested_tensor.get_tensor_symint, "ragged sizes are returned"
)
nested_view: Any = _optional(
    lambda: torch._nested_view_from_jagged, "nested tensors are views of their values"
)
nested_from_padded = _optional(lambda: torch._nested_from_padded_tensor, "padded tensors become nested ones")
nested_dummy: Any = _optional(
    lambda: torch.nested._internal.nested_tensor._nt_view_dummy, "which class a nested view has"
)


def ragged_sizes() -> Any:
    """The ragged sizes by tensor of offsets or lengths. Torch's tests replace the dictionary."""
    return _nested_module._tensor_symint_registry


padded_to_nested: Any = _optional(
    lambda: torch.nested._internal.nested_tensor.nested_from_padded, "attention returns nested tensors"
)


def nested_attention() -> Any:
    """The module with torch's attention of jagged nested tensors, which torch imports when it is first used."""
    from torch.nested._internal import sdpa  # noqa: PLC0415

    return sdpa


# Functions that create jagged nested tensors.
NESTED_FUNCTIONS = tuple(
    getattr(module, name)
    for module, names in (
        (torch.nested, "nested_tensor as_nested_tensor nested_tensor_from_jagged narrow masked_select"),
        (
            _nested_module,
            "nested_view_from_values_offsets nested_view_from_values_offsets_lengths nested_from_padded "
            "jagged_from_list jagged_from_tensor_and_lengths",
        ),
    )
    for name in names.split()
    if hasattr(module, name)
)
tls_excluded = _needed(lambda: torch._C._dispatch_tls_local_exclude_set, "which dispatch keys are passed")
tls_included = _needed(lambda: torch._C._dispatch_tls_local_include_set, "which dispatch keys are added")
ForceDispatchKeys = _optional(
    lambda: torch._C._ForceDispatchKeyGuard, "autograd sees the operators on values of nested tensors"
)
DispatchKey: Any = _optional(lambda: torch._C.DispatchKey, "composite operators run on nested tensors")
below_autograd_and_views = _optional(
    lambda: torch._C._AutoDispatchBelowADInplaceOrView, "autograd does not see operators on nested tensors"
)

# ---- what torch.compile's users have set, and what its backends read


def compiler_setting(name: str, default: Any) -> Any:
    """A setting of torch's compiler, where the program has imported it."""
    return getattr(sys.modules.get("torch._dynamo.config"), name, default)


def compiler_stance() -> str:
    """The stance of `torch.compiler.set_stance`, which imports the module that holds it."""
    stance = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return getattr(stance, "stance", "default")


def original_of_torch_compile(compiled: Any) -> Any:
    """The original of a callable that torch.compile compiled; another object unchanged."""
    torchs = sys.modules.get("torch._dynamo.eval_frame")
    if torchs is None:
        return compiled
    if isinstance(compiled, torchs.OptimizedModule):
        return compiled.get_submodule("_orig_mod")
    attributes = getattr(compiled, "__dict__", {})
    return attributes["_torchdynamo_orig_callable"] if "_torchdynamo_inline" in attributes else compiled


def show_original(wrapper: Any, original: object) -> None:
    """Let torch.compile and torch.export, called with `wrapper`, compile `original`."""
    wrapper._torchdynamo_orig_callable = original
    wrapper._torchdynamo_wrapper_id = id(wrapper)  # else the attribute counts as a copy by `functools.wraps`


def backend_tools() -> Any:
    """The classes of torch's capture that its backends read. Importing them takes a second and a half, so this happens when
    the first such backend compiles a graph."""
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415
    from torch._guards import TracingContext, tracing  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415
    from torch.fx.experimental.symbolic_shapes import (  # noqa: PLC0415
        DimDynamic,
        GuardOnDataDependentSymNode,
        ShapeEnv,
    )

    return SimpleNamespace(
        ConstantSource=ConstantSource,
        DimDynamic=DimDynamic,
        FakeTensorMode=FakeTensorMode,
        GuardOnDataDependentSymNode=GuardOnDataDependentSymNode,
        ShapeEnv=ShapeEnv,
        TracingContext=TracingContext,
        tracing=tracing,
    )


# ---- torch.fx, whose graphs smelt.fx builds

TreeSpec: Any = _optional(
    lambda: torch.utils._pytree.TreeSpec, "nested arguments and results have a structure"
)
tree_flatten: Any = _optional(lambda: torch.utils._pytree.tree_flatten, "nested values are taken apart")
tree_unflatten: Any = _optional(lambda: torch.utils._pytree.tree_unflatten, "nested values are put together")
tree_map: Any = _optional(lambda: torch.utils._pytree.tree_map, "the leaves of arguments are replaced")
FxPytreeCodeGen: Any = _optional(
    lambda: torch.fx.graph._PyTreeCodeGen, "a graph takes and returns nested containers"
)
FxPytreeInfo: Any = _optional(
    lambda: torch.fx.graph._PyTreeInfo, "a graph takes and returns nested containers"
)
fx_wrapped_functions: Any = _optional(
    lambda: torch.fx._symbolic_trace._wrapped_fns_to_patch, "functions that torch.fx.wrap marks are leaves"
)
fx_assert_is_none: Any = _optional(
    lambda: torch.fx._symbolic_trace._assert_is_none, "a specialized argument is checked"
)
make_graph_module: Any = _optional(
    lambda: torch.fx._lazy_graph_module._make_graph_module,
    "graph modules write their code when it is needed, if asked",
)
fx_assert: Any = _optional(lambda: torch.fx.proxy.assert_fn, "assertions are recorded")
fx_proxyable_classes: Any = _optional(
    lambda: torch.fx._symbolic_trace._proxyable_classes, "constants of proxyable classes are attributes"
)
FxFree: Any = _optional(lambda: torch.fx._symbolic_trace.PHBase, "marks free values among concrete arguments")


@contextmanager
def fx_tracing() -> Iterator[None]:
    """`torch.fx._symbolic_trace.is_fx_tracing()` is true in this context, which programs ask. torch keeps the flag in a
    global, from 2.14 on in an object of the thread."""
    module = torch.fx._symbolic_trace
    owner: Any = getattr(module, "_is_fx_tracing_tls", module)
    name = "_is_fx_tracing_flag" if owner is module else "flag"
    before = getattr(owner, name, False)
    setattr(owner, name, True)
    try:
        yield
    finally:
        setattr(owner, name, before)


def write_lazy_code(module: object) -> None:
    """Write the code of a lazy graph module, which torch writes at its first call otherwise."""
    getattr(module, "real_recompile", lambda: None)()


@cache
def decompositions(operators: str) -> Mapping[Any, Callable[..., Any]]:
    """Functions that compute an operator by others: into those of core ATen ("core"), or further ones ("prims"). Importing
    their modules takes a second or more."""
    from torch._decomp import core_aten_decompositions, decomposition_table  # noqa: PLC0415

    return decomposition_table if operators == "prims" else dict(core_aten_decompositions())


def fx_tensor_metadata(tensor: torch.Tensor) -> object:
    """What torch.fx's passes read of a tensor. Importing its module imports torch's fake tensors."""
    from torch.fx.passes.shape_prop import _extract_tensor_metadata  # noqa: PLC0415

    return _extract_tensor_metadata(tensor)
