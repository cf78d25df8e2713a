// smelt._native.Plan: runs the steps of one compiled graph (smelt/codegen/plan.py says what each step means).
//
// A call borrows a `Frame`: the registers, with every tensor that lives in the arena built beforehand, so
// that a call allocates only what it returns. Frames are private to a call; idle ones wait in a list for the
// next call, at most `kIdleFrames` of them. What always holds between calls: a frame's dynamic registers are
// empty.
//
// Dispatch: steps run below autograd, ADInplaceOrView and autocast (the trace was recorded there). Steps
// marked `user_visible` run with the caller's own dispatch state, as if the user's eager code had made the
// call.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_numbers.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "blocks.h"
#include "layout.h"
#include "module.h"
#include "plan.h"
// After Python.h, which it does not include itself.
#include <structmember.h>

namespace smelt {
namespace {

constexpr size_t kIdleFrames = 1;
constexpr size_t kAlignment = 64;

using Kernel = void (*)(void**, int64_t, int64_t);
using Reg = int32_t;  // -1: none

struct Alloc {
    Reg out;
    Layout layout;
    c10::Device device;
    int64_t arena;  // byte offset, -1: memory of its own
    size_t nbytes;
    bool contiguous;
};

struct View {
    Reg out, src;
    std::vector<int64_t> shape, stride;
    int64_t offset;  // elements
    bool user_visible;
    bool in_arena;  // built with the frame
};

struct Launch {
    Kernel function;
    std::vector<Reg> regs;
    int64_t extent, grain;
};

// Launches that do not depend on one another, shared among threads as one piece of work.
struct Together {
    size_t first, count;        // of Program::launches
    std::vector<int64_t> ends;  // work of the launches up to and with each
    int64_t grain;
};

struct NumberArgument {  // a register that holds a number, where the operator takes no tensor
    size_t position;
    Reg reg;
};

struct ListArgument {
    size_t position;
    std::vector<Reg> regs;
    bool optional;  // Tensor?[]
};

struct Aten {
    c10::OperatorHandle op;
    std::vector<c10::IValue> args;                // None where a register goes
    std::vector<std::pair<size_t, Reg>> tensors;  // position, register
    std::vector<ListArgument> lists;
    std::vector<NumberArgument> numbers;
    std::vector<Reg> outs;
    std::vector<std::optional<Layout>> expect;  // per out: what kernels that take its pointer rely on
    bool user_visible;
    bool aliases;  // the schema says that a result shares memory with an argument
};

struct Registers {
    std::vector<Reg> regs;
};

enum class Kind : uint8_t { alloc, view, launch, together, aten, free, bump };

struct Step {
    Kind kind;
    uint32_t index;  // into the vector of its kind
};

struct Program {
    size_t n_inputs = 0, n_registers = 0, arena_bytes = 0;
    std::vector<at::Tensor> constants;
    std::vector<Step> steps, owning_steps;  // the latter also free each input after its last use
    std::vector<Alloc> allocs;
    std::vector<View> views;
    std::vector<Launch> launches;
    std::vector<Together> togethers;
    std::vector<Aten> atens;
    std::vector<Registers> frees, bumps;
    std::vector<Reg> outputs;
    bool release_gil = false;
    // Derived:
    std::vector<char> needs_tensor, needs_data, in_arena, written;  // per register
    std::vector<char> is_number, is_read;  // per input; is_read: returned, or by a step
    std::vector<Reg> dynamic;              // registers to empty after a call
};

// ------------------------------------------------------------------------------------------------ frames

struct Frame {
    std::shared_ptr<c10::DataPtr> arena;
    std::vector<at::Tensor> tensors;  // per register
    std::vector<void*> data;          // per register, address of the first element
    torch::jit::Stack stack;

    bool owns(const at::Tensor& t) const {
        if (!arena || !t.defined() || !t.has_storage()) return false;
        auto* p = static_cast<const char*>(t.storage().data());
        auto* base = static_cast<const char*>(arena->get());
        return p >= base && p < base + bytes;
    }
    size_t bytes = 0;
};

// An arena tensor has a storage of its own, not resizable, that keeps the whole arena alive: an operator that
// holds on to it sees stale values at worst, never freed memory, and one that resizes it gets an error.
at::Tensor arena_tensor(const Alloc& a, const std::shared_ptr<c10::DataPtr>& arena) {
    auto* owner = new std::shared_ptr<c10::DataPtr>(arena);
    auto deleter = [](void* p) { delete static_cast<std::shared_ptr<c10::DataPtr>*>(p); };
    c10::DataPtr data(static_cast<char*>(arena->get()) + a.arena, owner, deleter, c10::Device(c10::kCPU));
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(a.nbytes), std::move(data), nullptr, false);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

// `as_strided` below the dispatcher: for tensors that only steps of the plan see.
at::Tensor raw_view(const View& v, const at::Tensor& src) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(src.storage()),
                                                      src.key_set(), src.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(v.shape, v.stride, src.storage_offset() + v.offset);
    return t;
}

at::Tensor allocate(const Alloc& a) {
    if (!a.device.is_cpu())
        return at::empty_strided(a.layout.shape, a.layout.stride,
                                 at::TensorOptions(a.layout.dtype).device(a.device));
    c10::DataPtr memory =
        a.nbytes >= kLargeBlock ? take_block(a.nbytes) : c10::GetCPUAllocator()->allocate(a.nbytes);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), a.nbytes,
                                                         std::move(memory), c10::GetCPUAllocator(), true);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    if (a.contiguous)
        t.unsafeGetTensorImpl()->set_sizes_contiguous(a.layout.shape);
    else
        t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

std::unique_ptr<Frame> make_frame(const Program& p) {
    // Arena tensors are ordinary ones, whatever mode the first caller is in.
    c10::InferenceMode ordinary(false);
    auto frame = std::make_unique<Frame>();
    frame->tensors.resize(p.n_registers);
    frame->data.resize(p.n_registers, nullptr);
    for (size_t i = 0; i < p.constants.size(); ++i) frame->tensors[p.n_inputs + i] = p.constants[i];
    if (p.arena_bytes == 0) return frame;
    frame->bytes = p.arena_bytes;
    frame->arena = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(p.arena_bytes));
    for (const Step& s : p.steps) {
        if (s.kind == Kind::alloc && p.allocs[s.index].arena >= 0) {
            const Alloc& a = p.allocs[s.index];
            frame->tensors[a.out] = arena_tensor(a, frame->arena);
            frame->data[a.out] = static_cast<char*>(frame->arena->get()) + a.arena;
        } else if (s.kind == Kind::view && p.views[s.index].in_arena) {
            const View& v = p.views[s.index];
            frame->tensors[v.out] = raw_view(v, frame->tensors[v.src]);
            frame->data[v.out] =
                static_cast<char*>(frame->data[v.src]) + v.offset * frame->tensors[v.out].element_size();
        }
    }
    return frame;
}

// ------------------------------------------------------------------------------------------------ running

class Run {
  public:
    Run(const Program& p, Frame& f) : p_(p), f_(f), caller_(c10::impl::tls_local_dispatch_key_set()) {}

    void operator()(const std::vector<Step>& steps) {
        c10::impl::ForceDispatchKeyGuard guard(below_autograd(caller_));
        for (const Step& s : steps) {
            switch (s.kind) {
                case Kind::launch:
                    launch(p_.launches[s.index]);
                    break;
                case Kind::together:
                    together(p_.togethers[s.index]);
                    break;
                case Kind::alloc:
                    alloc(p_.allocs[s.index]);
                    break;
                case Kind::view:
                    view(p_.views[s.index]);
                    break;
                case Kind::aten:
                    aten(p_.atens[s.index]);
                    break;
                case Kind::free:
                    for (Reg r : p_.frees[s.index].regs) f_.tensors[r].reset();
                    break;
                case Kind::bump:
                    for (Reg r : p_.bumps[s.index].regs) f_.tensors[r].unsafeGetTensorImpl()->bump_version();
                    break;
            }
        }
    }

  private:
    void alloc(const Alloc& a) {
        if (a.arena >= 0) return;
        f_.tensors[a.out] = allocate(a);
        if (p_.needs_data[a.out]) f_.data[a.out] = f_.tensors[a.out].unsafeGetTensorImpl()->mutable_data();
    }

    void view(const View& v) {
        if (v.in_arena) return;
        const at::Tensor& src = f_.tensors[v.src];
        if (v.user_visible) {
            c10::impl::ForceDispatchKeyGuard guard(caller_);
            f_.tensors[v.out] = src.as_strided(v.shape, v.stride, src.storage_offset() + v.offset);
        } else {
            f_.tensors[v.out] = raw_view(v, src);
        }
        if (p_.needs_data[v.out])
            f_.data[v.out] =
                static_cast<char*>(f_.data[v.src]) + v.offset * static_cast<int64_t>(src.element_size());
    }

    void launch(const Launch& l) {
        c10::SmallVector<void*, 32> buffers(l.regs.size());
        for (size_t i = 0; i < l.regs.size(); ++i) buffers[i] = f_.data[l.regs[i]];
        if (l.extent <= l.grain) {
            l.function(buffers.data(), 0, l.extent);
            return;
        }
        at::parallel_for(0, l.extent, l.grain,
                         [&](int64_t begin, int64_t end) { l.function(buffers.data(), begin, end); });
    }

    void together(const Together& t) {
        const int64_t total = t.ends.back();
        if (total <= t.grain) return share(t, 0, total);
        at::parallel_for(0, total, t.grain, [&](int64_t begin, int64_t end) { share(t, begin, end); });
    }

    // The items of all launches that are in [begin, end) of the work.
    void share(const Together& t, int64_t begin, int64_t end) {
        c10::SmallVector<void*, 32> buffers;
        auto i = static_cast<size_t>(std::upper_bound(t.ends.begin(), t.ends.end(), begin) - t.ends.begin());
        for (int64_t start = i ? t.ends[i - 1] : 0; i < t.count && start < end; start = t.ends[i++]) {
            const Launch& l = p_.launches[t.first + i];
            const int64_t work = t.ends[i] - start;
            auto item = [&](int64_t at) {
                return at <= start ? 0 : at - start >= work ? l.extent : l.extent * (at - start) / work;
            };
            const int64_t first = item(begin), last = item(end);
            if (first >= last) continue;
            buffers.clear();
            for (Reg r : l.regs) buffers.push_back(f_.data[r]);
            l.function(buffers.data(), first, last);
        }
    }

    void aten(const Aten& a) {
        // A custom operator may call this very plan again: that call has a frame, and so a stack, of its own.
        torch::jit::Stack& stack = f_.stack;
        stack.assign(a.args.begin(), a.args.end());
        for (const auto& [position, reg] : a.tensors) stack[position] = f_.tensors[reg];
        for (const ListArgument& l : a.lists) stack[l.position] = list(l);
        for (const NumberArgument& n : a.numbers) stack[n.position] = number(f_.tensors[n.reg]);
        if (a.user_visible) {
            c10::impl::ForceDispatchKeyGuard guard(caller_);
            a.op.callBoxed(stack);
        } else {
            a.op.callBoxed(stack);
        }
        take_results(a, stack);
        stack.clear();
    }

    static c10::IValue number(const at::Tensor& t) {
        if (t.scalar_type() == at::kDouble) return *t.const_data_ptr<double>();
        return *t.const_data_ptr<int64_t>();
    }

    c10::IValue list(const ListArgument& l) const {
        if (l.optional) {
            c10::List<std::optional<at::Tensor>> tensors;
            tensors.reserve(l.regs.size());
            for (Reg r : l.regs) tensors.push_back(r < 0 ? std::optional<at::Tensor>() : f_.tensors[r]);
            return tensors;
        }
        c10::List<at::Tensor> tensors;
        tensors.reserve(l.regs.size());
        for (Reg r : l.regs) tensors.push_back(f_.tensors[r]);
        return tensors;
    }

    void take_results(const Aten& a, torch::jit::Stack& stack) {
        size_t i = 0;
        auto take = [&](at::Tensor t) {
            if (i < a.outs.size() && a.outs[i] >= 0) set_result(a, i, std::move(t));
            ++i;
        };
        for (c10::IValue& value : stack) {
            if (value.isTensor()) {
                take(std::move(value).toTensor());
            } else if (value.isTensorList()) {
                for (const at::Tensor& t : value.toTensorVector()) take(t);
            } else {
                ++i;
            }
        }
    }

    void set_result(const Aten& a, size_t i, at::Tensor t) {
        // The planner reuses arena memory; a result that shares it although its schema does not say so gets
        // its own.
        if (!a.aliases && f_.owns(t)) t = t.clone();
        if (a.expect[i]) t = conform(a, *a.expect[i], std::move(t));
        const Reg reg = a.outs[i];
        if (p_.needs_data[reg]) f_.data[reg] = t.unsafeGetTensorImpl()->mutable_data();
        f_.tensors[reg] = std::move(t);
    }

    static std::string disagreement(const Aten& a, const Layout& want, const at::Tensor& t) {
        return "smelt: " + c10::toString(a.op.operator_name()) + " returned " +
               (t.defined() ? described(t.scalar_type(), t.sizes()) : "no tensor") + ", but " +
               described(want.dtype, want.shape) +
               " was seen when the graph was captured. Its fake (meta) implementation disagrees with the "
               "real one.";
    }

    // Kernels address memory by the strides that the trace predicted; an operator may return others (it
    // chooses a library at run time).
    at::Tensor conform(const Aten& a, const Layout& want, at::Tensor t) const {
        TORCH_CHECK(want.describes(t), disagreement(a, want, t));
        return want.has_strides_of(t) ? t : want.copy_of(t);
    }

    const Program& p_;
    Frame& f_;
    const c10::impl::LocalDispatchKeySet caller_;
};

class ReleaseGil {
  public:
    explicit ReleaseGil(bool release) : state_(release ? PyEval_SaveThread() : nullptr) {}
    ~ReleaseGil() {
        if (state_) PyEval_RestoreThread(state_);
    }
    ReleaseGil(const ReleaseGil&) = delete;
    ReleaseGil& operator=(const ReleaseGil&) = delete;

  private:
    PyThreadState* state_;
};

struct PlanObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Program* program;
    PyObject* keepalive;  // owners of the machine code
    std::mutex* mutex;    // guards `idle`
    std::vector<std::unique_ptr<Frame>>* idle;
    PyObject* weakrefs;
};

// A frame for the length of one call.
class Borrowed {
  public:
    explicit Borrowed(PlanObject* plan) : plan_(plan) {
        {
            std::lock_guard<std::mutex> lock(*plan->mutex);
            if (!plan->idle->empty()) {
                frame_ = std::move(plan->idle->back());
                plan->idle->pop_back();
            }
        }
        if (!frame_) frame_ = make_frame(*plan->program);
    }

    ~Borrowed() {
        for (Reg r : plan_->program->dynamic) frame_->tensors[r].reset();
        frame_->stack.clear();
        std::lock_guard<std::mutex> lock(*plan_->mutex);
        if (plan_->idle->size() < kIdleFrames) plan_->idle->push_back(std::move(frame_));
    }

    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Frame& operator*() { return *frame_; }

  private:
    PlanObject* plan_;
    std::unique_ptr<Frame> frame_;
};

void set_address(const Program& p, Frame& f, size_t i, const at::Tensor& t) {
    auto* impl = t.unsafeGetTensorImpl();
    if (p.needs_data[i]) f.data[i] = p.written[i] ? impl->mutable_data() : const_cast<void*>(impl->data());
}

void set_constant_addresses(const Program& p, Frame& f) {
    for (size_t i = p.n_inputs; i < p.n_inputs + p.constants.size(); ++i)
        if (p.needs_data[i]) f.data[i] = f.tensors[i].unsafeGetTensorImpl()->mutable_data();
}

// False with a Python error.
bool bind_inputs(const Program& p, Frame& f, PyObject* inputs) {
    if (static_cast<size_t>(PyTuple_GET_SIZE(inputs)) != p.n_inputs) {
        PyErr_Format(PyExc_TypeError, "Plan: %zu inputs expected, got %zd", p.n_inputs,
                     PyTuple_GET_SIZE(inputs));
        return false;
    }
    for (size_t i = 0; i < p.n_inputs; ++i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        if (p.is_number[i]) {
            if (!PyFloat_CheckExact(item) && !PyLong_CheckExact(item)) {
                PyErr_Format(PyExc_TypeError, "Plan: input %zu must be a number, got %s", i,
                             Py_TYPE(item)->tp_name);
                return false;
            }
            f.tensors[i] = number_tensor(item);
            f.data[i] = f.tensors[i].unsafeGetTensorImpl()->mutable_data();
            continue;
        }
        if (!THPVariable_Check(item)) {
            PyErr_Format(PyExc_TypeError, "Plan: input %zu must be a Tensor, got %s", i,
                         Py_TYPE(item)->tp_name);
            return false;
        }
        const at::Tensor& t = THPVariable_Unpack(item);
        set_address(p, f, i, t);
        if (p.needs_tensor[i]) f.tensors[i] = t;
    }
    set_constant_addresses(p, f);
    return true;
}

// An input that is returned is the very object that came in.
PyObject* collect_outputs(const Program& p, Frame& f, PyObject* inputs) {
    PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(p.outputs.size()));
    if (!result) return nullptr;
    for (size_t i = 0; i < p.outputs.size(); ++i) {
        const Reg r = p.outputs[i];
        PyObject* item = r < 0                                 ? Py_None
                         : static_cast<size_t>(r) < p.n_inputs ? PyTuple_GET_ITEM(inputs, r)
                                                               : nullptr;
        if (item)
            Py_INCREF(item);
        else
            item = THPVariable_Wrap(f.tensors[r]);
        if (!item) {
            Py_DECREF(result);
            return nullptr;
        }
        PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), item);
    }
    return result;
}

PyObject* plan_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    auto* plan = reinterpret_cast<PlanObject*>(self);
    const Program& p = *plan->program;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Plan: call it with one tuple of tensors");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    Borrowed frame(plan);
    if (!bind_inputs(p, *frame, args[0])) return nullptr;
    {
        ReleaseGil gil(p.release_gil);
        Run(p, *frame)(p.steps);
    }
    return collect_outputs(p, *frame, args[0]);
    END_HANDLE_TH_ERRORS
}

// ------------------------------------------------------------------------------------------------ reading
// the spec

std::vector<int64_t> integers(py::handle h) {
    return h.cast<std::vector<int64_t>>();
}

c10::Device device(py::handle h) {
    if (!THPDevice_Check(h.ptr())) throw py::type_error("Plan: a torch.device is expected");
    return reinterpret_cast<THPDevice*>(h.ptr())->device;
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

class Reader {
  public:
    explicit Reader(Program& p) : p_(p) {}

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
        for (py::handle h : py::tuple(spec[3])) step(py::reinterpret_borrow<py::tuple>(h));
        derive();
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
        } else if (kind == "together") {
            add(Kind::together, p_.togethers, together(s));
        } else if (kind == "aten") {
            add(Kind::aten, p_.atens, aten(s));
        } else if (kind == "free") {
            Registers dynamic;  // arena registers stay built
            for (Reg r : s[1].cast<std::vector<Reg>>())
                if (!p_.in_arena[r]) dynamic.regs.push_back(r);
            if (!dynamic.regs.empty()) add(Kind::free, p_.frees, std::move(dynamic));
        } else if (kind == "bump") {
            add(Kind::bump, p_.bumps, Registers{s[1].cast<std::vector<Reg>>()});
        } else {
            throw py::value_error("Plan: unknown step " + kind);
        }
    }

    template <class T>
    void add(Kind kind, std::vector<T>& list, T value) {
        p_.steps.push_back({kind, static_cast<uint32_t>(list.size())});
        list.push_back(std::move(value));
    }

    static Launch launch(const py::tuple& s) {
        auto* function = reinterpret_cast<Kernel>(s[1].cast<uintptr_t>());  // NOLINT
        return {function, s[2].cast<std::vector<Reg>>(), s[3].cast<int64_t>(), s[4].cast<int64_t>()};
    }

    Together together(const py::tuple& s) {
        Together t{p_.launches.size(), 0, {}, s[3].cast<int64_t>()};
        int64_t total = 0;
        for (py::handle h : py::tuple(s[1]))
            p_.launches.push_back(launch(py::reinterpret_borrow<py::tuple>(h)));
        for (py::handle h : py::tuple(s[2])) t.ends.push_back(total += h.cast<int64_t>());
        t.count = t.ends.size();
        if (t.count == 0 || t.first + t.count != p_.launches.size())
            throw py::value_error("Plan: launches and their work do not match");
        return t;
    }

    Alloc alloc(const py::tuple& s) {
        Alloc a{s[1].cast<Reg>(), layout(s[2], s[3], s[4]), device(s[5]), s[6].cast<int64_t>(), 0, false};
        a.nbytes = span_bytes(a.layout);
        a.contiguous = is_contiguous(a.layout);
        if (a.arena >= 0) {
            if (a.arena % kAlignment != 0 || a.arena + a.nbytes > p_.arena_bytes || !a.device.is_cpu())
                throw py::value_error("Plan: an allocation does not fit its arena");
            p_.in_arena[a.out] = 1;
        }
        return a;
    }

    View view(const py::tuple& s) {
        View v{s[1].cast<Reg>(),     s[2].cast<Reg>(),  integers(s[3]), integers(s[4]),
               s[5].cast<int64_t>(), s[6].cast<bool>(), false};
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
            a.expect[i] = layout(e[0], e[1], e[2]);
        }
        a.user_visible = s[6].cast<bool>();
        for (const auto& r : a.op.schema().returns()) a.aliases |= r.alias_info() != nullptr;
        return a;
    }

    static bool takes_tensor(const c10::Type& type) {
        if (type.kind() == c10::TypeKind::OptionalType)
            return takes_tensor(*type.expectRef<c10::OptionalType>().getElementType());
        return type.kind() == c10::TypeKind::TensorType;
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
            a.args.back() = torch::jit::toIValue(arg[1], argument.type(), argument.N());
        }
    }

    void derive() {
        auto mark = [](std::vector<char>& flags, const std::vector<Reg>& regs) {
            for (Reg r : regs)
                if (r >= 0) flags[r] = 1;
        };
        for (Reg r : p_.outputs)
            if (r >= static_cast<Reg>(p_.n_inputs)) p_.needs_tensor[r] = 1;
        for (const Launch& l : p_.launches) mark(p_.needs_data, l.regs);
        for (const Registers& b : p_.bumps) {
            mark(p_.needs_tensor, b.regs);
            mark(p_.written, b.regs);
        }
        for (const Aten& a : p_.atens) {
            for (const auto& [position, reg] : a.tensors) p_.needs_tensor[reg] = 1;
            for (const ListArgument& l : a.lists) mark(p_.needs_tensor, l.regs);
            for (const NumberArgument& n : a.numbers) p_.needs_tensor[n.reg] = 1;
        }
        for (size_t i = p_.views.size(); i-- > 0;) {  // a view of a view stands after it
            const View& v = p_.views[i];
            p_.needs_tensor[v.src] = 1;
            p_.needs_data[v.src] |= p_.needs_data[v.out];
        }
        const size_t n_held = p_.n_inputs + p_.constants.size();
        for (size_t r = 0; r < p_.n_registers; ++r) {
            const bool is_constant = r >= p_.n_inputs && r < n_held;
            if (!is_constant && !p_.in_arena[r]) p_.dynamic.push_back(static_cast<Reg>(r));
        }
        free_inputs();
    }

    // What a register is made of may outlive it: views and results hold the memory that they share.
    void free_inputs() {
        constexpr size_t kNever = SIZE_MAX;
        std::vector<size_t> last(p_.n_inputs, kNever);
        p_.is_read.assign(p_.n_inputs, 0);
        for (size_t i = 0; i < p_.steps.size(); ++i)
            for (Reg r : reads(p_.steps[i]))
                if (is_input(r)) last[r] = i;
        for (size_t r = 0; r < p_.n_inputs; ++r) p_.is_read[r] = last[r] != kNever;
        for (Reg r : p_.outputs) {
            if (!is_input(r)) continue;
            last[r] = kNever;
            p_.is_read[r] = 1;
        }
        std::vector<Registers> ending(p_.steps.size());
        for (size_t r = 0; r < p_.n_inputs; ++r)
            if (last[r] != kNever) ending[last[r]].regs.push_back(static_cast<Reg>(r));
        for (size_t i = 0; i < p_.steps.size(); ++i) {
            p_.owning_steps.push_back(p_.steps[i]);
            if (ending[i].regs.empty()) continue;
            p_.owning_steps.push_back({Kind::free, static_cast<uint32_t>(p_.frees.size())});
            p_.frees.push_back(std::move(ending[i]));
        }
    }

    std::vector<Reg> reads(const Together& t) const {
        std::vector<Reg> regs;
        for (size_t i = t.first; i < t.first + t.count; ++i)
            regs.insert(regs.end(), p_.launches[i].regs.begin(), p_.launches[i].regs.end());
        return regs;
    }

    bool is_input(Reg r) const { return r >= 0 && static_cast<size_t>(r) < p_.n_inputs; }

    std::vector<Reg> reads(const Step& s) const {
        if (s.kind == Kind::view) return {p_.views[s.index].src};
        if (s.kind == Kind::launch) return p_.launches[s.index].regs;
        if (s.kind == Kind::together) return reads(p_.togethers[s.index]);
        if (s.kind == Kind::bump) return p_.bumps[s.index].regs;
        if (s.kind != Kind::aten) return {};
        const Aten& a = p_.atens[s.index];
        std::vector<Reg> regs;
        for (const auto& [position, reg] : a.tensors) regs.push_back(reg);
        for (const NumberArgument& n : a.numbers) regs.push_back(n.reg);
        for (const ListArgument& l : a.lists) regs.insert(regs.end(), l.regs.begin(), l.regs.end());
        return regs;
    }

    Program& p_;
};

// ------------------------------------------------------------------------------------------------ the Python
// type

PyObject* plan_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* spec = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "O!:Plan", &PyTuple_Type, &spec)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "Plan takes one tuple");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto program = std::make_unique<Program>();
    Reader(*program).read(py::reinterpret_borrow<py::tuple>(spec));
    auto* self = reinterpret_cast<PlanObject*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = plan_call;
    self->program = program.release();
    self->keepalive = Py_NewRef(PyTuple_GET_ITEM(spec, 7));
    self->mutex = new std::mutex;
    self->idle = new std::vector<std::unique_ptr<Frame>>;
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

void plan_dealloc(PyObject* object) {
    auto* self = reinterpret_cast<PlanObject*>(object);
    PyTypeObject* type = Py_TYPE(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    delete self->idle;
    delete self->mutex;
    delete self->program;
    Py_XDECREF(self->keepalive);
    type->tp_free(object);
    Py_DECREF(type);
}

size_t drop_idle(PlanObject* plan) {
    std::vector<std::unique_ptr<Frame>> idle;
    {
        std::lock_guard<std::mutex> lock(*plan->mutex);
        idle.swap(*plan->idle);
    }
    size_t bytes = 0;
    for (const auto& frame : idle) bytes += frame->bytes;
    return bytes;
}

PyObject* plan_release(PyObject* self, PyObject*) {
    return PyLong_FromSize_t(drop_idle(reinterpret_cast<PlanObject*>(self)));
}

PyObject* plan_arena_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(reinterpret_cast<PlanObject*>(self)->program->arena_bytes);
}

PyObject* plan_idle_bytes(PyObject* self, void*) {
    auto* plan = reinterpret_cast<PlanObject*>(self);
    std::lock_guard<std::mutex> lock(*plan->mutex);
    size_t bytes = 0;
    for (const auto& frame : *plan->idle) bytes += frame->bytes;
    return PyLong_FromSize_t(bytes);
}

PyMethodDef plan_methods[] = {
    {"release", plan_release, METH_NOARGS,
     "Frees the arenas that no call is using; returns their bytes. The next call makes a new one."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef plan_getset[] = {
    {"arena_bytes", plan_arena_bytes, nullptr, "Bytes of scratch memory one call uses.", nullptr},
    {"idle_bytes", plan_idle_bytes, nullptr, "Bytes held between calls.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef plan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlanObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PlanObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot plan_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Plan(spec): executes smelt.codegen.plan.Plan. plan(inputs) -> outputs, tuples of "
                       "tensors. Safe to call from several threads at once.")},
    {Py_tp_new, reinterpret_cast<void*>(plan_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(plan_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_getset},
    {Py_tp_members, plan_members},
    {0, nullptr}};

PyType_Spec plan_spec = {"smelt._native.Plan", sizeof(PlanObject), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, plan_slots};

PyTypeObject* plan_type = nullptr;

PlanObject* as_plan(PyObject* object) {
    return reinterpret_cast<PlanObject*>(object);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ for C++

bool is_plan(PyObject* object) {
    return Py_TYPE(object) == plan_type;
}

size_t plan_inputs(PyObject* plan) {
    return as_plan(plan)->program->n_inputs;
}

size_t plan_outputs(PyObject* plan) {
    return as_plan(plan)->program->outputs.size();
}

int64_t plan_returned_input(PyObject* plan, size_t position) {
    const Program& p = *as_plan(plan)->program;
    const Reg r = p.outputs.at(position);
    return r >= 0 && static_cast<size_t>(r) < p.n_inputs ? r : -1;
}

// A Python number as the 0-d tensor that torch makes of one: it does not take part in type promotion.
at::Tensor number_tensor(PyObject* item) {
    at::Tensor t = at::detail::empty_cpu({}, PyFloat_CheckExact(item) ? at::kDouble : at::kLong);
    if (PyFloat_CheckExact(item))
        *t.mutable_data_ptr<double>() = PyFloat_AS_DOUBLE(item);
    else
        *t.mutable_data_ptr<int64_t>() = THPUtils_unpackLong(item);
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

Results run_plan(PyObject* plan, PyObject* inputs) {
    const Program& p = *as_plan(plan)->program;
    Borrowed frame(as_plan(plan));
    if (!bind_inputs(p, *frame, inputs)) throw python_error();
    {
        ReleaseGil gil(p.release_gil);
        Run(p, *frame)(p.steps);
    }
    Results results(p.outputs.size());
    for (size_t i = 0; i < p.outputs.size(); ++i) {
        const Reg r = p.outputs[i];
        if (r < 0) continue;
        Result& result = results[i];
        result.is_input = static_cast<size_t>(r) < p.n_inputs;
        if (!result.is_input) {
            result.tensor = (*frame).tensors[r];
            continue;
        }
        result.object = PyTuple_GET_ITEM(inputs, r);
        if (!p.is_number[r]) result.tensor = THPVariable_Unpack(result.object);
    }
    return results;
}

std::vector<at::Tensor> run_plan(PyObject* plan, std::vector<at::Tensor>&& inputs) {
    const Program& p = *as_plan(plan)->program;
    TORCH_CHECK(inputs.size() == p.n_inputs, "Plan: " + std::to_string(p.n_inputs) +
                                                 " inputs expected, got " + std::to_string(inputs.size()));
    Borrowed frame(as_plan(plan));
    Frame& f = *frame;
    for (size_t i = 0; i < p.n_inputs; ++i) {
        if (!inputs[i].defined()) {  // nothing to this plan
            TORCH_CHECK(!p.is_read[i] && !p.needs_data[i],
                        "Plan: input " + std::to_string(i) + " must be a Tensor, got none");
            continue;
        }
        set_address(p, f, i, inputs[i]);
        if (p.is_read[i]) f.tensors[i] = std::move(inputs[i]);
    }
    inputs.clear();
    set_constant_addresses(p, f);
    Run(p, f)(p.owning_steps);
    std::vector<at::Tensor> outputs(p.outputs.size());
    for (size_t i = 0; i < p.outputs.size(); ++i)
        if (p.outputs[i] >= 0) outputs[i] = f.tensors[p.outputs[i]];
    return outputs;
}

int init_plan(PyObject* module) {
    PyObject* type = PyType_FromSpec(&plan_spec);
    if (!type) return -1;
    plan_type = reinterpret_cast<PyTypeObject*>(type);  // and kept for ever
    return PyModule_AddObjectRef(module, "Plan", type);
}

}  // namespace smelt
