// Events of torch.profiler (and of whoever else watches torch's functions): one of a graph, within it one of each step that
// computes. A call that nobody watches looks once, before its steps, whether somebody does.
#pragma once
#include <ATen/record_function.h>

#include <memory>
#include <string_view>
#include <utility>

#include "plan/program.h"

namespace smelt::plan {

// Not in place where it lasts: it is large, and mostly not there.
using Event = std::unique_ptr<at::RecordFunction>;

// Begins an event of those who watch.
Event event_of(at::StepCallbacks&& watching, std::string_view name);
Event event_of_step(std::string_view name);

// The event of a whole graph lasts as long as this. It is one of the user's scopes, as torch.compile's are: the trace then
// shows, on a GPU's own line, from where to where its kernels are the graph's.
class GraphEvent {
  public:
    explicit GraphEvent(const Program& program) {
        auto watching = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
        if (!watching) [[likely]]
            return;
        names_ = program.names.get();
        event_ = event_of(std::move(*watching), names_->graph);
    }

    // What events of its steps are called; null where nobody watches.
    const Names* names() const { return names_; }

  private:
    const Names* names_ = nullptr;
    Event event_;
};

}  // namespace smelt::plan
