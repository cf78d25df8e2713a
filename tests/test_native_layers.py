"""What the C++ core may include: what torch keeps to itself stands in the headers that are for it."""

import re
from pathlib import Path

import pytest

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
    ("operators/shapes.cpp", "ATen/MetaFunctions.h"),
    ("operators/shapes.cpp", "ATen/Operators.h"),
    ("operators/shapes.cpp", "ATen/TensorIterator.h"),
    ("operators/shapes.cpp", "ATen/ops/empty_like_native.h"),
}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]+)[>"]')


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
