// torch's compiled autograd, which collects what identifies a node, and records a call of it.
#pragma once
#include "torch_autograd.h"

#include <torch/csrc/dynamo/compiled_autograd.h>

#include <string>
#include <utility>
#include <vector>

namespace smelt {

using torch::autograd::functional_apply_t;
using torch::autograd::ivalue_list;

// Records a call of `function`, which gets `inputs` and `operands` and returns a gradient for each edge.
inline variable_list call_in_graph(const SwapSavedVariables& swap, const std::string& name,
                                   const variable_list& inputs, const ivalue_list& operands,
                                   const edge_list& edges, functional_apply_t function) {
    namespace compiled = torch::dynamo::autograd;
    const auto metadata = compiled::get_input_metadata(edges);
    const auto& compiler = compiled::getPyCompilerInterface();
    const std::vector<at::TypePtr> schema(operands.size(), at::TensorType::get());
    const std::string bound =
        compiler->bind_function(swap.get_py_compiler(), name, std::move(function), schema,
                                /*is_custom_function=*/true, /*is_traceable=*/false);
    return compiler->call_function(
        swap.get_py_compiler(), "apply_functional", bound, inputs, operands,
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(metadata));
}

}  // namespace smelt
