// The memory that plans of one graph, for its sets of sizes, hold between calls.
//
// Invariant: idle arenas of its plans are at most `limit` times the largest of them; those used longest ago are freed first.
#pragma once
#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace smelt::plan {

class IdleRegisterFiles;

// Thread-safe. A pool is in it from the first file with an arena that it gets to the end of its life.
class ArenaBudget {
  public:
    ArenaBudget(size_t limit, std::shared_ptr<ArenaBudget> parent)
        : limit_(limit), parent_(std::move(parent)) {}

    // A call returned a file with an arena of `bytes` to the pool. Frees what exceeds the budget.
    void note(IdleRegisterFiles* pool, size_t bytes);
    // The pool is empty, or about to die.
    void forget(IdleRegisterFiles* pool);

    // The bytes of a program count here, and in the parent, from the time that its plan is added to the end of its life.
    void count_program(size_t bytes);
    void forget_program(size_t bytes);
    size_t program_bytes() const { return program_bytes_; }

  private:
    struct Held {
        IdleRegisterFiles* pool;
        size_t bytes;
    };
    using Position = std::list<Held>::iterator;

    void remove(Position position);  // needs the mutex

    const size_t limit_;
    const std::shared_ptr<ArenaBudget> parent_;  // null: none
    std::atomic<size_t> program_bytes_{0};
    std::atomic<IdleRegisterFiles*> last_{nullptr};  // the first of `held_`: most calls need not look further
    std::mutex mutex_;
    std::list<Held> held_;  // the most recently used first
    std::unordered_map<IdleRegisterFiles*, Position> positions_;
    size_t total_ = 0, largest_ = 0;
};

}  // namespace smelt::plan
