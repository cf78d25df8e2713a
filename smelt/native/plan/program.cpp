#include "plan/program.h"

namespace smelt::plan {

void derive(Program& p) {
    auto mark = [](std::vector<char>& flags, const std::vector<Reg>& regs) {
        for (Reg r : regs)
            if (r >= 0) flags[r] = 1;
    };
    for (Reg r : p.outputs)
        if (r >= static_cast<Reg>(p.n_inputs)) p.needs_tensor[r] = 1;
    for (const Launch& l : p.launches) mark(p.needs_data, l.regs);
    p.dispatches = !p.atens.empty() || !p.views.empty();
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
