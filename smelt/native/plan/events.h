// Events of torch.profiler (and of whoever else watches torch's functions): one of a graph, within it one of each step that
// computes. A call that nobody watches looks once, before its steps, whether somebody does.
#pragma once
#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "plan/program.h"

namespace smelt::plan {

// The event of a whole graph lasts as long as this. It is one of the user's scopes, as torch.compile's are: the trace then
// shows, on a GPU's own line, from where to where its kernels are the graph's.
class GraphEvent {
  public:
    explicit GraphEvent(const Program& program) {
        auto watching = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
        if (!watching) return;
        names_ = program.names.get();
        event_.emplace(std::move(*watching)).before(std::string_view(names_->graph));
    }

    // What events of its steps are called; null where nobody watches.
    const Names* names() const { return names_; }

  private:
    const Names* names_ = nullptr;
    std::optional<at::RecordFunction> event_;
};

// The event of one step lasts as long as this. An empty name: there is none.
class StepEvent {
  public:
    explicit StepEvent(std::string_view name) {
        if (!name.empty()) event_.emplace(at::RecordScope::FUNCTION).before(name);
    }

  private:
    std::optional<at::RecordFunction> event_;
};

}  // namespace smelt::plan
