// Large blocks of memory that are kept for the next call (plan/blocks.cpp).
#pragma once
#include <c10/core/Allocator.h>

namespace smelt::plan {

constexpr size_t kLargeBlock = size_t{2} << 20;  // bytes, from where `take_block` is worth calling

// Memory of at least `bytes` on the CPU, uninitialized, aligned for vectors and huge pages. Freeing it gives it back to
// the blocks that are kept. From any thread, with or without the GIL. Throws where there is no memory.
c10::DataPtr take_block(size_t bytes);

}  // namespace smelt::plan
