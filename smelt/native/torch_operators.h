// torch's operators: looked up by name and called with boxed values.
//
// Used directly: `c10::Dispatcher`, `c10::OperatorHandle` and its schema, `torch::jit::Stack`. They are the same in
// all versions.
#pragma once
#include "torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
