#include "plan/program.h"

#include <type_traits>

#include "plan/caching_allocator.h"

namespace smelt::plan {
namespace {

// Bytes of a call that come from the C library's heap, which maps larger blocks by themselves.
size_t heap_bytes_of_call(const Program& p) {
    constexpr size_t kMapped = size_t{32} << 20;
    if (!p.device.is_cpu()) return 0;
    size_t bytes = p.arena_bytes < kMapped ? p.arena_bytes : 0;
    for (const Alloc& a : p.allocs)
        if (a.arena < 0 && a.nbytes < kLargeBlock) bytes += a.nbytes;
    return bytes;
}

}  // namespace

void derive(Program& p) {
    auto mark = [](std::vector<char>& flags, const std::vector<Reg>& regs) {
        for (Reg r : regs)
            if (r >= 0) flags[r] = 1;
    };
    for (Reg r : p.outputs)
        if (r >= static_cast<Reg>(p.n_inputs)) p.needs_tensor[r] = 1;
    for (const Launch& l : p.launches) mark(p.needs_data, l.regs);
    p.dispatches = !p.atens.empty() || !p.views.empty() || !p.run_plans.empty();
    p.has_own_registers = p.n_registers <= kFewRegisters && p.arena_bytes == 0 && p.constants.empty();
    for (const Registers& b : p.bumps) {
        mark(p.needs_tensor, b.regs);
        mark(p.written, b.regs);
    }
    for (const Aten& a : p.atens) {
        for (const auto& [position, reg] : a.tensors) p.needs_tensor[reg] = 1;
        for (const ListArgument& l : a.lists) mark(p.needs_tensor, l.regs);
        for (const NumberArgument& n : a.numbers) p.needs_tensor[n.reg] = 1;
    }
    for (const RunPlans& r : p.run_plans) {
        mark(p.needs_tensor, r.operands);
        if (r.condition >= 0) p.needs_tensor[r.condition] = 1;
    }
    for (size_t i = p.views.size(); i-- > 0;) {  // a view of a view follows it
        const View& v = p.views[i];
        p.needs_tensor[v.src] = 1;
        p.needs_data[v.src] |= p.needs_data[v.out];
    }
    const size_t n_held = p.n_inputs + p.constants.size();
    for (size_t r = 0; r < p.n_registers; ++r) {
        const bool is_constant = r >= p.n_inputs && r < n_held;
        if (!is_constant && !p.in_arena[r]) p.dynamic.push_back(static_cast<Reg>(r));
    }
    std::vector<char> is_dynamic(p.n_registers, 0), is_later(p.n_registers, 0);
    mark(is_dynamic, p.dynamic);
    p.is_last.assign(p.outputs.size(), 0);
    for (size_t i = p.outputs.size(); i-- > 0;) {
        const Reg r = p.outputs[i];
        if (r < 0) continue;
        p.is_last[i] = is_dynamic[r] && !is_later[r];
        is_later[r] = 1;
    }
    p.is_read.assign(p.n_inputs, 0);
    for (size_t r = 0; r < p.n_inputs; ++r) p.is_read[r] = p.needs_tensor[r] || p.needs_data[r];
    for (Reg r : p.outputs)
        if (p.is_input(r)) p.is_read[r] = 1;
}

size_t bytes_of(const Program& p) {
    auto bytes = [](const auto& items) {
        return items.capacity() * sizeof(typename std::decay_t<decltype(items)>::value_type);
    };
    auto of_layout = [&](const Layout& layout) { return bytes(layout.shape) + bytes(layout.stride); };
    constexpr size_t kPerRegister = 2 * sizeof(void*) + 4;  // of a register file, and flags
    size_t total = sizeof(Program) + p.n_registers * kPerRegister + heap_bytes_of_call(p) / 8;
    total += bytes(p.steps) + bytes(p.owning_steps) + bytes(p.allocs) + bytes(p.views) + bytes(p.launches);
    total += bytes(p.batched_launches) + bytes(p.atens) + bytes(p.frees) + bytes(p.bumps);
    for (const Alloc& a : p.allocs) total += of_layout(a.layout);
    for (const View& v : p.views) total += bytes(v.shape) + bytes(v.stride);
    for (const Launch& l : p.launches) total += bytes(l.regs) + bytes(l.sizes) + bytes(l.by_value);
    for (const BatchedLaunch& l : p.batched_launches) total += bytes(l.ends);
    for (const Registers& r : p.frees) total += bytes(r.regs);
    for (const Registers& r : p.bumps) total += bytes(r.regs);
    for (const RunPlans& r : p.run_plans) {  // not the plans, which count themselves
        total += sizeof(RunPlans) + bytes(r.operands) + bytes(r.layouts) + bytes(r.outs) + bytes(r.expect);
        for (const Layout& layout : r.layouts) total += of_layout(layout);
    }
    for (const Aten& a : p.atens) {
        total += bytes(a.args) + bytes(a.tensors) + bytes(a.lists) + bytes(a.numbers) + bytes(a.outs);
        total += bytes(a.expect);
        for (const auto& layout : a.expect)
            if (layout) total += of_layout(*layout);
    }
    return total;
}

std::vector<char> written_inputs(const Program& p) {
    std::vector<Reg> root(p.n_registers);
    for (size_t r = 0; r < p.n_registers; ++r) root[r] = static_cast<Reg>(r);
    for (const View& v : p.views) root[v.out] = root[v.src];  // a view of a view follows it
    std::vector<char> written(p.n_inputs, 0);
    auto write = [&](Reg r) {
        if (r >= 0 && p.is_input(root[r])) written[root[r]] = 1;
    };
    for (const Registers& b : p.bumps)
        for (Reg r : b.regs) write(r);
    for (const Aten& a : p.atens) {
        const auto& arguments = a.op.schema().arguments();
        auto is_written = [&](size_t i) {
            return arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
        };
        for (const auto& [position, reg] : a.tensors)
            if (is_written(position)) write(reg);
        for (const ListArgument& l : a.lists)
            if (is_written(l.position))
                for (Reg r : l.regs) write(r);
    }
    return written;
}

}  // namespace smelt::plan
