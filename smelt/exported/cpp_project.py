"""A C++ project around an exported program: its file, the sources of the runtime, and an example with CMake.

The runtime is the part of `smelt/native/` that knows no Python (tests/test_native_layers.py), compiled against the user's
libtorch as three units: most of a compilation is the parsing of torch's headers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from smelt.errors import ProgramError
from smelt.exported import program_file
from smelt.exported.input_checks import Path as ArgumentPath
from smelt.exported.input_checks import Rule, TensorRule
from smelt.exported.program_file import Method
from smelt.shapes.expr import Expr, Size, contiguous_stride, evaluate

NATIVE = Path(__file__).parent.parent / "native"
HEADERS = (
    "tensor_layout.h",
    "torch.h",
    "torch_autograd.h",
    "torch_compiled_autograd.h",
    "torch_generator.h",
    "torch_operators.h",
)
# Folder -> the unit that compiles its sources.
UNITS = {
    "autograd": "autograd",
    "devices": "plan",
    "exported": "exported",
    "include": "plan",
    "plan": "plan",
    "shapes": "plan",
    "values": "plan",
}

_CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(smelt_example CXX)

set(CMAKE_CXX_STANDARD 20)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# cmake -DCMAKE_PREFIX_PATH=... : libtorch, or what python -c "import torch; print(torch.utils.cmake_prefix_path)" prints
find_package(Torch REQUIRED)

add_library(smelt STATIC smelt/units/autograd.cpp smelt/units/exported.cpp smelt/units/plan.cpp)
target_include_directories(smelt PUBLIC smelt/include PRIVATE smelt)
target_link_libraries(smelt PUBLIC ${TORCH_LIBRARIES} ${CMAKE_DL_LIBS})
target_compile_definitions(smelt PRIVATE AT_PER_OPERATOR_HEADERS)

# Kernels run on torch's threads: with the copy of OpenMP that torch brings, if it does.
target_compile_options(smelt PRIVATE -fopenmp -fvisibility=hidden -Wno-maybe-uninitialized)
file(GLOB TORCH_OPENMP ${TORCH_INSTALL_PREFIX}/lib/libgomp*.so*)
if(TORCH_OPENMP)
  list(GET TORCH_OPENMP 0 TORCH_OPENMP)
  target_link_libraries(smelt PUBLIC ${TORCH_OPENMP})
else()
  target_link_options(smelt PUBLIC -fopenmp)
endif()

add_executable(example main.cpp)
target_link_libraries(example smelt)
"""

_MAIN = """\
// Loads an exported program, shows what it takes, and calls it once with arguments like those of the export.
#include <smelt/program.h>
#include <torch/torch.h>

#include <iostream>

namespace {{

void show(const std::string& name, const c10::IValue& value) {{
    if (value.isTensor()) {{
        std::cout << name << ": " << value.toTensor().dtype() << value.toTensor().sizes() << '\\n';
    }} else if (value.isTuple()) {{
        const auto& items = value.toTupleRef().elements();
        for (size_t i = 0; i < items.size(); ++i) show(name + '[' + std::to_string(i) + ']', items[i]);
    }} else if (value.isList()) {{
        for (size_t i = 0; i < value.toListRef().size(); ++i)
            show(name + '[' + std::to_string(i) + ']', value.toListRef()[i]);
    }} else if (value.isGenericDict()) {{
        for (const auto& entry : value.toGenericDict()) {{
            const std::string key = entry.key().isString() ? entry.key().toStringRef() : "...";
            show(name + '[' + key + ']', entry.value());
        }}
    }} else {{
        std::cout << name << ": " << value << '\\n';
    }}
}}

[[maybe_unused]] c10::IValue make_dict(const std::vector<std::pair<c10::IValue, c10::IValue>>& items) {{
    c10::impl::GenericDict made(c10::StringType::get(), c10::AnyType::get());
    for (const auto& [key, value] : items) made.insert(key, value);
    return made;
}}

[[maybe_unused]] c10::IValue make_list(const std::vector<c10::IValue>& items) {{
    c10::impl::GenericList made(c10::AnyType::get());
    for (const auto& item : items) made.push_back(item);
    return made;
}}

[[maybe_unused]] at::Tensor random(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {{
    at::Tensor made = at::empty_strided(sizes, strides, dtype);
    return made.is_floating_point() ? made.uniform_() : made.fill_(1);
}}

}}  // namespace

int main(int argc, char** argv) {{
    try {{
        const smelt::Program program = smelt::Program::load({files});
        std::cout << program.name() << '\\n';
        for (const smelt::DynamicSize& size : program.dynamic_sizes())
            std::cout << "  dimension " << size.dimension << " of " << size.of << " is from " << size.low << " to "
                      << size.high << '\\n';
        show("result", program({{{arguments}}}, {{{keywords}}}));
    }} catch (const std::exception& error) {{
        std::cerr << error.what() << '\\n';
        return 1;
    }}
}}
"""


def runtime_files() -> dict[str, Path]:
    """The sources of the runtime, by their paths beneath `smelt/native`."""
    found = [NATIVE / name for name in HEADERS]
    for folder in UNITS:
        found += (p for p in (NATIVE / folder).rglob("*") if p.suffix in (".h", ".cpp"))
    return {path.relative_to(NATIVE).as_posix(): path for path in sorted(found)}


def write_runtime(folder: Path) -> list[Path]:
    """Write the runtime's sources to a folder; return the units to compile, with the folder and its `include` as include
    folders. Raises OSError."""
    files = runtime_files()
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    units: dict[str, str] = {}
    for name in files:
        if name.endswith(".cpp"):
            unit = UNITS[name.partition("/")[0]]
            units[unit] = units.get(unit, "") + f'#include "{name}"\n'
    (folder / "units").mkdir(exist_ok=True)
    for unit, text in units.items():
        (folder / "units" / f"{unit}.cpp").write_text(text, encoding="utf-8")
    return [folder / "units" / f"{unit}.cpp" for unit in units]


def write_project(program: Path, folder: Path, weights: Path | None = None) -> None:
    """Write a project to a folder: CMakeLists.txt, main.cpp, the runtime in `smelt/`, and copies of the program and its file
    of weights. Raises OSError, and ProgramError for a file that is no program."""
    contents = program_file.read(program, weights)
    write_runtime(folder / "smelt")
    (folder / "CMakeLists.txt").write_text(_CMAKE, encoding="utf-8")
    arguments, keywords = example_arguments(contents.tables.methods[0])
    copied = [program] if weights is None else [program, weights]
    files = ", ".join(f"argc > {i} ? argv[{i}] : {json.dumps(path.name)}" for i, path in enumerate(copied, 1))
    text = _MAIN.format(files=files, arguments=arguments, keywords=keywords)
    (folder / "main.cpp").write_text(text, encoding="utf-8")
    for path in copied:
        if path.resolve() != (folder / path.name).resolve():
            shutil.copyfile(path, folder / path.name)


def example_arguments(method: Method) -> tuple[str, str]:
    """C++ expressions of arguments like those of the export, and of the keywords."""
    example = _Example(method)
    positional = [example.expression((("args", i),)) for i in range(method.n_args)]
    keywords = [
        f"{{{json.dumps(name)}, {example.expression((('kwargs', name),))}}}" for name in method.keywords
    ]
    return ", ".join(positional), ", ".join(keywords)


class _Example:
    """Expressions for the objects at paths, from the rules that check them."""

    def __init__(self, method: Method) -> None:
        self._values = {size.symbol: n for size, n in zip(method.sizes, method.examples)}
        self._tensors = {rule.path: rule for rule in method.rules if isinstance(rule, TensorRule)}
        self._facts: dict[ArgumentPath, dict[str, Any]] = {}
        paths = [*self._tensors]
        for rule in method.rules:
            if isinstance(rule, Rule):
                paths += rule.paths
                self._facts.setdefault(rule.paths[0], {})[rule.kind] = rule.value
        paths += [at for at in method.inputs if isinstance(at, tuple)]
        self._members: dict[ArgumentPath, dict[Any, None]] = {}
        self._steps: dict[ArgumentPath, dict[tuple[str, Any], None]] = {}
        for path in paths:
            for n in range(1, len(path)):
                self._steps.setdefault(path[:n], {})[path[n]] = None
                if path[n][0] == "item":
                    self._members.setdefault(path[:n], {})[path[n][1]] = None

    def expression(self, path: ArgumentPath) -> str:
        """The expression of an argument, or of a part of one."""
        if path in self._tensors:
            return self._tensor(self._tensors[path])
        facts: Mapping[str, Any] = self._facts.get(path, {})
        if "eq" in facts:
            return _constant(facts["eq"])
        if "fields" in facts:
            items = {name: self._field(path, i, name) for i, name in enumerate(facts["fields"])}
            return _dict_text(items)
        if path in self._members:
            keys = sorted(self._members[path], key=str)
            items = {key: self.expression((*path, ("item", key))) for key in keys}
            if all(isinstance(key, str) for key in keys):
                return _dict_text(items)
            values = ", ".join(items[key] for key in sorted(self._members[path]))
            is_list = facts.get("type") == "builtins.list"
            return f"make_list({{{values}}})" if is_list else f"std::make_tuple({values})"
        return {"int": "int64_t{1}", "float": "1.0"}.get(facts.get("number", ""), "c10::IValue()")

    def _field(self, path: ArgumentPath, i: int, name: str) -> str:
        """The expression of field `i` of an instance, which the model may read by name, by position or in `__dict__`."""
        own = (*path, ("dict", None)), ("item", name)
        steps = [(*path, step) for step in (("attr", name), ("member", name), ("item", i), ("item", name))]
        known = self._tensors.keys() | self._facts.keys()
        found = [at for at in (*steps, (*own[0], own[1])) if at in known or at in self._steps]
        return self.expression(found[0]) if found else "c10::IValue()"

    def _tensor(self, rule: TensorRule) -> str:
        shape = tuple(self._number(n, rule.least) for n in rule.shape)
        row_major = contiguous_stride(shape)
        stride = tuple(self._number(n, row_major[d]) for d, n in enumerate(rule.stride))
        if rule.dtype not in _DTYPES:
            raise ProgramError(f"there is no example of a tensor of {rule.dtype}")
        sizes, strides = (", ".join(map(str, numbers)) for numbers in (shape, stride))
        device = "" if rule.device.type == "cpu" else f'.to(c10::Device("{rule.device}"))'
        return f"random({{{sizes}}}, {{{strides}}}, {_DTYPES[rule.dtype]}){device}"

    def _number(self, size: Size | None, otherwise: Any) -> int:
        if size is None:
            return int(otherwise)
        return evaluate(size, self._values) if isinstance(size, Expr) else size


def _dict_text(items: Mapping[str, str]) -> str:
    return f"make_dict({{{', '.join(f'{{{_constant(k)}, {v}}}' for k, v in items.items())}}})"


def _constant(value: Any) -> str:
    if value is None:
        return "c10::IValue()"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"int64_t{{{value}}}"
    if isinstance(value, str):
        return f"std::string({json.dumps(value)})"
    if isinstance(value, tuple):
        return f"std::make_tuple({', '.join(map(_constant, value))})"
    return repr(value)


_DTYPES = {
    dtype: f"at::k{name}"
    for dtype, name in {
        torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long",
        torch.float16: "Half", torch.float32: "Float", torch.float64: "Double", torch.bfloat16: "BFloat16",
        torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble", torch.bool: "Bool",
    }.items()
}  # fmt: skip
