#include "exported/program_plans.h"

#include <utility>

namespace smelt::exported {
namespace {

std::vector<plan::Library> on_host(const std::vector<Library>& libraries) {
    std::vector<plan::Library> made;
    for (const Library& library : libraries) made.push_back(library.on_host);
    return made;
}

}  // namespace

ProgramPlans::ProgramPlans(const std::string& code, std::vector<Source> plans)
    : ProgramPlans(read_libraries(code), std::move(plans)) {}

ProgramPlans::ProgramPlans(std::vector<Library> libraries, std::vector<Source> plans)
    : code_(on_host(libraries)) {
    for (Library& library : libraries) images_.push_back(std::move(library.images));
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

plan::Code ProgramPlans::code_of(const KernelData& kernel) {
    const auto at = kernel.library;
    if (at >= images_.size() || images_[at].empty()) return {code_.address_of(at, kernel.name), nullptr};
    auto& made = kernels_[{at, kernel.name}];
    if (!made)
        made = std::make_unique<devices::Kernel>(images_[at], kernel.name, kernel.threads, kernel.shared,
                                                 kernel.parts);
    return {nullptr, made.get()};
}

void ProgramPlans::read(Entry& entry) {
    const PlanData data = read_plan(entry.source.section());
    plan::Surroundings surroundings{entry.source.constants, {}};
    for (const KernelData& kernel : data.kernels) surroundings.kernels.push_back(code_of(kernel));
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
