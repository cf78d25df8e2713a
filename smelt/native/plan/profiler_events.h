// Events of torch.profiler and of other observers: one per graph, and within it one per step that computes. A call
// without an observer checks once, before its steps, whether there is one.
#pragma once
#include <ATen/record_function.h>

#include <memory>
#include <string_view>
#include <utility>

#include "plan/program.h"

namespace smelt::plan {

// On the heap: the object is large, and rarely exists.
using Event = std::unique_ptr<at::RecordFunction>;

// Begins an event for these observers.
Event event_of(at::StepCallbacks&& watching, std::string_view name);
Event event_of_step(std::string_view name);

// The event of a whole graph, for the lifetime of the object. It is a user scope, as torch.compile's are: so the
// trace also shows the graph's kernels as a range on the line of a GPU.
class GraphEvent {
  public:
    explicit GraphEvent(const Program& program) {
        auto watching = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
        if (!watching) [[likely]]
            return;
        names_ = program.names.get();
        event_ = event_of(std::move(*watching), names_->graph);
    }

    // The names of the steps' events; null without an observer.
    const Names* names() const { return names_; }

  private:
    const Names* names_ = nullptr;
    Event event_;
};

}  // namespace smelt::plan
