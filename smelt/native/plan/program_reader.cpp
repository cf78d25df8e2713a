#include "plan/program_reader.h"

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_kernel.h"
#include "plan/kernel_launcher.h"
#include "plan/tensor_allocation.h"
#include "torch_script.h"

namespace smelt::plan {
namespace {

c10::Device device(py::handle h) {
    const auto device = as_device(h.ptr());
    if (!device) throw py::type_error("Plan: a torch.device is expected");
    return *device;
}

// Bytes from the first to the last element, inclusive.
size_t span_bytes(const Layout& l) {
    int64_t last = 0;
    for (size_t d = 0; d < l.shape.size(); ++d) {
        if (l.shape[d] == 0) return 0;
        last += (l.shape[d] - 1) * l.stride[d];
    }
    return static_cast<size_t>(last + 1) * c10::elementSize(l.dtype);
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
    a.nbytes = span_bytes(a.layout);
    a.contiguous = is_contiguous(a.layout);
    if (a.arena < 0) return;
    if (a.arena % kAlignment != 0 || a.arena + a.nbytes > p.arena_bytes || a.device != p.device)
        throw py::value_error("Plan: an allocation does not fit its arena");
}

class Reader {
  public:
    Reader(Program& p, SymbolicFields* symbolic) : p_(p), symbolic_(symbolic) {}

    void read(const py::tuple& spec) {
        p_.n_inputs = spec[0].cast<size_t>();
        p_.n_registers = spec[1].cast<size_t>();
        for (py::handle h : py::tuple(spec[2])) p_.constants.push_back(THPVariable_Unpack(h.ptr()));
        for (py::handle h : py::tuple(spec[4])) p_.outputs.push_back(h.cast<Reg>());
        p_.arena_bytes = spec[5].cast<size_t>();
        p_.release_gil = spec[6].cast<bool>();
        for (auto* flags : {&p_.needs_tensor, &p_.needs_data, &p_.in_arena, &p_.written})
            flags->assign(p_.n_registers, 0);
        p_.is_number.assign(p_.n_inputs, 0);
        for (py::handle h : py::tuple(spec[8])) p_.is_number.at(h.cast<size_t>()) = 1;
        p_.device = device(spec[9]);
        names_.graph = spec[10].cast<std::string>();
        for (py::handle h : py::tuple(spec[3])) step(py::reinterpret_borrow<py::tuple>(h));
        p_.names = std::make_shared<const Names>(std::move(names_));
        derive(p_);
    }

  private:
    void step(const py::tuple& s) {
        const auto kind = s[0].cast<std::string>();
        if (kind == "alloc") {
            add(Kind::alloc, p_.allocs, alloc(s));
        } else if (kind == "view") {
            add(Kind::view, p_.views, view(s));
        } else if (kind == "launch") {
            add(Kind::launch, p_.launches, launch(s));
            if (p_.launches.back().parts)
                throw py::value_error("Plan: a kernel for several launches has one");
        } else if (kind == "parallel") {
            add(Kind::parallel_launch, p_.batched_launches, parallel_launch(s));
        } else if (kind == "aten") {
            add(Kind::aten, p_.atens, aten(s));
        } else if (kind == "free") {
            free(s[1].cast<std::vector<Reg>>());
        } else if (kind == "bump") {
            add(Kind::bump, p_.bumps, Registers{s[1].cast<std::vector<Reg>>()});
        } else {
            throw py::value_error("Plan: unknown step " + kind);
        }
    }

    template <class T>
    void add(Kind kind, std::vector<T>& list, T value) {
        const Step step{kind, static_cast<uint32_t>(list.size())};
        p_.steps.push_back(step);
        p_.owning_steps.push_back(step);
        list.push_back(std::move(value));
    }

    // Registers in the arena stay; inputs are freed only if the plan is their only owner.
    void free(const std::vector<Reg>& regs) {
        Registers all, own;
        for (Reg r : regs) {
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

    static size_t slot(py::handle h) { return h.attr("index").cast<size_t>(); }

    // A number; a slot is recorded and replaced by an arbitrary number.
    int64_t number(py::handle h, SymbolicNumber field) {
        if (!symbolic_ || PyLong_Check(h.ptr())) return h.cast<int64_t>();
        field.slot = slot(h);
        symbolic_->numbers.push_back(field);
        return 1;
    }

    std::vector<int64_t> numbers(py::handle h, SymbolicNumber field) {
        if (!symbolic_) return h.cast<std::vector<int64_t>>();
        std::vector<int64_t> made;
        for (py::handle item : py::reinterpret_borrow<py::tuple>(h)) {
            field.position = made.size();
            made.push_back(number(item, field));
        }
        return made;
    }

    Layout layout(py::handle shape, py::handle stride, py::handle dtype, SymbolicNumber of_shape,
                  SymbolicNumber of_stride) {
        const auto type = as_dtype(dtype.ptr());
        if (!type) throw py::type_error("Plan: a torch.dtype is expected");
        Layout l{numbers(shape, of_shape), numbers(stride, of_stride), *type};
        if (l.shape.size() != l.stride.size())
            throw py::value_error("Plan: as many strides as sizes are expected");
        return l;
    }

    Launch launch(const py::tuple& s) {
        const size_t at = p_.launches.size();
        names_.launches.push_back(s[8].cast<std::string>());
        Launch l{nullptr,
                 nullptr,
                 s[2].cast<std::vector<Reg>>(),
                 number(s[3], {Field::launch_extent, at}),
                 number(s[4], {Field::launch_grain, at}),
                 0,
                 numbers(s[7], {Field::launch_size, at})};
        if (!devices::is_kernel(s[1].ptr())) {
            l.launcher = &cpu_launcher();
            l.function = reinterpret_cast<void*>(s[1].cast<uintptr_t>());  // NOLINT
            return l;
        }
        devices::Kernel& kernel = devices::as_kernel(s[1].ptr());
        l.launcher = &gpu_launcher();
        l.blocks = (l.extent + l.grain - 1) / l.grain;
        l.elsewhere = s[6].cast<c10::DeviceIndex>();
        l.function = kernel.on(l.elsewhere < 0 ? p_.device.index() : l.elsewhere);
        l.threads = kernel.threads;
        l.shared = kernel.shared;
        l.parts = kernel.parts;
        l.by_value.assign(l.regs.size(), 0);
        for (py::handle h : py::tuple(s[5])) {
            const auto [position, bytes] = h.cast<std::pair<size_t, uint8_t>>();
            l.by_value.at(position) = bytes;
        }
        return l;
    }

    BatchedLaunch parallel_launch(const py::tuple& s) {
        const size_t at = p_.batched_launches.size();
        names_.batched_launches.push_back(s[4].cast<std::string>());
        BatchedLaunch t{p_.launches.size(), 0, numbers(s[2], {Field::parallel_end, at}),
                        number(s[3], {Field::parallel_grain, at})};
        for (py::handle h : py::tuple(s[1]))
            p_.launches.push_back(launch(py::reinterpret_borrow<py::tuple>(h)));
        for (size_t i = t.first; i < p_.launches.size(); ++i)
            if (p_.launches[i].parts && !p_.launches[i].sizes.empty())
                throw py::value_error("Plan: a kernel for several launches is given sizes");
        t.count = t.ends.size();
        if (t.count == 0 || t.first + t.count != p_.launches.size())
            throw py::value_error("Plan: launches and their work do not match");
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
        if (!fits) throw py::value_error("Plan: launches that cannot be one");
    }

    Alloc alloc(const py::tuple& s) {
        const size_t at = p_.allocs.size();
        Alloc a{s[1].cast<Reg>(),
                layout(s[2], s[3], s[4], {Field::alloc_shape, at}, {Field::alloc_stride, at}),
                device(s[5]),
                s[6].cast<int64_t>(),
                s[7].cast<Reg>(),
                0,
                false,
                {}};
        a.keys = keys_of(a);
        if (!symbolic_) derive_alloc(p_, a);
        if (a.arena >= 0) {
            p_.in_arena[a.out] = 1;
        } else if (a.over >= 0 && p_.in_arena[a.over]) {
            throw py::value_error("Plan: an allocation reuses memory that is not its own");
        }
        return a;
    }

    View view(const py::tuple& s) {
        const size_t at = p_.views.size();
        View v{s[1].cast<Reg>(),
               s[2].cast<Reg>(),
               numbers(s[3], {Field::view_shape, at}),
               numbers(s[4], {Field::view_stride, at}),
               number(s[5], {Field::view_offset, at}),
               s[6].cast<bool>(),
               false};
        v.in_arena = p_.in_arena[v.src] && !v.user_visible;
        p_.in_arena[v.out] = v.in_arena;
        return v;
    }

    Aten aten(const py::tuple& s) {
        const auto name = s[1].cast<std::string>();
        const auto overload = s[2].cast<std::string>();
        Aten a{c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()),
               {},
               {},
               {},
               {},
               {},
               {},
               false,
               false};
        const auto& arguments = a.op.schema().arguments();
        const py::tuple args = s[3];
        if (args.size() != arguments.size()) throw py::value_error("Plan: " + name + " has other arguments");
        for (size_t i = 0; i < args.size(); ++i) argument(a, i, arguments[i], py::tuple(args[i]));
        a.outs = s[4].cast<std::vector<Reg>>();
        a.expect.resize(a.outs.size());
        const py::tuple expect = s[5];
        for (size_t i = 0; i < expect.size(); ++i) {
            if (expect[i].is_none()) continue;
            const py::tuple e = expect[i];
            const size_t at = p_.atens.size();
            a.expect[i] =
                layout(e[0], e[1], e[2], {Field::expected_shape, at, i}, {Field::expected_stride, at, i});
        }
        a.user_visible = s[6].cast<bool>();
        names_.atens.push_back(s[7].cast<std::string>());
        for (const auto& r : a.op.schema().returns()) a.aliases |= r.alias_info() != nullptr;
        return a;
    }

    static bool takes_tensor(const c10::Type& type) {
        if (type.kind() == c10::TypeKind::OptionalType)
            return takes_tensor(*type.expectRef<c10::OptionalType>().getElementType());
        return type.kind() == c10::TypeKind::TensorType;
    }

    // Records the numbers of an argument that are slots; the program holds a sample with other numbers.
    void symbolic_argument(const Aten& a, size_t i, const py::tuple& arg) {
        if (!symbolic_) throw py::value_error("Plan: a slot where a number is expected");
        SymbolicArgument made{p_.atens.size(), i, a.args[i].isList(), {}};
        for (py::handle h : py::tuple(arg[2])) {
            const auto pair = py::reinterpret_borrow<py::tuple>(h);
            made.slots.emplace_back(pair[0].cast<size_t>(), slot(pair[1]));
        }
        symbolic_->arguments.push_back(std::move(made));
    }

    void argument(Aten& a, size_t i, const c10::Argument& argument, const py::tuple& arg) {
        const auto kind = arg[0].cast<std::string>();
        a.args.emplace_back();
        if (kind == "reg" && !takes_tensor(*argument.type())) {
            a.numbers.push_back({i, arg[1].cast<Reg>()});
        } else if (kind == "reg") {
            a.tensors.emplace_back(i, arg[1].cast<Reg>());
        } else if (kind == "list") {
            auto element = argument.type()->kind() == c10::TypeKind::OptionalType
                               ? argument.type()->expectRef<c10::OptionalType>().getElementType()
                               : argument.type();
            const bool optional =
                element->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
            a.lists.push_back({i, arg[1].cast<std::vector<Reg>>(), optional});
        } else if (kind == "default") {
            if (argument.default_value()) a.args.back() = *argument.default_value();
        } else {
            a.args.back() = boxed(arg[1], argument);
            if (kind == "sized") symbolic_argument(a, i, arg);
        }
    }

    Program& p_;
    Names names_;
    SymbolicFields* symbolic_;  // null: no number is symbolic
};

}  // namespace

void read_program(const py::tuple& spec, Program& program) {
    Reader(program, nullptr).read(spec);
}

void read_program(const py::tuple& spec, Program& program, SymbolicFields& symbolic) {
    Reader(program, &symbolic).read(spec);
}

void derive_allocs(Program& program) {
    for (Alloc& a : program.allocs) derive_alloc(program, a);
}

}  // namespace smelt::plan
