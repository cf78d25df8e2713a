#include "plan/profiler_events.h"

namespace smelt::plan {

Event event_of(at::StepCallbacks&& watching, std::string_view name) {
    auto event = std::make_unique<at::RecordFunction>(std::move(watching));
    event->before(name);
    return event;
}

Event event_of_step(std::string_view name) {
    auto event = std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION);
    if (!name.empty()) event->before(name);
    return event;
}

}  // namespace smelt::plan
