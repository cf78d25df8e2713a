#include "plan/program_reader.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_kernel.h"
#include "plan/boxed_arguments.h"
#include "plan/kernel_launcher.h"
#include "plan/plan.h"
#include "plan/tensor_allocation.h"

namespace smelt::plan {
namespace {

using values::FormatError;
using values::Items;
using values::Value;

c10::Device device(const Value& value) {
    return values::as<c10::Device>(value, "a device");
}

// Bytes from the first to the last element, inclusive; -1 for a layout that no memory has.
int64_t span_bytes(const Layout& l) {
    int64_t last = 0;
    for (size_t d = 0; d < l.shape.size(); ++d)
        if (l.shape[d] == 0) return 0;
    for (size_t d = 0; d < l.shape.size(); ++d) {
        int64_t step = 0;
        if (l.shape[d] < 0 || l.stride[d] < 0) return -1;
        if (__builtin_mul_overflow(l.shape[d] - 1, l.stride[d], &step)) return -1;
        if (__builtin_add_overflow(last, step, &last)) return -1;
    }
    int64_t bytes = 0;
    const auto width = static_cast<int64_t>(c10::elementSize(l.dtype));
    if (__builtin_mul_overflow(last, width, &bytes)) return -1;
    return __builtin_add_overflow(bytes, width, &bytes) ? -1 : bytes;
}

bool is_contiguous(const Layout& l) {
    int64_t expected = 1;
    for (size_t d = l.shape.size(); d-- > 0;) {
        if (l.stride[d] != expected) return false;
        expected *= l.shape[d] == 0 ? 1 : l.shape[d];
    }
    return true;
}

void derive_alloc(const Program& p, Alloc& a) {
    const int64_t bytes = span_bytes(a.layout);
    if (bytes < 0) throw FormatError("Plan: an allocation of an impossible layout");
    a.nbytes = static_cast<size_t>(bytes);
    a.contiguous = is_contiguous(a.layout);
    if (a.arena < 0) return;
    const auto at = static_cast<size_t>(a.arena);
    if (at % kAlignment != 0 || at > p.arena_bytes || a.nbytes > p.arena_bytes - at || a.device != p.device)
        throw FormatError("Plan: an allocation does not fit its arena");
}

class Reader {
  public:
    Reader(Program& p, Surroundings surroundings, SymbolicFields* symbolic)
        : p_(p), kernels_(std::move(surroundings.kernels)), symbolic_(symbolic) {
        p_.constants = std::move(surroundings.constants);
    }

    void read(const Value& spec) {
        const Items& s = values::tuple(spec, 9);
        constexpr size_t kMost = size_t{1} << 24;
        p_.n_inputs = values::index(s[0], kMost);
        p_.n_registers = values::index(s[1], kMost);
        const size_t known = p_.n_inputs + p_.constants.size();
        if (known > p_.n_registers) throw FormatError("Plan: more inputs and constants than registers");
        p_.arena_bytes = values::index(s[4], size_t{1} << 48);
        p_.release_gil = values::boolean(s[5]);
        for (auto* flags : {&p_.needs_tensor, &p_.needs_data, &p_.in_arena, &p_.written})
            flags->assign(p_.n_registers, 0);
        state_.assign(p_.n_registers, State::undefined);
        std::fill_n(state_.begin(), known, State::defined);
        p_.is_number.assign(p_.n_inputs, 0);
        for (const Value& i : values::tuple(s[6])) p_.is_number[values::index(i, p_.n_inputs)] = 1;
        p_.device = device(s[7]);
        names_.graph = values::text(s[8]);
        for (const Value& item : values::tuple(s[2])) step(values::tuple(item));
        for (const Value& item : values::tuple(s[3])) p_.outputs.push_back(output(item));
        p_.names = std::make_shared<const Names>(std::move(names_));
        derive(p_);
    }

  private:
    enum class State : uint8_t { undefined, defined, freed };

    void step(const Items& s) {
        const std::string& kind = values::text(at(s, 0));
        if (kind == "alloc") {
            add(Kind::alloc, p_.allocs, alloc(s));
        } else if (kind == "view") {
            add(Kind::view, p_.views, view(s));
        } else if (kind == "launch") {
            add(Kind::launch, p_.launches, launch(s));
            if (p_.launches.back().parts) throw FormatError("Plan: a kernel for several launches has one");
        } else if (kind == "parallel") {
            add(Kind::parallel_launch, p_.batched_launches, parallel_launch(s));
        } else if (kind == "aten") {
            add(Kind::aten, p_.atens, aten(s));
        } else if (kind == "plans") {
            add(Kind::run_plans, p_.run_plans, run_plans(s));
        } else if (kind == "free") {
            free(registers(at(s, 1)));
        } else if (kind == "bump") {
            add(Kind::bump, p_.bumps, Registers{registers(at(s, 1))});
        } else {
            throw FormatError("Plan: unknown step " + kind);
        }
    }

    static const Value& at(const Items& s, size_t i) {
        if (i >= s.size()) throw FormatError("Plan: a step with too few fields");
        return s[i];
    }

    template <class T>
    void add(Kind kind, std::vector<T>& list, T value) {
        const Step step{kind, static_cast<uint32_t>(list.size())};
        p_.steps.push_back(step);
        p_.owning_steps.push_back(step);
        list.push_back(std::move(value));
    }

    // ---- registers

    // A register that holds a tensor.
    Reg reg(const Value& value) const {
        const size_t r = values::index(value, p_.n_registers);
        if (state_[r] != State::defined)
            throw FormatError("Plan: register " + std::to_string(r) + " is read where it holds nothing");
        return static_cast<Reg>(r);
    }

    Reg optional_reg(const Value& value) const { return values::integer(value) == -1 ? -1 : reg(value); }

    std::vector<Reg> registers(const Value& value) const {
        return values::each(value, [this](const Value& item) { return reg(item); });
    }

    // A register that a step defines.
    Reg defined(const Value& value) {
        const size_t r = values::index(value, p_.n_registers);
        if (state_[r] != State::undefined)
            throw FormatError("Plan: register " + std::to_string(r) + " is defined twice");
        state_[r] = State::defined;
        return static_cast<Reg>(r);
    }

    // An input may be returned although its registers are free: the caller has the object.
    Reg output(const Value& value) const {
        if (values::integer(value) == -1) return -1;
        const size_t r = values::index(value, p_.n_registers);
        return r < p_.n_inputs ? static_cast<Reg>(r) : reg(value);
    }

    // Registers in the arena stay; inputs are freed only if the plan is their only owner.
    void free(const std::vector<Reg>& regs) {
        Registers all, own;
        for (Reg r : regs) {
            state_[r] = State::freed;
            if (p_.in_arena[r]) continue;
            all.regs.push_back(r);
            if (!p_.is_input(r)) own.regs.push_back(r);
        }
        add_free(p_.owning_steps, std::move(all));
        add_free(p_.steps, std::move(own));
    }

    void add_free(std::vector<Step>& steps, Registers registers) {
        if (registers.regs.empty()) return;
        steps.push_back({Kind::free, static_cast<uint32_t>(p_.frees.size())});
        p_.frees.push_back(std::move(registers));
    }

    // ---- numbers

    // A number; a slot, written (index,), is recorded and replaced by an arbitrary number.
    int64_t number(const Value& value, SymbolicNumber field) {
        if (const auto* known = value.get<int64_t>()) return *known;
        field.slot = slot(value);
        symbolic_->numbers.push_back(field);
        return 1;
    }

    size_t slot(const Value& value) const {
        if (!symbolic_) throw FormatError("Plan: a slot where a number is expected");
        return values::index(values::tuple(value, 1)[0], SIZE_MAX);
    }

    std::vector<int64_t> numbers(const Value& value, SymbolicNumber field) {
        const Items& items = values::tuple(value);
        std::vector<int64_t> made;
        made.reserve(items.size());
        for (const Value& item : items) {
            field.position = made.size();
            made.push_back(number(item, field));
        }
        return made;
    }

    Layout layout(const Value& shape, const Value& stride, const Value& dtype, SymbolicNumber of_shape,
                  SymbolicNumber of_stride) {
        Layout l{numbers(shape, of_shape), numbers(stride, of_stride),
                 values::as<c10::ScalarType>(dtype, "a dtype")};
        if (l.shape.size() != l.stride.size())
            throw FormatError("Plan: as many strides as sizes are expected");
        return l;
    }

    // ---- steps

    Launch launch(const Items& s) {
        const size_t at = p_.launches.size();
        if (s.size() != 9) throw FormatError("Plan: a launch with other fields");
        names_.launches.push_back(values::text(s[8]));
        Launch l{nullptr,
                 nullptr,
                 registers(s[2]),
                 number(s[3], {Field::launch_extent, at}),
                 number(s[4], {Field::launch_grain, at}),
                 0,
                 numbers(s[7], {Field::launch_size, at})};
        const Code& code = kernels_[values::index(s[1], kernels_.size())];
        if (!code.kernel) {
            l.launcher = &cpu_launcher();
            l.function = code.function;
            if (!code.function) throw FormatError("Plan: a kernel without code");
            return l;
        }
        devices::Kernel& kernel = *code.kernel;
        if (symbolic_) throw FormatError("Plan: launches on a GPU have fixed sizes");
        if (l.grain < 1) throw FormatError("Plan: a grain is at least 1");
        l.launcher = &gpu_launcher();
        l.blocks = (l.extent + l.grain - 1) / l.grain;
        l.elsewhere = static_cast<c10::DeviceIndex>(values::integer(s[6]));
        const auto device = l.elsewhere < 0 ? p_.device.index() : l.elsewhere;
        if (!p_.device.is_cuda() || device < 0) throw FormatError("Plan: a GPU's kernel in a plan for a CPU");
        l.function = kernel.on(device);
        l.threads = kernel.threads;
        l.shared = kernel.shared;
        l.parts = kernel.parts;
        l.by_value.assign(l.regs.size(), 0);
        for (const Value& pair : values::tuple(s[5])) {
            const Items& found = values::tuple(pair, 2);
            l.by_value[values::index(found[0], l.regs.size())] =
                static_cast<uint8_t>(values::index(found[1], 256));
        }
        return l;
    }

    BatchedLaunch parallel_launch(const Items& s) {
        const size_t at = p_.batched_launches.size();
        if (s.size() != 5) throw FormatError("Plan: a parallel launch with other fields");
        names_.batched_launches.push_back(values::text(s[4]));
        BatchedLaunch t{p_.launches.size(), 0, numbers(s[2], {Field::parallel_end, at}),
                        number(s[3], {Field::parallel_grain, at})};
        for (const Value& item : values::tuple(s[1])) p_.launches.push_back(launch(values::tuple(item)));
        for (size_t i = t.first; i < p_.launches.size(); ++i)
            if (p_.launches[i].parts && !p_.launches[i].sizes.empty())
                throw FormatError("Plan: a kernel for several launches is given sizes");
        t.count = t.ends.size();
        if (t.count == 0 || t.first + t.count != p_.launches.size())
            throw FormatError("Plan: launches and their work do not match");
        check_joined(t);
        return t;
    }

    // On a GPU the launches have one function, and fit its table.
    void check_joined(const BatchedLaunch& t) const {
        const Launch& first = p_.launches[t.first];
        const size_t slots = std::bit_ceil(size_t{first.parts}) + first.parts * (1 + first.regs.size());
        bool fits = first.launcher == &cpu_launcher() || (t.count <= first.parts && slots <= kTableSlots);
        for (size_t i = t.first; i < t.first + t.count; ++i) {
            const Launch& l = p_.launches[i];
            fits &= l.launcher == first.launcher && l.parts == first.parts && l.elsewhere == first.elsewhere;
            if (first.parts) fits &= l.function == first.function && l.regs.size() == first.regs.size();
            for (uint8_t bytes : l.by_value) fits &= bytes <= sizeof(int64_t);
        }
        if (!fits) throw FormatError("Plan: launches that cannot be one");
    }

    Alloc alloc(const Items& s) {
        const size_t at = p_.allocs.size();
        if (s.size() != 8) throw FormatError("Plan: an allocation with other fields");
        const Reg over = optional_reg(s[7]);
        Alloc a{defined(s[1]), layout(s[2], s[3], s[4], {Field::alloc_shape, at}, {Field::alloc_stride, at}),
                device(s[5]),  values::integer(s[6]),
                over,          0,
                false,         {}};
        a.keys = keys_of(a);
        if (!symbolic_) derive_alloc(p_, a);
        if (a.arena >= 0) {
            p_.in_arena[a.out] = 1;
        } else if (a.over >= 0 && p_.in_arena[a.over]) {
            throw FormatError("Plan: an allocation reuses memory that is not its own");
        }
        return a;
    }

    View view(const Items& s) {
        const size_t at = p_.views.size();
        if (s.size() != 7) throw FormatError("Plan: a view with other fields");
        const Reg src = reg(s[2]);
        View v{defined(s[1]),
               src,
               numbers(s[3], {Field::view_shape, at}),
               numbers(s[4], {Field::view_stride, at}),
               number(s[5], {Field::view_offset, at}),
               values::boolean(s[6]),
               false};
        v.in_arena = p_.in_arena[v.src] && !v.user_visible;
        p_.in_arena[v.out] = v.in_arena;
        return v;
    }

    static c10::OperatorHandle operator_of(const std::string& name, const std::string& overload) {
        const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
        if (!found)
            throw FormatError("Plan: an unknown operator, " + name +
                              (overload.empty() ? "" : "." + overload) + ": is its library loaded?");
        return *found;
    }

    Aten aten(const Items& s) {
        if (s.size() != 8) throw FormatError("Plan: a call with other fields");
        const std::string& name = values::text(s[1]);
        Aten a{operator_of(name, values::text(s[2])), {}, {}, {}, {}, {}, {}, false, false};
        const auto& arguments = a.op.schema().arguments();
        const Items& args = values::tuple(s[3]);
        if (args.size() != arguments.size()) throw FormatError("Plan: " + name + " has other arguments");
        for (size_t i = 0; i < args.size(); ++i) argument(a, i, arguments[i], values::tuple(args[i]));
        a.outs = values::each(
            s[4], [this](const Value& out) { return values::integer(out) == -1 ? Reg{-1} : defined(out); });
        a.expect.resize(a.outs.size());
        const Items& expect = values::tuple(s[5]);
        if (expect.size() > a.outs.size()) throw FormatError("Plan: more layouts than results");
        for (size_t i = 0; i < expect.size(); ++i) {
            if (expect[i].is_none()) continue;
            const Items& e = values::tuple(expect[i], 3);
            const size_t at = p_.atens.size();
            a.expect[i] =
                layout(e[0], e[1], e[2], {Field::expected_shape, at, i}, {Field::expected_stride, at, i});
        }
        a.user_visible = values::boolean(s[6]);
        names_.atens.push_back(values::text(s[7]));
        for (const auto& r : a.op.schema().returns()) a.aliases |= r.alias_info() != nullptr;
        return a;
    }

    // The layout of operand or result `i` of inner plans.
    Layout inner_layout(const Value& value, size_t i, Field of_shape, Field of_stride) {
        const Items& e = values::tuple(value, 3);
        const size_t at = p_.run_plans.size();
        Layout l = layout(e[0], e[1], e[2], {of_shape, at, i}, {of_stride, at, i});
        if (span_bytes(l) < 0) throw FormatError("Plan: an impossible layout");
        return l;
    }

    RunPlans::Inner inner_plan(const Value& value, size_t operands) {
        const Items& f = values::tuple(value);
        if (f.size() != 2 && !(f.size() == 3 && symbolic_))
            throw FormatError("Plan: an inner plan with other fields");
        RunPlans::Inner made{nullptr, nullptr,
                             values::each(f[1], [&](const Value& v) { return values::index(v, operands); })};
        size_t n_inputs = 0;
        if (f.size() == 2) {
            auto program = std::make_unique<Program>();
            read_program(f[0], Surroundings{{}, kernels_}, *program);
            n_inputs = program->n_inputs;
            made.plan = std::make_shared<Plan>(std::move(program));
        } else {
            auto sized = std::make_shared<SizedProgram>();
            read_program(f[0], Surroundings{{}, kernels_}, sized->program, sized->symbolic);
            sized->intervals = read_intervals(f[2]);
            n_inputs = sized->program.n_inputs;
            made.sized = std::move(sized);
        }
        if (made.takes.size() != n_inputs) throw FormatError("Plan: an inner plan with other inputs");
        return made;
    }

    static const Program& program_of(const RunPlans::Inner& inner) {
        return inner.sized ? inner.sized->program : *inner.plan->program;
    }

    // Whether the inputs of an inner plan that are numbers take 0-d tensors.
    static bool takes_numbers(const RunPlans& r, const RunPlans::Inner& inner) {
        const Program& p = program_of(inner);
        for (size_t i = 0; i < p.n_inputs; ++i)
            if (p.is_number[i] && !r.layouts[inner.takes[i]].shape.empty()) return false;
        return true;
    }

    RunPlans run_plans(const Items& s) {
        // Programs stored by versions without loops that have a backward lack `tangents`.
        if (s.size() != 10 && s.size() != 11) throw FormatError("Plan: inner plans with other fields");
        RunPlans r{};
        r.rule = inner_rule(values::text(s[1]));
        r.operands = registers(s[5]);
        r.carried = values::index(s[2], r.operands.size() + 1);
        r.plans = values::each(s[3], [&](const Value& v) { return inner_plan(v, r.operands.size()); });
        r.condition = optional_reg(s[4]);
        r.outs = values::each(
            s[6], [this](const Value& out) { return values::integer(out) == -1 ? Reg{-1} : defined(out); });
        for (const Value& e : values::tuple(s[7]))
            r.layouts.push_back(
                inner_layout(e, r.layouts.size(), Field::operand_shape, Field::operand_stride));
        for (const Value& e : values::tuple(s[8])) {
            const size_t i = r.expect.size();
            r.expect.emplace_back();
            if (!e.is_none()) r.expect[i] = inner_layout(e, i, Field::result_shape, Field::result_stride);
        }
        r.tangents = s.size() == 11 ? values::index(s[9], r.operands.size() + 1) : 0;
        names_.run_plans.push_back(values::text(s.back()));
        if (r.layouts.size() != r.operands.size() || r.expect.size() != r.outs.size() || !fits(r))
            throw FormatError("Plan: inner plans that do not fit their step");
        return r;
    }

    static RunPlans::Rule inner_rule(const std::string& rule) {
        if (rule == "cond") return RunPlans::Rule::cond;
        if (rule == "while_loop") return RunPlans::Rule::loop;
        if (rule == "recorded_while_loop") return RunPlans::Rule::recorded_loop;
        if (rule == "while_loop_backward") return RunPlans::Rule::loop_backward;
        throw FormatError("Plan: an unknown rule, " + rule);
    }

    // Whether the plans take and return what the rule needs.
    static bool fits(const RunPlans& r) {
        const auto returns = [&](size_t i) { return program_of(r.plans[i]).outputs.size(); };
        const auto returns_all = [&](const RunPlans::Inner& inner) {
            return program_of(inner).outputs.size() == r.outs.size();
        };
        const size_t outs = r.outs.size();
        for (const RunPlans::Inner& inner : r.plans)
            if (!takes_numbers(r, inner)) return false;
        switch (r.rule) {
            case RunPlans::Rule::cond:
                return r.plans.size() == 2 && r.condition >= 0 && returns(0) == outs && returns(1) == outs;
            case RunPlans::Rule::loop:
            case RunPlans::Rule::recorded_loop:
                return r.plans.size() == 2 && r.condition < 0 && returns(0) == 1 && returns(1) == r.carried &&
                       outs == r.carried + (r.rule == RunPlans::Rule::recorded_loop);
            case RunPlans::Rule::loop_backward:
                return !r.plans.empty() && std::all_of(r.plans.begin(), r.plans.end(), returns_all) &&
                       r.condition >= 0 && r.tangents <= outs && r.tangents + r.carried <= r.operands.size();
        }
        return false;
    }

    static bool takes_tensor(const c10::Type& type) {
        if (type.kind() == c10::TypeKind::OptionalType)
            return takes_tensor(*type.expectRef<c10::OptionalType>().getElementType());
        return type.kind() == c10::TypeKind::TensorType;
    }

    // Records the numbers of an argument that are slots; the program holds a sample with other numbers.
    void symbolic_argument(const Aten& a, size_t i, const Value& slots) {
        if (!symbolic_) throw FormatError("Plan: a slot where a number is expected");
        const bool is_list = a.args[i].isList();
        SymbolicArgument made{p_.atens.size(), i, is_list, {}};
        const size_t count = is_list ? a.args[i].toListRef().size() : 1;
        for (const Value& item : values::tuple(slots)) {
            const Items& pair = values::tuple(item, 2);
            made.slots.emplace_back(values::index(pair[0], count), slot(pair[1]));
        }
        if (made.slots.empty()) throw FormatError("Plan: an argument without slots");
        symbolic_->arguments.push_back(std::move(made));
    }

    void argument(Aten& a, size_t i, const c10::Argument& argument, const Items& arg) {
        const std::string& kind = values::text(at(arg, 0));
        a.args.emplace_back();
        if (kind == "reg" && !takes_tensor(*argument.type())) {
            const Reg r = reg(at(arg, 1));
            if (!p_.is_input(r) || !p_.is_number[r])
                throw FormatError("Plan: a tensor where " + argument.name() + " takes none");
            a.numbers.push_back({i, r});
        } else if (kind == "reg") {
            a.tensors.emplace_back(i, reg(at(arg, 1)));
        } else if (kind == "list") {
            list_argument(a, i, *argument.type(), at(arg, 1));
        } else if (kind == "default") {
            if (argument.default_value()) a.args.back() = *argument.default_value();
        } else {
            a.args.back() = boxed(at(arg, 1), argument);
            if (kind == "sized") symbolic_argument(a, i, at(arg, 2));
        }
    }

    void list_argument(Aten& a, size_t i, const c10::Type& type, const Value& regs) {
        const c10::Type* list = &type;
        if (type.kind() == c10::TypeKind::OptionalType)
            list = type.expectRef<c10::OptionalType>().getElementType().get();
        if (list->kind() != c10::TypeKind::ListType)
            throw FormatError("Plan: tensors where no list is taken");
        const bool optional =
            list->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
        a.lists.push_back(
            {i, values::each(regs, [&](const Value& r) { return optional ? optional_reg(r) : reg(r); }),
             optional});
    }

    Program& p_;
    const std::vector<Code> kernels_;
    std::vector<State> state_;  // of the registers, before the next step
    Names names_;
    SymbolicFields* symbolic_;  // null: no number is symbolic
};

}  // namespace

void read_program(const Value& spec, Surroundings surroundings, Program& program) {
    Reader(program, std::move(surroundings), nullptr).read(spec);
}

void read_program(const Value& spec, Surroundings surroundings, Program& program, SymbolicFields& symbolic) {
    Reader(program, std::move(surroundings), &symbolic).read(spec);
}

std::vector<SymbolicInterval> read_intervals(const Value& value) {
    return values::each(value, [](const Value& item) {
        const Items& i = values::tuple(item, 3);
        return SymbolicInterval{values::index(i[0], SIZE_MAX), values::integer(i[1]), values::integer(i[2])};
    });
}

void derive_allocs(Program& program) {
    for (Alloc& a : program.allocs) derive_alloc(program, a);
}

}  // namespace smelt::plan
