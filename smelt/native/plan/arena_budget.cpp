#include "plan/arena_budget.h"

#include <algorithm>
#include <vector>

#include "plan/registers.h"

namespace smelt::plan {

void ArenaBudget::note(IdleRegisterFiles* pool, size_t bytes) {
    if (last_.load(std::memory_order_acquire) == pool) return;
    std::vector<IdleRegisterFiles::Files> freed;  // after the mutex is: it may take the GIL
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = positions_.find(pool); found != positions_.end()) remove(found->second);
    held_.push_front({pool, bytes});
    positions_[pool] = held_.begin();
    total_ += bytes;
    largest_ = std::max(largest_, bytes);
    last_.store(pool, std::memory_order_release);
    while (total_ > limit_ * largest_) {
        freed.push_back(held_.back().pool->take_all());
        remove(std::prev(held_.end()));
    }
}

void ArenaBudget::forget(IdleRegisterFiles* pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = positions_.find(pool); found != positions_.end()) remove(found->second);
}

void ArenaBudget::remove(Position position) {
    if (position == held_.begin()) last_.store(nullptr, std::memory_order_release);
    total_ -= position->bytes;
    positions_.erase(position->pool);
    held_.erase(position);
}

void ArenaBudget::count_program(size_t bytes) {
    program_bytes_ += bytes;
    if (parent_) parent_->count_program(bytes);
}

void ArenaBudget::forget_program(size_t bytes) {
    program_bytes_ -= bytes;
    if (parent_) parent_->forget_program(bytes);
}

}  // namespace smelt::plan
