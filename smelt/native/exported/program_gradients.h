// The autograd nodes of an exported program: backwards that are plans of its file.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "autograd/node_spec.h"
#include "exported/program_plans.h"
#include "exported/tables.h"

namespace smelt::exported {

// The backwards of a method, which autograd's graphs own together: they may outlive the program. Thread-safe.
class BackwardPlans {
  public:
    // Tangents and reach.
    using Key = std::pair<std::vector<size_t>, size_t>;

    void add(Key key, std::shared_ptr<ProgramPlans> plans) { plans_[std::move(key)] = std::move(plans); }

    // A plan for these sizes. Throws ProgramError if there is none.
    std::shared_ptr<plan::Plan> at(const Key& key, const std::vector<int64_t>& sizes);
    bool has(const Key& key) const { return plans_.count(key) != 0; }

  private:
    std::map<Key, std::shared_ptr<ProgramPlans>> plans_;
    const std::shared_ptr<plan::ArenaBudget> budget_ =
        std::make_shared<plan::ArenaBudget>(kIdleArenas, nullptr);
};

// The node of a method for the sizes of a call.
class ProgramSpec : public autograd::Spec {
  public:
    // `forward` is only read here. `slots`: the sizes, then the values of Method::program. Throws ProgramError if `forward`
    // does not fit the method.
    ProgramSpec(const Method& method, const plan::Program& forward, std::vector<int64_t> sizes,
                const std::vector<int64_t>& slots, std::shared_ptr<BackwardPlans> backwards);

    ~ProgramSpec() override { delete_backwards(); }  // before their machine code

    const autograd::Backward& compile_backward(const autograd::Mask& mask, autograd::Reach reach,
                                               const std::vector<bool>& requested) override;

  private:
    // One plan for all sets of requested gradients. The caller holds the mutex.
    std::shared_ptr<plan::Plan> plan_for(const std::vector<size_t>& tangents, autograd::Reach reach);

    const std::vector<int64_t> sizes_;
    const std::shared_ptr<BackwardPlans> backward_plans_;
    std::map<BackwardPlans::Key, std::shared_ptr<plan::Plan>> plans_;
    std::mutex mutex_;
};

}  // namespace smelt::exported
