// A caching allocator for large blocks of CPU memory (plan/caching_allocator.cpp).
#pragma once
#include <c10/core/Allocator.h>

namespace smelt::plan {

constexpr size_t kLargeBlock = size_t{2} << 20;  // bytes from which `allocate_block` is worth a call

// Uninitialized CPU memory of at least `bytes`, aligned for vectors and huge pages. Freeing it returns it to the
// cache. Thread-safe, Throws if there is no memory.
c10::DataPtr allocate_block(size_t bytes);

// Frees the cached blocks; returns their bytes.
size_t release_cached_blocks();
size_t cached_block_bytes();

}  // namespace smelt::plan
