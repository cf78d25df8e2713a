// Tensors of a plan: in its arena, with memory of their own, or in the memory of another tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "plan/program.h"

namespace smelt::plan {

constexpr size_t kAlignment = 64;  // bytes, of every offset in an arena
constexpr size_t kVector = 16;     // bytes of one vector access on a GPU

using Arena = std::shared_ptr<c10::DataPtr>;

// Allocates an arena from torch's allocator of the device.
Arena make_arena(size_t bytes, c10::Device device);

// A tensor with its own storage, which is not resizable: an operator that resizes it raises. On a CPU the storage
// keeps the whole arena alive: an operator that retains it sees stale values at worst, never freed memory. On other
// devices it does not, because arenas there are freed after each call.
at::Tensor arena_tensor(const Alloc& a, const Arena& arena);
// Moves `t`, a tensor of an arena, and its views to another arena.
void move_to_arena(const at::Tensor& t, const Alloc& a, const Arena& arena);

// `as_strided` below the dispatcher: for tensors that only steps of the plan see.
at::Tensor raw_view(const View& v, const at::Tensor& src);

// The dispatch keys of the tensor that `a` creates.
c10::DispatchKeySet keys_of(const Alloc& a);

// `current`: the thread's current device.
at::Tensor allocate(const Alloc& a, c10::Device current);

// A tensor in the memory of `t`, which is about to be freed, if only the caller owns that memory; else undefined.
at::Tensor in_place_of(const at::Tensor& t, const Alloc& a);

}  // namespace smelt::plan
