// Tensors of a plan: in its arena, with memory of their own, or over the memory of another.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "plan/program.h"

namespace smelt::plan {

constexpr size_t kAlignment = 64;  // bytes, of every offset in an arena

using Arena = std::shared_ptr<c10::DataPtr>;

// Has a storage of its own, not resizable, that keeps the whole arena alive: an operator that holds on to it sees
// stale values at worst, never freed memory, and one that resizes it gets an error.
at::Tensor arena_tensor(const Alloc& a, const Arena& arena);

// `as_strided` below the dispatcher: for tensors that only steps of the plan see.
at::Tensor raw_view(const View& v, const at::Tensor& src);

at::Tensor allocate(const Alloc& a);

}  // namespace smelt::plan
