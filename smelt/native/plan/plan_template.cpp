#include "plan/plan_template.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "plan/arena_placement.h"
#include "plan/plan.h"

namespace smelt::plan {
namespace {

using values::FormatError;
using values::Items;
using values::Value;

std::vector<int64_t> slots_for(const Template& t, std::vector<int64_t> sizes) {
    sizes.resize(t.n_sizes + t.instructions.size());
    const shapes::Status status = shapes::run(t.instructions, t.n_sizes, sizes.data());
    if (status == shapes::Status::overflow)
        throw std::overflow_error("PlanTemplate: sizes of more than 64 bits");
    if (status == shapes::Status::division_by_zero) throw FormatError("PlanTemplate: a division by zero");
    return sizes;
}

bool is_for(const Template& t, const std::vector<int64_t>& slots) {
    return std::all_of(t.conditions.begin(), t.conditions.end(),
                       [&](const Condition& c) { return (slots[c.slot] >= 0) == c.holds; });
}

void place_allocs(const SizedProgram& t, const std::vector<int64_t>& slots, int64_t alignment, Program& p) {
    std::vector<Interval> intervals;
    intervals.reserve(t.intervals.size());
    for (const SymbolicInterval& i : t.intervals) intervals.push_back({slots[i.nbytes], i.begin, i.end});
    const Placement placement = assign_offsets(intervals, alignment);
    p.arena_bytes = static_cast<size_t>(placement.nbytes);
    p.has_own_registers &= p.arena_bytes == 0;
    for (Alloc& a : p.allocs)
        if (a.arena >= 0) a.arena = placement.offsets[static_cast<size_t>(a.arena)];
}

std::unique_ptr<const Program> program_for(const SizedProgram& t, const std::vector<int64_t>& slots,
                                           int64_t alignment) {
    auto program = std::make_unique<Program>(t.program);
    substitute_numbers(t.symbolic, slots, *program);
    place_allocs(t, slots, alignment, *program);
    derive_allocs(*program);
    for (RunPlans& r : program->run_plans)
        for (RunPlans::Inner& inner : r.plans)
            if (inner.sized) inner.plan = std::make_shared<Plan>(program_for(*inner.sized, slots, alignment));
    return program;
}

// ------------------------------------------------------------------------------------------------ reading

void check(bool holds, const char* text) {
    if (!holds) throw FormatError(text);
}

void read_instructions(const Value& instructions, Template& t) {
    for (const Value& item : values::tuple(instructions)) {
        const Items& i = values::tuple(item, 3);
        const int64_t operation = values::integer(i[0]), a = values::integer(i[1]), b = values::integer(i[2]);
        const int64_t known = static_cast<int64_t>(t.n_sizes + t.instructions.size());
        check(operation >= 0 && operation <= static_cast<int64_t>(shapes::Operation::modulo),
              "PlanTemplate: no such operation");
        check(operation == 0 || (a >= 0 && b >= 0 && a < known && b < known),
              "PlanTemplate: a slot that is not known yet");
        t.instructions.push_back({static_cast<shapes::Operation>(operation), a, b});
    }
}

void read_sizes(const Items& sizes, Template& t) {
    t.n_sizes = values::index(sizes[0], 1 << 20);
    read_instructions(sizes[1], t);
    for (const Value& item : values::tuple(sizes[2])) {
        const Items& c = values::tuple(item, 2);
        t.conditions.push_back({values::index(c[0], SIZE_MAX), values::boolean(c[1])});
    }
    t.intervals = read_intervals(sizes[3]);
    t.alignment = values::integer(sizes[4]);
}

// `n`: the number of slots.
void check_slots(const SizedProgram& t, size_t n) {
    auto check_slot = [&](size_t slot) { check(slot < n, "PlanTemplate: no such slot"); };
    for (const SymbolicInterval& i : t.intervals) check_slot(i.nbytes);
    for (const SymbolicNumber& i : t.symbolic.numbers) check_slot(i.slot);
    for (const SymbolicArgument& a : t.symbolic.arguments)
        for (const auto& [position, slot] : a.slots) check_slot(slot);
    for (const Alloc& a : t.program.allocs)
        check(a.arena < static_cast<int64_t>(t.intervals.size()), "PlanTemplate: no such interval");
    check(t.program.device.is_cpu(), "PlanTemplate: launches on a GPU take numbers");
    for (const RunPlans& r : t.program.run_plans)
        for (const RunPlans::Inner& inner : r.plans)
            if (inner.sized) check_slots(*inner.sized, n);
}

void check_template(const Template& t) {
    const size_t n = t.n_sizes + t.instructions.size();
    for (const Condition& c : t.conditions) check(c.slot < n, "PlanTemplate: no such slot");
    check(t.alignment >= 1, "PlanTemplate: an alignment is at least 1");
    check_slots(t, n);
}

}  // namespace

std::unique_ptr<const Template> read_template(const Value& spec, const Value& sizes,
                                              Surroundings surroundings) {
    auto made = std::make_unique<Template>();
    read_sizes(values::tuple(sizes, 5), *made);
    read_program(spec, std::move(surroundings), made->program, made->symbolic);
    check_template(*made);
    return made;
}

std::unique_ptr<const Program> program_at(const Template& t, std::vector<int64_t> sizes) {
    const std::vector<int64_t> slots = slots_for(t, std::move(sizes));
    return is_for(t, slots) ? program_for(t, slots, t.alignment) : nullptr;
}

}  // namespace smelt::plan
