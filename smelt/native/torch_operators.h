// torch's operators: found by their names and called with boxed values.
//
// Used as they are: `c10::Dispatcher`, `c10::OperatorHandle` and its schema, `torch::jit::Stack`. No version differs in them.
#pragma once
#include "torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
