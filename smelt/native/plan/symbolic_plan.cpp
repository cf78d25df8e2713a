#include "plan/symbolic_plan.h"

#include <ATen/ScalarOps.h>

#include <stdexcept>

namespace smelt::plan {
namespace {

int64_t& number_of(Program& p, const SymbolicNumber& at) {
    switch (at.field) {
        case Field::alloc_shape:
            return p.allocs[at.index].layout.shape[at.position];
        case Field::alloc_stride:
            return p.allocs[at.index].layout.stride[at.position];
        case Field::view_shape:
            return p.views[at.index].shape[at.position];
        case Field::view_stride:
            return p.views[at.index].stride[at.position];
        case Field::view_offset:
            return p.views[at.index].offset;
        case Field::launch_extent:
            return p.launches[at.index].extent;
        case Field::launch_grain:
            return p.launches[at.index].grain;
        case Field::launch_size:
            return p.launches[at.index].sizes[at.position];
        case Field::parallel_end:
            return p.batched_launches[at.index].ends[at.position];
        case Field::parallel_grain:
            return p.batched_launches[at.index].grain;
        case Field::expected_shape:
            return p.atens[at.index].expect[at.out]->shape[at.position];
        case Field::expected_stride:
            return p.atens[at.index].expect[at.out]->stride[at.position];
        case Field::operand_shape:
            return p.run_plans[at.index].layouts[at.out].shape[at.position];
        case Field::operand_stride:
            return p.run_plans[at.index].layouts[at.out].stride[at.position];
        case Field::result_shape:
            return p.run_plans[at.index].expect[at.out]->shape[at.position];
        case Field::result_stride:
            return p.run_plans[at.index].expect[at.out]->stride[at.position];
    }
    throw std::logic_error("a number of no step");
}

// The number as an operator's argument of the same type as `sample`: a tensor becomes a 0-d tensor, as in torch.
c10::IValue boxed_like(const c10::IValue& sample, int64_t number) {
    if (sample.isInt()) return number;
    if (sample.isDouble()) return static_cast<double>(number);
    if (!sample.isTensor()) throw std::invalid_argument("Plan: a size where an operator takes no number");
    at::Tensor t = at::scalar_to_tensor(number);
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

c10::IValue list_with(const c10::IValue& sample, const SymbolicArgument& argument,
                      const std::vector<int64_t>& slots) {
    c10::List<c10::IValue> list = sample.toList().copy();
    for (const auto& [position, slot] : argument.slots)
        list.set(position, boxed_like(list.get(position), slots[slot]));
    return list;
}

}  // namespace

void substitute_numbers(const SymbolicFields& symbolic, const std::vector<int64_t>& slots, Program& program) {
    for (const SymbolicNumber& n : symbolic.numbers) number_of(program, n) = slots[n.slot];
    for (const SymbolicArgument& a : symbolic.arguments) {
        c10::IValue& value = program.atens[a.index].args[a.argument];
        value = a.is_list ? list_with(value, a, slots) : boxed_like(value, slots[a.slots[0].second]);
    }
}

}  // namespace smelt::plan
