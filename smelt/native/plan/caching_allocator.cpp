// A caching allocator for large blocks of CPU memory.
//
// A training step allocates the same large tensors each time: gradients, saved activations, logits. The C library
// returns memory beyond 32 MiB to the kernel when it is freed, so the next step pays for each page again: the kernel
// clears it and maps it at the first access. This allocator caches such blocks, and backs them with huge pages.
//
// Invariant: the bytes in use and the cached bytes together are at most twice the peak of the bytes in use. (A step's
// saved activations and its gradients are not all in use at once, but each are.) If sizes change, the least recently
// used blocks are freed first. The kernel may reclaim the pages of a cached block when memory is short.
#include "plan/caching_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <list>
#include <mutex>

namespace smelt::plan {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kUnit = size_t{64} << 10, kShift = 4096 + 64;

struct Block {
    void* memory;  // the allocation
    void* begin;   // of the usable part
    size_t bytes;
};

class Blocks {
  public:
    // A cached block, if one fits with little waste, or a new one; nullptr if there is no memory.
    Block* take(size_t wanted) {
        size_t bytes = (wanted + kUnit - 1) / kUnit * kUnit;
        std::lock_guard<std::mutex> lock(mutex_);
        auto best = pooled_.end();
        for (auto it = pooled_.begin(); it != pooled_.end(); ++it)
            if ((*it)->bytes >= bytes && (*it)->bytes - bytes <= bytes / 8 &&
                (best == pooled_.end() || (*it)->bytes < (*best)->bytes))
                best = it;
        Block* block = nullptr;
        if (best != pooled_.end()) {
            block = *best;
            pooled_.erase(best);
            kept_bytes_ -= block->bytes;
        } else {
            while (!pooled_.empty() && used_bytes_ + kept_bytes_ + bytes > 2 * peak_bytes_) drop_oldest();
            block = make(bytes);
            while (!block && !pooled_.empty()) {
                drop_oldest();
                block = make(bytes);
            }
            if (!block) return nullptr;
        }
        used_bytes_ += block->bytes;
        if (used_bytes_ > peak_bytes_) peak_bytes_ = used_bytes_;
        return block;
    }

    void give(Block* block) {
        madvise(block->memory, block->bytes + kUnit, MADV_FREE);  // the contents are not needed
        std::lock_guard<std::mutex> lock(mutex_);
        used_bytes_ -= block->bytes;
        kept_bytes_ += block->bytes;
        pooled_.push_back(block);
    }

    size_t drop_all() {
        std::lock_guard<std::mutex> lock(mutex_);
        size_t freed = kept_bytes_;
        while (!pooled_.empty()) drop_oldest();
        peak_bytes_ = used_bytes_;
        return freed;
    }

    size_t kept_bytes() {
        std::lock_guard<std::mutex> lock(mutex_);
        return kept_bytes_;
    }

    // Locked around a fork: otherwise the child might inherit a lock held by a thread that it does not have.
    std::mutex mutex_;

  private:
    Block* make(size_t bytes) {
        void* memory = nullptr;
        if (posix_memalign(&memory, kHugePage, bytes + kUnit) != 0) return nullptr;
        madvise(memory, bytes + kUnit, MADV_HUGEPAGE);  // optional: if refused, pages are small
        // Blocks start at different offsets within a page: otherwise blocks that a kernel reads in parallel would
        // compete for the same cache sets.
        size_t shift = made_++ % (kUnit / kShift) * kShift;
        return new Block{memory, static_cast<char*>(memory) + shift, bytes};
    }

    void drop_oldest() {
        Block* block = pooled_.front();
        pooled_.pop_front();
        kept_bytes_ -= block->bytes;
        std::free(block->memory);
        delete block;
    }

    std::list<Block*> pooled_;  // least recently used first
    size_t used_bytes_ = 0, kept_bytes_ = 0, peak_bytes_ = 0, made_ = 0;
};

// Never destroyed: tensors may be freed after static objects are.
Blocks& blocks() {
    static Blocks* made = [] {
        pthread_atfork([] { blocks().mutex_.lock(); }, [] { blocks().mutex_.unlock(); },
                       [] { blocks().mutex_.unlock(); });
        return new Blocks;
    }();
    return *made;
}

void give_back(void* block) {
    blocks().give(static_cast<Block*>(block));
}

}  // namespace

c10::DataPtr allocate_block(size_t bytes) {
    Block* block = blocks().take(bytes);
    if (!block) return c10::GetCPUAllocator()->allocate(bytes);  // which raises the error
    return {block->begin, block, give_back, c10::Device(c10::kCPU)};
}

size_t release_cached_blocks() {
    return blocks().drop_all();
}

size_t cached_block_bytes() {
    return blocks().kept_bytes();
}

}  // namespace smelt::plan
