"""What the C++ core may name: what torch and CPython keep to themselves stands in the files that are for it."""

import re
from pathlib import Path

import pytest

from smelt.exported.cpp_project import HEADERS, runtime_files

NATIVE = Path(__file__).parent.parent / "smelt" / "native"

# Headers of torch that are no offer to extensions; `ATen/ops/`, `ATen/core/Tensor.h`, `torch/library.h` and the like are.
PRIVATE_HEADERS = (
    "ATen/CPUGeneratorImpl.h",
    "ATen/EmptyTensor.h",
    "ATen/LegacyBatchedTensorImpl.h",
    "ATen/MetaFunctions.h",
    "ATen/NodeCreationHooks.h",
    "ATen/Operators.h",
    "ATen/PythonTorchFunctionTLS.h",
    "ATen/SavedTensorHooks.h",
    "ATen/SequenceNumber.h",
    "ATen/TensorIterator.h",
    "ATen/core/MT19937RNGEngine.h",
    "ATen/core/dispatch/",
    "ATen/core/stack.h",
    "ATen/cuda/",
    "ATen/functorch/",
    "ATen/native/",
    "ATen/ops/*_native.h",
    "c10/core/AutogradState.h",
    "c10/core/TensorImpl.h",
    "c10/core/impl/",
    "torch/csrc/",
)
# What else includes one: its table has a row per operator, and is of no use without them.
BESIDE = {
    ("operators/shape_functions.cpp", "ATen/MetaFunctions.h"),
    ("operators/shape_functions.cpp", "ATen/Operators.h"),
    ("operators/shape_functions.cpp", "ATen/TensorIterator.h"),
    ("operators/shape_functions.cpp", "ATen/ops/empty_like_native.h"),
}

# Functions of CPython that are no part of its interface, and that every version from 3.11 on exports.
FUNCTIONS = {
    "_PyDict_GetItem_KnownHash",
    "_PyObject_GetDictPtr",
    "_PySet_NextEntry",
    "_PyType_Lookup",
    "_PyEval_EvalFrameDefault",
    "_PyFrameEvalFunction",
    "_PyInterpreterState_GetEvalFrameFunc",
    "_PyInterpreterState_SetEvalFrameFunc",
}
# Members and types whose place in memory is CPython's own affair.
LAYOUTS = re.compile(
    r"\b(?:_Py\w+|Py_BUILD_CORE\w*|internal/pycore_\w+"
    r"|Py(?:Dict|Set)Object|PyDict(?:Keys|Values)\w*|setentry|DK_\w+|(?:ma|dk|me|ht|_ht)_\w+|co_extra"
    r"|localsplus|f_(?:code|func|funcobj|executable|locals|globals)|frame_obj|FRAME_OWNED\w+|instr_ptr|prev_instr|stacktop"
    r"|cframe|datastack_\w+|(?:py_|c_)?recursion_(?:limit|remaining)|generations)\b"
    r"|\binterp->\w+"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]+)[>"]')
OBJECT = re.compile(r"struct (\w+) \{[^}]*?PyObject_(?:VAR_)?HEAD")


# What the core includes: it knows no Python, and C++ projects compile it without Python's headers.
CORE = {"autograd", "devices", "exported", "include", "plan", "shapes", "values"}
PYTHON = re.compile(
    r"(.*/)?(Python|structmember|pybind\w*|cpython\w*|torch_python|torch_script|gil|module)\.h$|pybind11/"
)


def core_problems(files: dict[str, str]) -> list[str]:
    """Includes of Python, of bindings and of files outside the core by files of the core, or by what those include."""
    reached = [path for path in files if path.split("/")[0] in CORE]
    problems = []
    for path in reached:
        for header in INCLUDE.findall(COMMENT.sub("", files[path])):
            if PYTHON.match(header) or re.match(
                r"torch/csrc/(?!autograd/(?!python)|dynamo/compiled_autograd\.h)|torch/extension", header
            ):
                problems.append(f"{path} includes {header}")
            elif header in files and header not in reached:
                reached.append(header)
    return problems


def is_private(header: str) -> bool:
    patterns = (re.escape(p).replace(r"\*", "[^/]*") for p in PRIVATE_HEADERS)
    return any(re.match(p if p.endswith("/") else p + "$", header) for p in patterns)


def torch_problems(files: dict[str, str]) -> list[str]:
    """`files`: their text by their path beneath `smelt/native`."""
    return [
        f"{path} includes {header}"
        for path, text in files.items()
        if not re.fullmatch(r"torch(_\w+)?\.h", path)
        for header in INCLUDE.findall(COMMENT.sub("", text))
        if is_private(header) and (path, header) not in BESIDE
    ]


def cpython_problems(files: dict[str, str]) -> list[str]:
    """A struct that begins as an object does is of a type that is made here: its size is given to that."""
    code = {path: COMMENT.sub("", text) for path, text in files.items() if not is_for_cpython(path)}
    everywhere = "\n".join(code.values())
    named = [
        f"{path} names {name}"
        for path, text in code.items()
        for name in LAYOUTS.findall(text)
        if name not in FUNCTIONS
    ]
    foreign = [
        f"{path} lays out {struct}"
        for path, text in code.items()
        for struct in OBJECT.findall(text)
        if f"sizeof({struct})" not in everywhere
    ]
    return named + foreign


def is_for_cpython(path: str) -> bool:
    return re.fullmatch(r"cpython(_\w+)?\.(h|cpp)", path) is not None


def sources() -> dict[str, str]:
    return {
        p.relative_to(NATIVE).as_posix(): p.read_text()
        for p in NATIVE.rglob("*")
        if p.suffix in (".h", ".cpp")
    }


def test_private_headers_of_torch_are_included_by_torch_h_and_those_beside_it():
    files = sources()
    assert torch_problems(files) == []
    found = {
        (p, header) for p, text in files.items() for header in INCLUDE.findall(text) if is_private(header)
    }
    assert sorted(BESIDE - found) == [], "not included any more"


@pytest.mark.parametrize(
    "text",
    [
        "#include <torch/csrc/autograd/function.h>",
        "#  include <c10/core/impl/LocalDispatchKeySet.h>",
        "#if 1\n#include <ATen/core/dispatch/Dispatcher.h>\n#endif",
        '#include "ATen/ops/add_native.h"',
        "#include <ATen/CPUGeneratorImpl.h>",
    ],
)
def test_an_include_of_a_private_header_is_found(text):
    assert torch_problems({"torch.h": text, "torch_more.h": text}) == []
    for path in ("plan/run.cpp", "guards/torch.h", "torch.cpp", "mytorch.h"):
        [problem] = torch_problems({path: text})
        assert problem.startswith(path)


def test_what_torch_offers_to_extensions_is_not_meant():
    text = "#include <ATen/core/Tensor.h>\n#include <ATen/ops/add.h>\n#include <torch/library.h>"
    assert torch_problems({"plan/run.cpp": text + "\n// #include <torch/csrc/Device.h>"}) == []


def test_the_core_knows_no_python():
    files = sources()
    assert core_problems(files) == []
    assert {path for path in files if path.split("/")[0] in CORE} | {
        *HEADERS
    } == set(runtime_files())  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        "Python.h",
        "torch_python.h",
        "module.h",
        "torch/csrc/utils/pybind.h",
        "torch/csrc/autograd/python_variable.h",
        "bindings/plan.h",
    ],
)
def test_an_include_of_python_is_found(header):
    bindings = {"bindings/plan.h": "#include <Python.h>"}
    for path, files in (
        ("plan/run.cpp", {"plan/run.cpp": f'#include "{header}"'}),
        ("torch.h", {"plan/run.cpp": '#include "torch.h"', "torch.h": f"#include <{header}>"}),
    ):
        [problem] = core_problems(files | bindings)
        assert problem.startswith(path) or header == "bindings/plan.h"
    assert core_problems({"bindings/run.cpp": f'#include "{header}"'}) == []


def test_layouts_of_cpython_stand_in_the_files_for_them():
    assert cpython_problems(sources()) == []


@pytest.mark.parametrize(
    "text",
    [
        "#define Py_BUILD_CORE 1",
        "#include <internal/pycore_frame.h>",
        "return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;",
        "auto* set = reinterpret_cast<PySetObject*>(x);",
        "const setentry& entry = table[i];",
        "int n = frame->localsplus[0];",
        "thread->interp->gc.enabled = 0;",
        "PyObject* dummy = _PySet_Dummy;",
        "struct Walk {\n    PyObject_HEAD Py_ssize_t index;\n};",
    ],
)
def test_a_layout_of_cpython_is_found(text):
    assert cpython_problems({"cpython.h": text, "cpython_sets.cpp": text}) == []
    assert cpython_problems({"guards/sets.cpp": text})
    assert cpython_problems({"guards/cpython.h": text})


def test_exported_functions_and_types_of_our_own_are_not_meant():
    files = {
        "a.h": "struct Plan {\n    PyObject_HEAD Program* program;\n};  // unlike ma_keys",
        "a.cpp": "PyType_Spec spec = {name, sizeof(Plan)};\nPyObject* found = _PyType_Lookup(type, name);",
    }
    assert cpython_problems(files) == []
