"""Symbolic tracing: a program runs on proxies, and its operations on them become the nodes of a graph.

While a program is traced, `nn.Module.__call__` and `nn.Module.__getattr__` are replaced, and so are the global functions
that `wrap` marks in the modules that use them: these calls become nodes. The replacements hold for the process, but only the
tracing thread notices: others get the originals, and wait if they trace too.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.fx.proxy import Scope, ScopeContextManager, TracerBase

from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import NotTraceable, ParameterProxy, Proxy, refuse, user_line
from smelt.torch_private import (
    FxFree,
    FxPytreeCodeGen,
    FxPytreeInfo,
    TreeSpec,
    assert_condition,
    fx_assert_is_none,
    fx_proxyable_classes,
    fx_tracing,
    fx_wrapped_functions,
    tree_flatten,
    tree_map,
    tree_unflatten,
    write_lazy_code,
)

_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_call_module: Callable[..., Any] = nn.Module.__call__
_get_attribute: Callable[..., Any] = nn.Module.__getattr__
_tracing_lock = threading.RLock()
# Stands, in an attribute of the traced module, for a constant of the program.
_CONSTANT_NAMES = {torch.Tensor: "_tensor_constant", TreeSpec: "_tree_spec_constant"}


class Tracer(TracerBase):
    """Records a graph of a module or function: `Tracer().trace(module)`. Subclasses override `is_leaf_module`,
    `call_module`, `getattr`, `create_arg`, `create_node`, `proxy`, `to_bool`, `iter` and `keys`, as with torch.fx.

    Args:
        autowrap_modules: Python modules; calls of their functions with a proxy become nodes.
        autowrap_functions: further functions whose calls with a proxy become nodes.
        param_shapes_constant: sizes of parameters are numbers, not nodes.
    """

    @classmethod
    def _graph_module_deserialization_tracer(cls, root: nn.Module) -> Tracer:
        """The tracer by which torch, from 2.15 on, loads a pickled GraphModule."""
        return cls()

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        super().__init__()
        found = (item for m in autowrap_modules for item in vars(m).items())
        functions = [value for name, value in found if not name.startswith("_") and callable(value)]
        self._autowrap_function_ids = {id(f) for f in (*functions, *autowrap_functions)}
        self._autowrap_search = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.submodule_paths: dict[nn.Module, str] | None = None
        self.tensor_attrs: dict[Any, str] = {}
        self.root: nn.Module = nn.Module()
        self.root_module_name = ""
        self.scope = Scope("", None)
        self.module_stack: collections.OrderedDict[str, tuple[str, Any]] = collections.OrderedDict()
        self.num_calls: dict[str, int] = {}
        self.node_name_to_scope: dict[str, tuple[str, type]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        made: Tracer = Tracer.__new__(Tracer)
        for name, value in self.__dict__.items():  # modules cannot be copied
            shallow = name == "_autowrap_search"
            made.__dict__[name] = copy.copy(value) if shallow else copy.deepcopy(value, memo)
        return made

    # ---- what subclasses override

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a call of `m` is one call_module node: by default for modules of torch.nn, except Sequential."""
        in_torch = m.__module__.startswith(("torch.nn", "torch.ao.nn"))
        return in_torch and not isinstance(m, nn.Sequential)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a call of module `m` and return its result: one node for a leaf, otherwise trace `forward`.

        Raises NameError for a module that is not in the hierarchy of the traced one.
        """
        path = self.path_of_module(m)
        with ScopeContextManager(self.scope, Scope(path, type(m))):
            count = self.num_calls.get(path, 0)
            self.num_calls[path] = count + 1
            key = f"{path}@{count}" if count else path
            self.module_stack[key] = (path, type(m))
            try:
                if self.is_leaf_module(m, path):
                    return self.create_proxy("call_module", path, args, kwargs)
                return forward(*args, **kwargs)
            finally:
                self.module_stack.popitem()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """The value of a module's attribute `attr` in the traced program: a proxy for a parameter and, if
        `proxy_buffer_attributes` is set, for a buffer; otherwise `attr_val`."""
        if isinstance(attr_val, nn.Parameter):
            name = _name_of(attr_val, self.root.named_parameters(remove_duplicate=False))
        elif self.proxy_buffer_attributes and isinstance(attr_val, torch.Tensor):
            name = _name_of(attr_val, self.root.named_buffers(remove_duplicate=False))
        else:
            name = None
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self._attribute_proxy(name, attr_val)
        return parameter_proxy_cache[name]

    def _attribute_proxy(self, name: str, value: Any) -> Any:
        if self.param_shapes_constant and isinstance(value, nn.Parameter):
            node = self.create_node("get_attr", name, (), {})
            return ParameterProxy(self, node, name, value)
        return self.create_proxy("get_attr", name, (), {})

    def proxy(self, node: torch.fx.Node) -> Any:
        """The value of `node` in the traced program."""
        return Proxy(node, self)

    def to_bool(self, obj: Any) -> bool:
        """The truth value of a proxy. Raises TraceError unless overridden."""
        refuse(obj, "symbolically traced variables cannot be used as inputs to control flow")

    def iter(self, obj: Any) -> Iterator[Any]:
        """An iterator over a proxy of unknown length. Raises TraceError unless overridden."""
        refuse(obj, "Proxy object cannot be iterated")

    def create_arg(self, a: Any) -> Any:
        """Convert a value of the program, or a container of values, to an argument of a node. Tensors and modules of the
        hierarchy become get_attr nodes, other tensors constants of the traced module.

        Raises NameError for a parameter that is not in the hierarchy, NotImplementedError for other objects.
        """
        name = self._path_of_value(a)
        if name is not None:
            return self.create_node("get_attr", name, (), {})
        if isinstance(a, nn.Parameter):
            raise NameError("parameter is not a member of this module")
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            args = tuple(self.create_arg(value) for value in a)
            return self.create_node("call_function", type(a), args, {})
        if _is_constant(a) or type(a) in fx_proxyable_classes:
            return self.create_node("get_attr", self._constant(a), (), {})
        try:
            return super().create_arg(a)
        except NotImplementedError as error:
            raise NotImplementedError(f"{error}, at {user_line()}") from None

    # ---- names

    def path_of_module(self, mod: nn.Module) -> str:
        """The name of a module in the hierarchy, as in `named_modules`. Raises NameError if it is not there."""
        if self.submodule_paths:
            found = self.submodule_paths.get(mod)
        else:
            found = _name_of(mod, self.root.named_modules())
        if found is None:
            raise NameError(f"module is not installed as a submodule: {type(mod).__name__}, at {user_line()}")
        return found

    def get_fresh_qualname(self, prefix: str) -> str:
        """An unused attribute name of the traced module: `prefix` and a number."""
        count = 0
        while hasattr(self.root, f"{prefix}{count}"):
            count += 1
        return f"{prefix}{count}"

    def _path_of_value(self, value: Any) -> str | None:
        if isinstance(value, nn.Parameter):
            return _name_of(value, self.root.named_parameters())
        if isinstance(value, torch.Tensor):
            return _name_of(value, self.root.named_buffers())
        if isinstance(value, nn.Module):
            return _name_of(value, self.root.named_modules())
        return None

    def _constant(self, value: Any) -> str:
        """The name of the attribute that holds `value`, which is new unless the program has one."""
        keeps = _is_constant(value)
        name = self.tensor_attrs.get(value) if keeps else None
        if name is None:
            stem = next((s for cls, s in _CONSTANT_NAMES.items() if isinstance(value, cls)), "_torchbind_obj")
            name = self.get_fresh_qualname(stem if keeps else f"_{type(value).__name__}_constant_")
            setattr(self.root, name, value)
            if keeps:
                self.tensor_attrs[value] = name
        return name

    # ---- tracing

    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> Graph:
        """Trace `root`, a module or Python function, and return its graph. `self.root` becomes the module to which the
        targets of the graph belong: `root`, or a new module for a function.

        Args:
            concrete_args: values, by name, for parameters that are not proxies; `PH` in a nested container stands for one.

        Raises TraceError, with the user's line, if the program needs a value; and the exceptions of the program.
        """
        is_module = isinstance(root, nn.Module)
        function: Callable[..., Any] = self._begin_module(root) if is_module else root  # type: ignore[arg-type]
        if not is_module:
            self.root = nn.Module()
        if not isinstance(function, FunctionType):
            raise NotTraceable(f"a Python function or an nn.Module can be traced, got {function!r}")
        cls: Any = type(self)
        self.graph = Graph(tracer_cls=cls)
        code = function.__code__
        self.graph._co_fields = {
            "co_name": code.co_name,
            "co_filename": code.co_filename,
            "co_firstlineno": code.co_firstlineno,
        }
        self.tensor_attrs = dict(_constants_of(self.root))
        with _tracing_lock, fx_tracing():
            called, args = self.create_args_for_root(function, is_module, concrete_args)
            with self._interception(function.__globals__):
                result = self.create_arg(called(*args))
            annotated = inspect.get_annotations(inspect.unwrap(function)).get("return")
            self.create_node("output", "output", (result,), {}, type_expr=annotated)
        self.submodule_paths = None
        return self.graph

    def _begin_module(self, root: nn.Module) -> Callable[..., Any]:
        write_lazy_code(root)
        self.root = root
        self.root_module_name = root._get_name()
        self.submodule_paths = {module: name for name, module in root.named_modules()}
        function = getattr(type(root), self.traced_func_name, None)
        if function is None:
            raise NotTraceable(
                f"traced_func_name={self.traced_func_name} doesn't exist in {type(root).__name__}"
            )
        return function  # type: ignore[no-any-return]

    @contextmanager
    def _interception(self, names: dict[str, Any]) -> Iterator[None]:
        """The context in which calls and attributes of modules, and marked functions of `names`, are recorded."""
        thread = threading.get_ident()
        known: dict[str, Any] = {}
        patches = _Patches()

        @functools.wraps(_get_attribute)
        def read(module: nn.Module, attr: str) -> Any:
            value = _get_attribute(module, attr)
            return self.getattr(attr, value, known) if threading.get_ident() == thread else value

        @functools.wraps(_call_module)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return _call_module(module, *args, **kwargs)
            scope = getattr(getattr(module, "forward", module), "__globals__", {})
            patches.wrap_functions(scope, self._autowrap_function_ids)
            return self.call_module(module, lambda *a, **k: _call_module(module, *a, **k), args, kwargs)

        outer = nn.Module.__call__, nn.Module.__getattr__
        nn.Module.__getattr__, nn.Module.__call__ = read, call  # type: ignore[method-assign,assignment]
        try:
            for (_, name), scope in list(fx_wrapped_functions.items()):
                patches.wrap_name(scope, name)
            for scope in (names, *(vars(m) for m in self._autowrap_search)):
                patches.wrap_functions(scope, self._autowrap_function_ids)
            yield
        finally:
            patches.undo()
            nn.Module.__call__, nn.Module.__getattr__ = outer  # type: ignore[method-assign]

    # ---- arguments

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """A function that runs the program, and its arguments: proxies of placeholders, and concrete values. If
        they are nested, the graph takes and returns nested containers.

        Raises TypeError if `concrete_args` do not fit the parameters.
        """
        code = inspect.unwrap(root_fn).__code__
        count = code.co_argcount + code.co_kwonlyargcount
        names = [*code.co_varnames[:count]]
        if is_module and not count:
            raise RuntimeError("``self`` argument cannot be part of *args expansion!")
        args: list[Any] = [self.root] if is_module else []
        free = names[len(args) :]
        if isinstance(concrete_args, tuple):
            if concrete_args and code.co_flags & _VARIADIC and not free:
                return root_fn, [*args, *self._unnamed(concrete_args)]
            if len(free) != len(concrete_args):
                raise RuntimeError(
                    f"Tracing expected {len(free)} arguments but got {len(concrete_args)} concrete arguments"
                )
            concrete_args = dict(zip(free, concrete_args))
        if unknown := [n for n in concrete_args or () if n not in free]:
            warnings.warn(f"concrete_args names no parameter: {', '.join(unknown)}", stacklevel=4)
        args += [self._argument(root_fn, name, concrete_args or {}) for name in free]
        if code.co_kwonlyargcount or code.co_flags & _VARIADIC:
            rest = iter(code.co_varnames[count:])
            for flag, stars in ((inspect.CO_VARARGS, "*"), (inspect.CO_VARKEYWORDS, "**")):
                if code.co_flags & flag:
                    args.append(self._argument(root_fn, stars + next(rest), {}))
            root_fn = _with_plain_parameters(root_fn, len(args))
        return self._flattened(root_fn, args, names)

    def _flattened(
        self, function: Callable[..., Any], args: list[Any], names: list[str]
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Flatten nested arguments. The graph's code flattens its arguments and unflattens its results in the same way."""
        leaves, spec = tree_flatten(tuple(args))
        if all(child.is_leaf() for child in spec.children()):
            return function, args
        codegen = FxPytreeCodeGen(FxPytreeInfo(names, spec, None))
        self.graph.set_codegen(codegen)

        def flat(*values):  # type: ignore[no-untyped-def]  # torch copies annotations to the generated code
            results, out_spec = tree_flatten(function(*tree_unflatten(list(values), spec)))
            codegen.pytree_info = FxPytreeInfo(names, spec, out_spec)
            return results

        return flat, leaves

    def _unnamed(self, values: tuple[Any, ...]) -> list[Any]:
        """Placeholders for the values of a function of `*args` only."""
        made = [self.create_proxy("placeholder", f"input_{i}", (), {}) for i in range(len(values))]
        for proxy, value in zip(made, values):
            _copy_marks(value, proxy)
        return made

    def _argument(self, function: Callable[..., Any], name: str, concrete: Mapping[str, Any]) -> Any:
        """The proxy of a parameter, or its concrete value, in which proxies replace free values."""
        function = inspect.unwrap(function)
        default: tuple[Any, ...] = ()
        nested = any(isinstance(v, (list, tuple, dict)) for v in concrete.values())
        if not name.startswith("*") and not nested:  # code that flattens its arguments cannot have defaults
            value = inspect.signature(function).parameters[name].default
            default = () if value is inspect.Parameter.empty else (value,)
        if name not in concrete:
            annotated = function.__annotations__.get(name)
            return self.create_proxy("placeholder", name, default, {}, type_expr=annotated)
        count = 0

        def of_leaf(value: Any) -> Any:
            nonlocal count
            count += 1
            proxy = self.create_proxy("placeholder", f"{name}_{count}", default, {})
            if isinstance(value, FxFree):
                _copy_marks(value, proxy)
                return proxy
            self._check_concrete(proxy, name, value)
            return value

        return tree_map(of_leaf, concrete[name])

    def _check_concrete(self, proxy: Any, name: str, value: Any) -> None:
        """Add nodes that check that an argument has the value that the graph was traced with."""
        message = f"{name} has been specialized to have value {value} but got another value"
        if value is None:
            self.create_proxy("call_function", fx_assert_is_none, (proxy, message), {})
        elif isinstance(value, torch.fx.node.base_types) and not isinstance(value, torch.Tensor):
            assert_condition(proxy == value, message)
        else:
            warnings.warn(
                f"Was not able to add assertion to guarantee correct input {name} to specialized function. It is up to "
                "the user to make sure that your inputs match the inputs you specialized the function with.",
                stacklevel=2,
            )


TRACER: Any = Tracer  # as the class of a graph's tracer, which torch's annotations want to be torch's


class _Patches:
    """Functions in the globals of Python modules, replaced for a while by ones that record calls with a proxy."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._walked: set[int] = set()

    def wrap_name(self, scope: dict[str, Any], name: str) -> None:
        """Replace the function `name`, which is a global or built in."""
        original = scope.get(name, getattr(builtins, name, None))
        if original is None or getattr(original, "__smelt_records__", False):
            return
        if name in scope:
            self._undo.append(functools.partial(scope.__setitem__, name, original))
        else:
            self._undo.append(functools.partial(scope.__delitem__, name))
        scope[name] = _recording(original)

    def wrap_functions(self, scope: dict[str, Any], functions: set[int]) -> None:
        """Replace the functions with these ids, once in each scope."""
        if id(scope) in self._walked:
            return
        self._walked.add(id(scope))
        names = [n for n, v in scope.items() if not n.startswith("_") and id(v) in functions and callable(v)]
        for name in names:
            self.wrap_name(scope, name)

    def undo(self) -> None:
        """Put the functions back."""
        while self._undo:
            self._undo.pop()()


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement of `function` that records a call with a proxy among its arguments as a node."""

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        proxies: list[Any] = []
        torch.fx.node.map_aggregate(
            (args, kwargs), lambda a: proxies.append(a) if isinstance(a, torch.fx.Proxy) else None
        )
        if not proxies:
            return function(*args, **kwargs)
        made = proxies[-1].tracer.create_proxy("call_function", function, args, kwargs)
        made.node.meta["is_wrapped"] = True
        return made

    recorded.__smelt_records__ = True  # type: ignore[attr-defined]
    return recorded


def _is_constant(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.ScriptObject, TreeSpec))


def _constants_of(module: nn.Module, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """The constants among the plain attributes of a hierarchy, with their names; not parameters and buffers."""
    for name, value in vars(module).items():
        if _is_constant(value):
            yield value, f"{prefix}{name}"
    for name, child in module.named_children():
        yield from _constants_of(child, f"{prefix}{name}.")


def _name_of(value: Any, named: Iterable[tuple[str, Any]]) -> str | None:
    return next((name for name, other in named if other is value), None)


def _with_plain_parameters(function: Callable[..., Any], count: int) -> FunctionType:
    """A copy of `function` with `count` positional parameters; `*args` and `**kwargs` become one parameter each."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    flags = code.co_flags & ~_VARIADIC
    plain = code.replace(co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags)
    return FunctionType(
        plain, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def _copy_marks(mark: Any, proxy: Any) -> None:
    """Copy attributes that the user has set on the mark of a free value to its node."""
    for name in dir(mark):
        value = getattr(mark, name)
        if not callable(value) and not name.startswith("__") and not hasattr(proxy.node, name):
            setattr(proxy.node, name, value)
