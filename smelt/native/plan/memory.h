// Tensors of a plan: in its arena, with memory of their own, or over the memory of another.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "plan/program.h"

namespace smelt::plan {

constexpr size_t kAlignment = 64;  // bytes, of every offset in an arena
constexpr size_t kVector = 16;     // bytes that a thread of a GPU reads at once

using Arena = std::shared_ptr<c10::DataPtr>;

// Memory of an arena, of the allocator that torch has for the device.
Arena make_arena(size_t bytes, c10::Device device);

// Has a storage of its own, not resizable: an operator that resizes it gets an error. On a CPU it keeps the whole arena
// alive: an operator that holds on to it sees stale values at worst, never freed memory. On other devices it does not: arenas
// there are given back after each call.
at::Tensor arena_tensor(const Alloc& a, const Arena& arena);
// Lets `t`, an arena's tensor, lie in another arena; so do its views.
void move_to_arena(const at::Tensor& t, const Alloc& a, const Arena& arena);

// `as_strided` below the dispatcher: for tensors that only steps of the plan see.
at::Tensor raw_view(const View& v, const at::Tensor& src);

// Of a tensor that `a` makes.
c10::DispatchKeySet keys_of(const Alloc& a);

// `current`: the thread's current device.
at::Tensor allocate(const Alloc& a, c10::Device current);

// In the memory of `t`, which is about to be dropped, if nobody but its caller holds that; undefined if it cannot be.
at::Tensor in_place_of(const at::Tensor& t, const Alloc& a);

}  // namespace smelt::plan
