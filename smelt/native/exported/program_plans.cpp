#include "exported/program_plans.h"

#include <utility>

#include "exported/tables.h"

namespace smelt::exported {

ProgramPlans::ProgramPlans(const std::string& code, std::vector<Source> plans) : code_(read_libraries(code)) {
    for (Source& source : plans) entries_.push_back({std::move(source)});
    if (entries_.empty()) throw values::FormatError("a program without plans");
    read(entries_[0]);
}

std::unique_ptr<const plan::Program> ProgramPlans::at(const std::vector<int64_t>& sizes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Entry& entry : entries_) {
        if (!entry.is_read) read(entry);
        if (entry.fixed) return std::make_unique<const plan::Program>(*entry.fixed);
        if (entry.sized->n_sizes != sizes.size()) throw values::FormatError("a plan for other sizes");
        if (auto found = plan::program_at(*entry.sized, sizes)) return found;
    }
    return nullptr;
}

std::vector<char> ProgramPlans::written_inputs() const {
    const Entry& first = entries_[0];
    return plan::written_inputs(first.fixed ? *first.fixed : first.sized->program);
}

void ProgramPlans::read(Entry& entry) const {
    const PlanData data = read_plan(entry.source.section());
    plan::Surroundings surroundings{entry.source.constants, {}};
    for (const auto& [library, name] : data.kernels)
        surroundings.kernels.push_back({code_.address_of(library, name), nullptr});
    if (data.sizes.is_none()) {
        auto made = std::make_unique<plan::Program>();
        plan::read_program(data.spec, std::move(surroundings), *made);
        entry.fixed = std::move(made);
    } else {
        entry.sized = plan::read_template(data.spec, data.sizes, std::move(surroundings));
    }
    entry.is_read = true;
}

}  // namespace smelt::exported
