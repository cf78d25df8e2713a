// Large blocks of memory that are kept for the next call.
//
// A training step makes the same large tensors each time: gradients, activations that are saved, logits. The C library
// hands memory beyond 32 MiB back to the kernel when it is freed, so that the next step pays for each page again: the
// kernel clears it and maps it at the first touch. Here such blocks are kept, and backed by huge pages.
//
// What always holds: the bytes in use and the bytes kept are together at most twice the bytes that were in use at some
// moment. (A step's saved activations and its gradients are not all in use at once, but each are.) Where sizes change, the
// blocks that were used longest ago go first. The kernel may take the pages of a block that is kept when memory is short.
#include "plan/blocks.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <list>
#include <mutex>

#include "module.h"

namespace smelt::plan {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kUnit = size_t{64} << 10, kShift = 4096 + 64;

struct Block {
    void* memory;  // what was allocated
    void* begin;   // of what is used
    size_t bytes;
};

class Blocks {
  public:
    // A block that is kept, if one fits with little waste, or a new one. No memory: nullptr.
    Block* take(size_t wanted) {
        size_t bytes = (wanted + kUnit - 1) / kUnit * kUnit;
        std::lock_guard<std::mutex> lock(mutex_);
        auto best = kept_.end();
        for (auto it = kept_.begin(); it != kept_.end(); ++it)
            if ((*it)->bytes >= bytes && (*it)->bytes - bytes <= bytes / 8 &&
                (best == kept_.end() || (*it)->bytes < (*best)->bytes))
                best = it;
        Block* block = nullptr;
        if (best != kept_.end()) {
            block = *best;
            kept_.erase(best);
            kept_bytes_ -= block->bytes;
        } else {
            while (!kept_.empty() && used_bytes_ + kept_bytes_ + bytes > 2 * peak_bytes_) drop_oldest();
            block = make(bytes);
            while (!block && !kept_.empty()) {
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
        madvise(block->memory, block->bytes + kUnit, MADV_FREE);  // its contents are worth nothing
        std::lock_guard<std::mutex> lock(mutex_);
        used_bytes_ -= block->bytes;
        kept_bytes_ += block->bytes;
        kept_.push_back(block);
    }

    size_t drop_all() {
        std::lock_guard<std::mutex> lock(mutex_);
        size_t freed = kept_bytes_;
        while (!kept_.empty()) drop_oldest();
        peak_bytes_ = used_bytes_;
        return freed;
    }

    size_t kept_bytes() {
        std::lock_guard<std::mutex> lock(mutex_);
        return kept_bytes_;
    }

    // Around a fork: the child must not find the lock held by a thread that it does not have.
    std::mutex mutex_;

  private:
    Block* make(size_t bytes) {
        void* memory = nullptr;
        if (posix_memalign(&memory, kHugePage, bytes + kUnit) != 0) return nullptr;
        madvise(memory, bytes + kUnit, MADV_HUGEPAGE);  // a wish: where it is refused, pages are small
        // Blocks begin at different places of a page: those that a kernel walks side by side would else meet in the
        // same sets of the caches.
        size_t shift = made_++ % (kUnit / kShift) * kShift;
        return new Block{memory, static_cast<char*>(memory) + shift, bytes};
    }

    void drop_oldest() {
        Block* block = kept_.front();
        kept_.pop_front();
        kept_bytes_ -= block->bytes;
        std::free(block->memory);
        delete block;
    }

    std::list<Block*> kept_;  // those used longest ago first
    size_t used_bytes_ = 0, kept_bytes_ = 0, peak_bytes_ = 0, made_ = 0;
};

// Never destroyed: tensors may be freed after static objects are.
Blocks& blocks() {
    static Blocks* made = new Blocks;
    return *made;
}

void give_back(void* block) {
    blocks().give(static_cast<Block*>(block));
}

PyObject* release_blocks(PyObject*, PyObject*) {
    return PyLong_FromSize_t(blocks().drop_all());
}
PyObject* kept_bytes(PyObject*, PyObject*) {
    return PyLong_FromSize_t(blocks().kept_bytes());
}

PyMethodDef methods[] = {
    {"release_blocks", release_blocks, METH_NOARGS,
     "Frees the large blocks that are kept; returns their bytes."},
    {"kept_bytes", kept_bytes, METH_NOARGS, "Bytes of the large blocks that are kept for the next call."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

c10::DataPtr take_block(size_t bytes) {
    Block* block = blocks().take(bytes);
    if (!block) return c10::GetCPUAllocator()->allocate(bytes);  // which has the words for it
    return {block->begin, block, give_back, c10::Device(c10::kCPU)};
}

int init_blocks(PyObject* module) {
    pthread_atfork([] { blocks().mutex_.lock(); }, [] { blocks().mutex_.unlock(); },
                   [] { blocks().mutex_.unlock(); });
    return PyModule_AddFunctions(module, methods);
}

}  // namespace smelt::plan
