// smelt._native.Differentiable: a compiled graph with its backward, as one node of autograd's graph.
//
// A call runs the forward beneath autograd and, where a gradient is wanted, puts one `CompiledBackward` between
// the outputs and the inputs. What the backward reads is held by the node as torch's own SavedVariables, and
// the node's edges are those that eager's nodes would have: so version checks, hooks, errors, accumulation and
// what is freed when are autograd's own.
//
// The backward is compiled at the first backward call, once for each set of tangents that are defined. What
// all nodes of one Differentiable share is a `Shared`; Python objects in it are touched with the GIL only.
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "layout.h"
#include "module.h"
#include "plan.h"
// After Python.h, which it does not include itself.
#include <structmember.h>

namespace smelt {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using Mask = c10::SmallVector<char, 16>;  // per tangent: defined

constexpr const char* kTwice =
    "smelt: this compiled function can be differentiated once (it writes or draws random numbers, or one of "
    "its "
    "inputs is gone or was written); use smelt.disable on it, or backend='eager', for higher derivatives";
constexpr const char* kTransformed =
    "smelt: transforms of torch.func cannot go through the backward of a compiled function; use "
    "smelt.disable on "
    "it, or backend='eager'";

// Throws the Python error that is set; it comes out of a backward call as it is, whichever thread raised it.
[[noreturn]] void raise() {
    python_error error;
    error.persist();
    throw error;
}

[[noreturn]] void raise(PyObject* type, const std::string& message) {
    PyErr_SetString(type, message.c_str());
    raise();
}

PyObject* checked(PyObject* object) {
    if (!object) raise();
    return object;
}

// ------------------------------------------------------------------------------------------------ the spec

struct Tangent {
    size_t output;  // position among the forward's outputs
    Layout layout;  // that the backward relies on
};

struct Source {  // of a saved value
    enum class Kind : uint8_t { primal, output, temporary } kind;
    size_t index;
    Mask readers;  // the tangents whose gradients read it; empty: all
};

// The tangents of one node, and to which gradients it contributes.
struct Group {
    std::vector<size_t> tangents;
    std::vector<char> edges;  // per gradient: of inputs, then of the outputs in `through`
    bool whole = false;       // keeps all that is saved, so as to do what all nodes do
};

struct Backward {
    Mask mask;
    bool whole;  // of all nodes at once
    PyObject* callable;
    bool is_plan;
    Backward* next;
};

struct Shared : c10::intrusive_ptr_target {
    std::string name;
    PyObject* forward = nullptr;
    PyObject* compile_backward = nullptr;
    PyObject* lock = nullptr;   // held while a backward is compiled
    PyObject* again = nullptr;  // differentiates by running the forward again, or null
    bool forward_is_plan = false;
    size_t n_outputs = 0;
    size_t n_results = 0;  // outputs and saved temporaries
    size_t n_inputs = 0;   // at least
    std::vector<Tangent> tangents;
    std::vector<size_t> gradients;  // positions among the inputs
    std::vector<size_t> through;    // positions of outputs that other outputs are computed from
    std::vector<Group> groups;      // each a node of autograd's graph, in the order of computation
    std::vector<Source> saved;
    std::vector<size_t> returned_inputs;         // what a plan returns as a differentiable output
    std::atomic<Backward*> backwards = nullptr;  // only ever grows, so it is walked without a lock

    ~Shared() override {
        if (!Py_IsInitialized()) return;  // at the very end of the process: leaked
        pybind11::gil_scoped_acquire gil;
        Py_XDECREF(forward);
        Py_XDECREF(compile_backward);
        Py_XDECREF(lock);
        Py_XDECREF(again);
        for (Backward* b = backwards; b;) {
            Backward* next = b->next;
            Py_DECREF(b->callable);
            delete b;
            b = next;
        }
    }

    const Backward* find(const Mask& mask, bool whole) const {
        for (const Backward* b = backwards.load(std::memory_order_acquire); b; b = b->next)
            if (b->mask == mask && b->whole == whole) return b;
        return nullptr;
    }
};

class Lock {  // of Python: a thread that waits for it gives up the GIL
  public:
    explicit Lock(PyObject* lock) : lock_(lock) {
        Py_DECREF(checked(PyObject_CallMethod(lock_, "acquire", nullptr)));
    }
    ~Lock() {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject* result = PyObject_CallMethod(lock_, "release", nullptr);
        if (!result) PyErr_WriteUnraisable(lock_);
        Py_XDECREF(result);
        PyErr_Restore(type, value, traceback);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    PyObject* lock_;
};

size_t count_defined(const Mask& mask) {
    size_t n = 0;
    for (char defined : mask) n += defined;
    return n;
}

void check_backward(const Shared& shared, const Mask& mask, PyObject* callable) {
    if (!is_plan(callable)) {
        if (PyCallable_Check(callable)) return;
        raise(PyExc_TypeError, "Differentiable: the compiled backward is not callable");
    }
    if (plan_inputs(callable) != shared.saved.size() + count_defined(mask) ||
        plan_outputs(callable) != shared.gradients.size() + shared.through.size())
        raise(PyExc_ValueError, "Differentiable: the backward's plan has other inputs or outputs");
}

const Backward& compile(Shared& shared, const Mask& mask, bool whole) {
    pybind11::gil_scoped_acquire gil;
    Lock lock(shared.lock);
    if (const Backward* made = shared.find(mask, whole)) return *made;
    THPObjectPtr defined(checked(PyTuple_New(static_cast<Py_ssize_t>(mask.size()))));
    for (size_t i = 0; i < mask.size(); ++i)
        PyTuple_SET_ITEM(defined.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(mask[i]));
    THPObjectPtr callable(checked(PyObject_CallFunctionObjArgs(shared.compile_backward, defined.get(),
                                                               whole ? Py_True : nullptr, nullptr)));
    check_backward(shared, mask, callable);
    auto* made = new Backward{mask, whole, callable.get(), is_plan(callable), shared.backwards};
    callable.release();
    shared.backwards.store(made, std::memory_order_release);
    return *made;
}

// ------------------------------------------------------------------------------------------------ the node

struct Saved {
    SavedVariable variable;
    at::Tensor number;  // instead, for a Python number
    bool is_output;
    bool is_held = true;           // false: nothing to this node
    std::optional<Layout> layout;  // where a hook of saved tensors may give another tensor
};

uint32_t version_of(const at::Tensor& t) {
    const auto& counter = t.unsafeGetTensorImpl()->version_counter();
    return counter.enabled() ? counter.current_version() : 0;
}

// A primal that the node does not keep alive, as it was.
struct Primal {
    explicit Primal(const at::Tensor& t) : impl(t.getIntrusivePtr()), version(version_of(t)) {}

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl;
    uint32_t version;
};

bool has_any(const at::Tensor& t, std::initializer_list<c10::DispatchKey> keys) {
    return t.key_set().has_any(c10::DispatchKeySet(keys));
}

bool is_lazy(const at::Tensor& t) {
    using c10::DispatchKey;
    return has_any(t, {DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
                       DispatchKey::Functionalize, DispatchKey::Python});
}

at::Tensor conform(const Layout& want, at::Tensor t) {
    using c10::DispatchKey;
    TORCH_CHECK(!has_any(t, {DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper}),
                kTransformed);
    if (t.layout() != at::kStrided) t = t.to_dense();
    TORCH_CHECK(want.describes(t), "smelt: a gradient of " + described(want.dtype, want.shape) +
                                       " is expected, got " + described(t.scalar_type(), t.sizes()));
    return !is_lazy(t) && want.has_strides_of(t) ? t : want.copy_of(t);
}

// What a hook unpacked, as the backward relies on it: hooks keep values, not where they lie.
at::Tensor restored(const Layout& want, at::Tensor t) {
    TORCH_CHECK(t.sizes() == want.shape, "smelt: the unpack hook of a saved " +
                                             described(want.dtype, want.shape) + " gave " +
                                             described(t.scalar_type(), t.sizes()));
    if (t.layout() != at::kStrided) t = t.to_dense();
    if (!is_lazy(t) && want.describes(t) && want.has_strides_of(t)) return t;
    Layout once = want;  // without the dimensions along which all elements are one place
    for (size_t d = 0; d < once.shape.size(); ++d) {
        if (once.stride[d] != 0 || once.shape[d] == 0) continue;
        once.shape[d] = 1;
        t = t.narrow(static_cast<int64_t>(d), 0, 1);
    }
    return once.copy_of(t).expand(want.shape);
}

at::Tensor as_gradient(PyObject* item) {
    if (item == Py_None) return {};
    if (!THPVariable_Check(item))
        raise(PyExc_TypeError, std::string("Differentiable: the backward returned a ") +
                                   Py_TYPE(item)->tp_name + " for a gradient");
    return THPVariable_Unpack(item);
}

variable_list gradients_in(THPObjectPtr& result, size_t n_gradients) {
    result = checked(PySequence_Fast(result, "Differentiable: the backward must return a sequence"));
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(result.get()));
    if (n != n_gradients)
        raise(PyExc_RuntimeError, "Differentiable: the backward returned " + std::to_string(n) +
                                      " gradients, " + std::to_string(n_gradients) + " are expected");
    variable_list gradients;
    gradients.reserve(n);
    for (size_t i = 0; i < n; ++i)
        gradients.push_back(as_gradient(PySequence_Fast_GET_ITEM(result.get(), static_cast<Py_ssize_t>(i))));
    return gradients;
}

// `numbers[i]`: argument i stands for a Python number.
variable_list call_backward(PyObject* callable, variable_list&& arguments, const std::vector<bool>& numbers,
                            size_t n_gradients) {
    pybind11::gil_scoped_acquire gil;
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size()))));
    for (size_t i = 0; i < arguments.size(); ++i) {
        const at::Tensor& t = arguments[i];
        PyObject* item = !numbers[i]                      ? THPVariable_Wrap(t)
                         : t.scalar_type() == at::kDouble ? PyFloat_FromDouble(*t.const_data_ptr<double>())
                                                          : PyLong_FromLongLong(*t.const_data_ptr<int64_t>());
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    arguments.clear();
    THPObjectPtr result;
    {
        c10::impl::ForceDispatchKeyGuard guard(below_autograd(c10::impl::tls_local_dispatch_key_set()));
        result = checked(PyObject_CallOneArg(callable, tuple));
    }
    tuple = nullptr;
    return gradients_in(result, n_gradients);
}

// Before torch 2.13, nodes are held by std::shared_ptr.
using NodePtr = decltype(Edge::function);

template <class T, class... Args>
auto make_node(Args&&... args) {
    if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>)
        return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
    else
        return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

class CompiledBackward : public Node {
  public:
    CompiledBackward(edge_list&& edges, c10::intrusive_ptr<Shared> shared, const Group& group)
        : Node(std::move(edges)), shared_(std::move(shared)), group_(group) {
        saved_.reserve(shared_->saved.size());
    }

    std::string name() const override { return shared_->name; }

    void save(const at::Tensor& t, bool is_output, bool rebased_view) {
        saved_.push_back({SavedVariable(t, is_output, rebased_view), {}, is_output});
        if (at::SavedTensorDefaultHooks::get_hooks()) saved_.back().layout = layout_of(t);
    }
    void skip() { saved_.push_back({{}, {}, false, false}); }
    void save(at::Tensor number) { saved_.push_back({{}, std::move(number), false}); }

    void remember(const at::Tensor& primal) { primals_.emplace_back(primal); }

    // The engine calls this after `apply`, which has released what that call was to release.
    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!partly_released_) release();
        partly_released_ = false;
    }

    variable_list apply(variable_list&& tangents) override {
        Mask mask(shared_->tangents.size());
        for (size_t i = 0; i < group_.tangents.size(); ++i)
            mask[group_.tangents[i]] = i < tangents.size() && tangents[i].defined();
        if (count_defined(mask) == 0) return variable_list(num_outputs());
        if (c10::GradMode::is_enabled() && shared_->again) {
            variable_list primals;
            if (lock_primals(primals)) return run_again(primals, tangents);
        }
        const bool whole = group_.whole && nobody_looks_between();
        const Backward* backward = shared_->find(mask, whole);
        if (!backward) backward = &compile(*shared_, mask, whole);
        variable_list arguments = unpack(mask, whole);
        for (at::Tensor& t : tangents)
            if (t.defined()) arguments.push_back(std::move(t));
        tangents.clear();
        const bool batched = std::any_of(arguments.begin(), arguments.end(), at::isBatchedTensor);
        if (!batched) conform_tangents(mask, arguments);
        variable_list kept;
        if (c10::GradMode::is_enabled()) kept = arguments;  // create_graph=True
        variable_list gradients =
            batched ? run_batch(*backward, mask, arguments) : run(*backward, std::move(arguments));
        if (!kept.empty()) forbid_second(kept, gradients);
        return gradients;
    }

  private:
    void release() {
        for (Saved& s : saved_) s.variable.reset_data();
    }

    // The saved values, which nobody else holds if the graph is not kept. As in eager, what only the gradients of
    // other outputs read is not looked at and stays.
    variable_list unpack(const Mask& mask, bool whole) {
        const bool keep = torch::autograd::get_current_graph_task_keep_graph();
        variable_list values;
        values.reserve(saved_.size() + shared_->tangents.size());
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < saved_.size(); ++i) {
            Saved& s = saved_[i];
            if (s.number.defined()) {
                values.push_back(s.number);
            } else if (!whole && !is_read(shared_->saved[i], mask)) {
                values.emplace_back();
                partly_released_ |= !keep && s.is_held;
            } else {
                at::Tensor value = s.variable.unpack(s.is_output ? getptr() : NodePtr());
                values.push_back(s.layout ? restored(*s.layout, std::move(value)) : std::move(value));
            }
        }
        if (keep) return values;
        for (size_t i = 0; i < saved_.size(); ++i)
            if (whole || is_read(shared_->saved[i], mask)) saved_[i].variable.reset_data();
        return values;
    }

  public:
    static bool is_read(const Source& source, const Mask& mask) {
        for (size_t k = 0; k < source.readers.size(); ++k)
            if (source.readers[k] && mask[k]) return true;
        return source.readers.empty();
    }

  private:
    // Whether what flows into the outputs that others are computed from is nobody's business. Then all of it is done
    // here; what flows into them from elsewhere is added by their own nodes.
    bool nobody_looks_between() const {
        if (torch::autograd::get_current_graph_task_id() < 0) return false;
        const auto* exec_info = torch::autograd::get_current_graph_task_exec_info();
        for (size_t k = shared_->gradients.size(); k < num_outputs(); ++k) {
            const auto node = next_edge(k).function;
            if (!node) continue;
            if (!node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() ||
                !node->pre_hooks().empty() || !node->post_hooks().empty())
                return false;
            const auto found = exec_info->find(node.get());
            if (found != exec_info->end() && found->second.captures_) return false;
        }
        return true;
    }

    // Whether all primals still exist and are as they were.
    bool lock_primals(variable_list& primals) const {
        for (const Primal& p : primals_) {
            primals.emplace_back(p.impl.lock());
            if (!primals.back().defined() || version_of(primals.back()) != p.version) return false;
        }
        return true;
    }

    // create_graph=True: the gradients of the forward run again, operator by operator, so that they have a history.
    variable_list run_again(const variable_list& primals, const variable_list& tangents) const {
        pybind11::gil_scoped_acquire gil;
        auto pack = [](const variable_list& list) {
            THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(list.size()))));
            for (size_t i = 0; i < list.size(); ++i)
                PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(THPVariable_Wrap(list[i])));
            return tuple;
        };
        const THPObjectPtr first = pack(primals), second = pack(tangents);  // there is one group
        THPObjectPtr result(
            checked(PyObject_CallFunctionObjArgs(shared_->again, first.get(), second.get(), nullptr)));
        return gradients_in(result, num_outputs());
    }

    void conform_tangents(const Mask& mask, variable_list& arguments) const {
        size_t at = saved_.size();
        for (size_t i = 0; i < mask.size(); ++i) {
            if (!mask[i]) continue;
            arguments[at] = conform(shared_->tangents[i].layout, std::move(arguments[at]));
            ++at;
        }
    }

    // What torch.autograd.grad(is_grads_batched=True) asks for, sample by sample.
    variable_list run_batch(const Backward& backward, const Mask& mask, const variable_list& arguments) {
        int64_t level = 0, size = 0;
        for (const at::Tensor& t : arguments) {
            const auto* batch = at::maybeGetBatchedImpl(t);
            if (!batch) continue;
            TORCH_CHECK(batch->bdims().size() == 1, kTransformed);
            level = batch->bdims()[0].level();
            size = batch->value().size(batch->bdims()[0].dim());
        }
        std::vector<variable_list> samples(num_outputs());
        for (int64_t i = 0; i < size; ++i) {
            variable_list sample = arguments;
            for (at::Tensor& t : sample)
                if (const auto* batch = at::maybeGetBatchedImpl(t))
                    t = batch->value().select(batch->bdims()[0].dim(), i);
            conform_tangents(mask, sample);
            const variable_list gradients = run(backward, std::move(sample));
            for (size_t k = 0; k < gradients.size(); ++k)
                if (gradients[k].defined()) samples[k].push_back(gradients[k]);
        }
        variable_list gradients(num_outputs());
        for (size_t k = 0; k < gradients.size(); ++k)
            if (!samples[k].empty()) gradients[k] = at::addBatchDim(at::stack(samples[k]), level, 0);
        return gradients;
    }

    variable_list run(const Backward& backward, variable_list&& arguments) {
        c10::AutoGradMode no_grad(false);
        if (backward.is_plan) return run_plan(backward.callable, std::move(arguments));
        std::vector<bool> numbers(arguments.size());
        for (size_t i = 0; i < saved_.size(); ++i) numbers[i] = saved_[i].number.defined();
        return call_backward(backward.callable, std::move(arguments), numbers, num_outputs());
    }

    // Gradients that depend on what requires grad get a history that raises when it is differentiated; its edges
    // lead wherever theirs would, so that no path past it is found. A tangent that is passed on keeps its own.
    void forbid_second(const variable_list& arguments, variable_list& gradients) const {
        edge_list edges = next_edges();
        bool depends = false;
        for (size_t i = 0; i < arguments.size(); ++i) {
            const at::Tensor& t = arguments[i];
            const bool tangent = i >= saved_.size();
            if (tangent && t.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(t));
            const bool temporary = !tangent && shared_->saved[i].kind == Source::Kind::temporary;
            depends |=
                t.requires_grad() || (temporary && torch::autograd::isDifferentiableType(t.scalar_type()));
        }
        if (!depends) return;
        const auto error = make_node<torch::autograd::Error>(std::string(kTwice), std::move(edges));
        for (at::Tensor& g : gradients) {
            if (!g.defined() || !torch::autograd::isDifferentiableType(g.scalar_type())) continue;
            if (is_tangent(arguments, g)) continue;
            if (g.use_count() > 1 || g.requires_grad()) g = g.detach();
            torch::autograd::set_history(g, error);
        }
    }

    bool is_tangent(const variable_list& arguments, const at::Tensor& t) const {
        for (size_t i = saved_.size(); i < arguments.size(); ++i)
            if (arguments[i].is_same(t)) return true;
        return false;
    }

    c10::intrusive_ptr<Shared> shared_;
    const Group& group_;
    std::vector<Saved> saved_;
    std::vector<Primal> primals_;  // where they may be wanted again
    bool partly_released_ = false;
};

// The history of one of several outputs. The node itself may get undefined gradients for outputs that nobody
// differentiates; their hooks must not be called.
class OutputOf : public Node {
  public:
    OutputOf(const c10::intrusive_ptr<Shared>& shared, Edge edge)
        : Node(edge_list{std::move(edge)}), shared_(shared) {}

    std::string name() const override { return shared_->name; }
    variable_list apply(variable_list&& gradients) override { return std::move(gradients); }

  private:
    c10::intrusive_ptr<Shared> shared_;
};

// ------------------------------------------------------------------------------------------------ a call

// The edges of the node that a call needs; none if it needs no node.
edge_list gradient_edges(const Shared& shared, PyObject* inputs) {
    edge_list edges;
    if (!c10::GradMode::is_enabled()) return edges;
    auto tensor = [&](size_t i) -> const at::Tensor* {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        return THPVariable_Check(item) ? &THPVariable_Unpack(item) : nullptr;
    };
    bool any = false;
    for (size_t i : shared.gradients) {
        const at::Tensor* t = tensor(i);
        if ((any = t && t->requires_grad())) break;
    }
    if (!any) return edges;
    edges.reserve(shared.gradients.size());
    for (size_t i : shared.gradients) {
        const at::Tensor* t = tensor(i);
        edges.push_back(t && t->requires_grad() ? torch::autograd::impl::gradient_edge(*t) : Edge());
    }
    return edges;
}

// Which inputs the forward wrote, of those that it may return as differentiable outputs.
class Versions {
  public:
    Versions(const Shared& shared, PyObject* inputs) {
        if (shared.forward_is_plan)
            for (size_t i : shared.returned_inputs) watch(PyTuple_GET_ITEM(inputs, i));
        else
            for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) watch(PyTuple_GET_ITEM(inputs, i));
    }

    bool changed(const at::Tensor& t) const {
        for (const auto& [impl, version] : before_)
            if (impl == t.unsafeGetTensorImpl()) return version != version_of(t);
        return false;
    }

  private:
    void watch(PyObject* item) {
        if (!THPVariable_Check(item)) return;
        const at::Tensor& t = THPVariable_Unpack(item);
        before_.emplace_back(t.unsafeGetTensorImpl(), version_of(t));
    }

    c10::SmallVector<std::pair<const c10::TensorImpl*, uint32_t>, 2> before_;
};

// What the forward, a Python callable, returns; `owner` keeps it alive.
Results call_forward(const Shared& shared, PyObject* inputs, THPObjectPtr& owner) {
    {
        c10::impl::ForceDispatchKeyGuard guard(below_autograd(c10::impl::tls_local_dispatch_key_set()));
        owner = checked(PyObject_CallOneArg(shared.forward, inputs));
    }
    owner = checked(PySequence_Fast(owner, "Differentiable: the forward must return a sequence"));
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(owner.get()));
    if (n < shared.n_results)
        raise(PyExc_RuntimeError, "Differentiable: the forward returned " + std::to_string(n) + " values, " +
                                      std::to_string(shared.n_results) + " are expected");
    Results results(n);
    for (size_t i = 0; i < n; ++i) {
        Result& r = results[i];
        r.object = PySequence_Fast_GET_ITEM(owner.get(), static_cast<Py_ssize_t>(i));
        if (!THPVariable_Check(r.object)) continue;
        r.tensor = THPVariable_Unpack(r.object);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(inputs); ++k)
            r.is_input |= PyTuple_GET_ITEM(inputs, k) == r.object;
    }
    return results;
}

// Makes the node the history of an output, as its next input.
class Attach {
  public:
    Attach(const c10::intrusive_ptr<Shared>& shared, const Group& group, CompiledBackward& node,
           NodePtr pointer, const Versions& versions)
        : shared_(shared), group_(group), node_(node), pointer_(std::move(pointer)), versions_(versions) {}

    void operator()(const Result& r) {
        const at::Tensor& t = r.tensor;
        const bool again = t.defined() && is_attached(t);
        if (!t.defined() || again || (r.is_input && !is_written(r)))
            // Its gradient comes by an earlier input, or goes past the node to the tensor's own history.
            node_.add_input_metadata(Node::undefined_input());
        else if (!r.is_input)
            attach(t);
        else
            rebase(t);
    }

    bool is_written(const Result& r) const { return r.is_input && versions_.changed(r.tensor); }

  private:
    void attach(const at::Tensor& t) {
        if (group_.tangents.size() == 1 || !torch::autograd::isDifferentiableType(t.scalar_type())) {
            torch::autograd::set_history(t, pointer_);
            return;
        }
        auto output = make_node<OutputOf>(shared_, Edge(pointer_, node_.add_input_metadata(t)));
        torch::autograd::set_history(t, output);
    }

    bool is_attached(const at::Tensor& t) const {
        const Node* node = torch::autograd::impl::grad_fn_unsafe(t);
        if (!node || node == &node_) return node != nullptr;
        return dynamic_cast<const OutputOf*>(node) && node->next_edge(0).function.get() == &node_;
    }

    // What an in-place operator does. A view is rebased by way of its base, which takes a node like copy_'s: its
    // outputs are the gradients of the old value and of the new.
    void rebase(const at::Tensor& t) {
        namespace impl = torch::autograd::impl;
        const Edge edge(pointer_, node_.add_input_metadata(t));
        if (!t.is_view()) {
            impl::rebase_history(t, edge);
            return;
        }
        const at::Tensor base(t._base());
        auto copy = make_node<torch::autograd::CopyBackwards>();
        copy->set_next_edges({base.requires_grad() ? impl::gradient_edge(base) : Edge(), edge});
        copy->src_options = t.options();
        copy->add_input_metadata(t);
        // A view looks for its history anew if its version is another than when it last did; the write itself may
        // have made it look.
        impl::bump_version(t);
        impl::rebase_history(t, {std::move(copy), 0});
    }

    const c10::intrusive_ptr<Shared>& shared_;
    const Group& group_;
    CompiledBackward& node_;
    NodePtr pointer_;
    const Versions& versions_;
};

void save_primal(CompiledBackward& node, PyObject* item) {
    if (THPVariable_Check(item))
        node.save(THPVariable_Unpack(item), false, false);
    else if (PyFloat_CheckExact(item) || PyLong_CheckExact(item))
        node.save(number_tensor(item));
    else
        raise(PyExc_TypeError, std::string("Differentiable: cannot save a ") + Py_TYPE(item)->tp_name);
}

// The edges of one of the nodes, of which those before it are attached.
edge_list edges_of(const Shared& shared, const Group& group, const edge_list& inputs,
                   const Results& results) {
    edge_list edges(group.edges.size());
    for (size_t k = 0; k < edges.size(); ++k) {
        if (!group.edges[k]) continue;
        if (k < inputs.size()) {
            edges[k] = inputs[k];
            continue;
        }
        const at::Tensor& t = results[shared.through[k - inputs.size()]].tensor;
        if (t.defined() && t.requires_grad()) edges[k] = torch::autograd::impl::gradient_edge(t);
    }
    return edges;
}

void record(const c10::intrusive_ptr<Shared>& shared, const Group& group, PyObject* inputs,
            const Results& results, const edge_list& input_edges, const Versions& versions) {
    const auto node =
        make_node<CompiledBackward>(edges_of(*shared, group, input_edges, results), shared, group);
    Attach attach(shared, group, *node, node, versions);
    Mask mask(shared->tangents.size());
    for (size_t k : group.tangents) {
        mask[k] = 1;
        attach(results[shared->tangents[k].output]);
    }
    for (Py_ssize_t i = 0; shared->again && i < PyTuple_GET_SIZE(inputs); ++i)
        node->remember(THPVariable_Unpack(PyTuple_GET_ITEM(inputs, i)));
    for (const Source& s : shared->saved) {
        if (!group.whole && !CompiledBackward::is_read(s, mask)) {
            node->skip();
        } else if (s.kind == Source::Kind::primal) {
            save_primal(*node, PyTuple_GET_ITEM(inputs, s.index));
        } else if (s.kind == Source::Kind::temporary) {
            node->save(results[shared->n_outputs + s.index].tensor, false, false);
        } else {
            const Result& r = results[s.index];
            const bool written = attach.is_written(r);
            node->save(r.tensor, !r.is_input || written, written && r.tensor.is_view());
        }
    }
}

PyObject* as_tuple(Results& results, size_t n) {
    THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(n))));
    for (size_t i = 0; i < n; ++i) {
        Result& r = results[i];
        PyObject* item = r.object             ? Py_NewRef(r.object)
                         : r.tensor.defined() ? THPVariable_Wrap(std::move(r.tensor))
                                              : Py_NewRef(Py_None);
        PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item));
    }
    return tuple.release();
}

bool looks_at_input(const at::Tensor& view, PyObject* inputs) {
    const at::Tensor base(view._base());
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
        PyObject* item = PyTuple_GET_ITEM(inputs, i);
        if (!THPVariable_Check(item)) continue;
        const at::Tensor& t = THPVariable_Unpack(item);
        if (t.is_same(base) || (t.is_view() && t._base().is_same(base))) return true;
    }
    return false;
}

PyObject* call(const c10::intrusive_ptr<Shared>& shared, PyObject* inputs) {
    if (static_cast<size_t>(PyTuple_GET_SIZE(inputs)) < shared->n_inputs)
        raise(PyExc_TypeError, "Differentiable: at least " + std::to_string(shared->n_inputs) +
                                   " inputs expected, got " + std::to_string(PyTuple_GET_SIZE(inputs)));
    // Before the forward, which may write inputs and so change their history.
    edge_list edges = gradient_edges(*shared, inputs);
    THPObjectPtr owner;
    auto forward = [&] {
        return shared->forward_is_plan ? run_plan(shared->forward, inputs)
                                       : call_forward(*shared, inputs, owner);
    };
    if (edges.empty()) {
        Results results = forward();
        return as_tuple(results, shared->n_outputs);
    }
    const Versions versions(*shared, inputs);
    Results results = forward();
    // A plan may look at memory of its own to give an output. To autograd that is no view.
    for (const Tangent& t : shared->tangents) {
        Result& r = results[t.output];
        if (r.is_input || !r.tensor.defined() || !r.tensor.is_view() || looks_at_input(r.tensor, inputs))
            continue;
        r.tensor = r.tensor.detach();
        r.object = nullptr;
    }
    for (const Group& group : shared->groups) record(shared, group, inputs, results, edges, versions);
    return as_tuple(results, shared->n_outputs);
}

// ------------------------------------------------------------------------------------------------ reading the
// spec

PyObject* owned(py::handle h) {
    return h.inc_ref().ptr();
}

class Reader {
  public:
    explicit Reader(Shared& shared) : s_(shared) {}

    void read(const py::dict& spec) {
        check_keys(spec);
        s_.name = spec["name"].cast<std::string>();
        s_.n_outputs = spec["n_outputs"].cast<size_t>();
        for (py::handle h : spec["gradients"]) s_.gradients.push_back(h.cast<size_t>());
        for (py::handle h : spec["differentiable"]) s_.tangents.push_back(tangent(h.cast<py::tuple>()));
        if (spec.contains("through"))
            for (py::handle h : spec["through"]) s_.through.push_back(h.cast<size_t>());
        read_groups(spec);
        for (py::handle h : spec["saved"]) s_.saved.push_back(source(h.cast<py::tuple>()));
        s_.compile_backward = owned(callable(spec, "backward"));
        s_.lock = spec.contains("lock") ? owned(spec["lock"])
                                        : py::module_::import("threading").attr("RLock")().release().ptr();
        if (spec.contains("again") && !spec["again"].is_none()) s_.again = owned(callable(spec, "again"));
        count();
        s_.forward = owned(callable(spec, "forward"));
        s_.forward_is_plan = is_plan(s_.forward);
        if (s_.forward_is_plan) read_plan();
    }

  private:
    static void check_keys(const py::dict& spec) {
        const py::set needed(py::make_tuple("forward", "n_outputs", "differentiable", "gradients", "saved",
                                            "backward", "name"));
        const py::set optional(py::make_tuple("lock", "again", "through", "groups"));
        for (auto item : spec)
            if (!needed.contains(item.first) && !optional.contains(item.first))
                raise(PyExc_TypeError,
                      "Differentiable: unknown key " + py::repr(item.first).cast<std::string>());
        for (py::handle key : needed)
            if (!spec.contains(key))
                raise(PyExc_TypeError,
                      "Differentiable: " + py::repr(key).cast<std::string>() + " is missing");
    }

    void read_groups(const py::dict& spec) {
        const size_t n_edges = s_.gradients.size() + s_.through.size();
        if (!spec.contains("groups")) {
            Group all{{}, std::vector<char>(n_edges, 1)};
            for (size_t k = 0; k < s_.tangents.size(); ++k) all.tangents.push_back(k);
            s_.groups.push_back(std::move(all));
            return;
        }
        for (py::handle h : spec["groups"]) {
            const auto parts = h.cast<py::tuple>();
            Group group{parts[0].cast<std::vector<size_t>>(), std::vector<char>(n_edges)};
            for (py::handle k : parts[1]) group.edges.at(k.cast<size_t>()) = 1;
            group.whole = parts[2].cast<bool>();
            for (size_t k : group.tangents)
                if (k >= s_.tangents.size()) raise(PyExc_ValueError, "Differentiable: no such tangent");
            s_.groups.push_back(std::move(group));
        }
    }

    static py::object callable(const py::dict& spec, const char* key) {
        py::object object = spec[key];
        if (!PyCallable_Check(object.ptr()))
            raise(PyExc_TypeError, std::string("Differentiable: ") + key + " must be callable");
        return object;
    }

    Tangent tangent(const py::tuple& t) const {
        Tangent result{t[0].cast<size_t>(), layout(t[1], t[2], t[3])};
        if (result.output >= s_.n_outputs) raise(PyExc_ValueError, "Differentiable: no such output");
        return result;
    }

    Source source(const py::tuple& t) const {
        const auto kind = t[0].cast<std::string>();
        const auto index = t[1].cast<size_t>();
        const Mask readers = t.size() > 2 ? this->readers(t[2]) : Mask();
        if (kind == "primal") return {Source::Kind::primal, index, readers};
        if (kind == "temporary") return {Source::Kind::temporary, index, readers};
        if (kind != "output") raise(PyExc_ValueError, "Differentiable: unknown kind of saved value " + kind);
        if (index >= s_.n_outputs) raise(PyExc_ValueError, "Differentiable: no such output");
        return {Source::Kind::output, index, readers};
    }

    Mask readers(py::handle tangents) const {
        Mask mask(s_.tangents.size());
        for (py::handle k : tangents) {
            if (k.cast<size_t>() >= mask.size()) raise(PyExc_ValueError, "Differentiable: no such tangent");
            mask[k.cast<size_t>()] = 1;
        }
        return mask;
    }

    void count() {
        s_.n_results = s_.n_outputs;
        for (size_t i : s_.gradients) s_.n_inputs = std::max(s_.n_inputs, i + 1);
        for (const Source& s : s_.saved) {
            if (s.kind == Source::Kind::primal) s_.n_inputs = std::max(s_.n_inputs, s.index + 1);
            if (s.kind == Source::Kind::temporary)
                s_.n_results = std::max(s_.n_results, s_.n_outputs + s.index + 1);
        }
    }

    void read_plan() {
        if (plan_inputs(s_.forward) < s_.n_inputs || plan_outputs(s_.forward) < s_.n_results)
            raise(PyExc_ValueError, "Differentiable: the forward's plan has too few inputs or outputs");
        for (const Tangent& t : s_.tangents) {
            const int64_t input = plan_returned_input(s_.forward, t.output);
            if (input >= 0) s_.returned_inputs.push_back(static_cast<size_t>(input));
        }
    }

    Shared& s_;
};

// ------------------------------------------------------------------------------------------------ the Python
// type

struct DifferentiableObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    c10::intrusive_ptr<Shared> shared;
    PyObject* weakrefs;
};

DifferentiableObject* as_differentiable(PyObject* object) {
    return reinterpret_cast<DifferentiableObject*>(object);
}

PyObject* differentiable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Differentiable: call it with one tuple");
        return nullptr;
    }
    const auto& shared = as_differentiable(self)->shared;
    if (!shared) {
        PyErr_SetString(PyExc_RuntimeError, "Differentiable: it was cleared by the garbage collector");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    return call(shared, args[0]);
    END_HANDLE_TH_ERRORS
}

PyObject* differentiable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* spec = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "O!:Differentiable", &PyDict_Type, &spec)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "Differentiable takes one dict");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto shared = c10::make_intrusive<Shared>();
    Reader(*shared).read(py::reinterpret_borrow<py::dict>(spec));
    auto* self = as_differentiable(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = differentiable_call;
    new (&self->shared) c10::intrusive_ptr<Shared>(std::move(shared));
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

int differentiable_traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    const auto& shared = as_differentiable(object)->shared;
    // A node that lives owns these objects too, and the collector cannot see it.
    if (!shared || shared.use_count() != 1) return 0;
    Py_VISIT(shared->forward);
    Py_VISIT(shared->compile_backward);
    Py_VISIT(shared->lock);
    Py_VISIT(shared->again);
    for (const Backward* b = shared->backwards; b; b = b->next) Py_VISIT(b->callable);
    return 0;
}

int differentiable_clear(PyObject* object) {
    as_differentiable(object)->shared.reset();
    return 0;
}

void differentiable_dealloc(PyObject* object) {
    auto* self = as_differentiable(object);
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    self->shared.~intrusive_ptr();
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* differentiable_forward(PyObject* object, void*) {
    const auto& shared = as_differentiable(object)->shared;
    return Py_NewRef(shared ? shared->forward : Py_None);
}

PyObject* differentiable_backwards(PyObject* object, void*) {
    HANDLE_TH_ERRORS
    py::dict result;
    const auto& shared = as_differentiable(object)->shared;
    for (const Backward* b = shared ? shared->backwards.load() : nullptr; b; b = b->next) {
        py::tuple mask(b->mask.size());
        for (size_t i = 0; i < b->mask.size(); ++i) mask[i] = py::bool_(b->mask[i] != 0);
        const py::tuple key = b->whole ? py::make_tuple(mask, "whole") : mask;
        result[key] = py::reinterpret_borrow<py::object>(b->callable);
    }
    return result.release().ptr();
    END_HANDLE_TH_ERRORS
}

PyGetSetDef differentiable_getset[] = {
    {"forward", differentiable_forward, nullptr, "The forward that the spec gave.", nullptr},
    {"backwards", differentiable_backwards, nullptr,
     "What has been compiled so far: a dict from masks of defined tangents.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef differentiable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DifferentiableObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DifferentiableObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kDoc =
    "Differentiable(spec): a graph with its backward. d(inputs) -> outputs, both tuples; the outputs have "
    "one\n"
    "node of autograd as their history if grad mode is on and one of the inputs in `gradients` requires "
    "grad.\n"
    "Safe to call, and to differentiate, from several threads at once. spec is a dict:\n\n"
    "  forward         a Plan, or a callable from the tuple of inputs (tensors and numbers) to a sequence, "
    "which\n"
    "                  runs beneath autograd: (*outputs, *temporaries)\n"
    "  n_outputs       how many of these are outputs\n"
    "  differentiable  per tangent (position among the outputs, shape, stride, dtype): the outputs that "
    "require\n"
    "                  grad, and the layout in which the backward gets their gradients (it must not "
    "overlap). One\n"
    "                  that is an input is differentiable if the forward wrote it; if not, its gradient goes "
    "past\n"
    "                  the node\n"
    "  gradients       positions of the inputs that the backward returns gradients for\n"
    "  saved           what the backward reads, each ('primal', input), ('output', output) or ('temporary', "
    "n),\n"
    "                  perhaps followed by the tangents whose gradients read it: others neither look at it "
    "nor "
    "free\n"
    "                  it\n"
    "  backward        a callable from a tuple of bools, which tangents are defined, to a Plan or a "
    "callable;\n"
    "                  asked once for each, at a backward call. What it returns is called, as the forward "
    "is, with\n"
    "                  the tuple (*saved, *defined tangents) and returns a gradient or None per `gradients` "
    "and\n"
    "                  `through`\n"
    "  through         optional, positions of the outputs that other outputs are computed from: their "
    "tangents "
    "hold\n"
    "                  all that flows into them, and the others' gradients with respect to them are "
    "returned\n"
    "  groups          optional, per node of autograd (its tangents, the gradients that they contribute to, "
    "whether\n"
    "                  it is to do the work of all where nobody looks at what flows into `through`), in the "
    "order of\n"
    "                  computation; by default one node for all. `backward` then gets True as well, and what "
    "it\n"
    "                  gives takes all saved values\n"
    "  name            of the node\n"
    "  lock            optional, an RLock to hold while `backward` runs; by default one of its own\n"
    "  again           optional, a callable from the tuple of inputs (tensors all) and the tuple of tangents "
    "(None\n"
    "                  where undefined) to the gradients, with a history. Asked where create_graph=True, if "
    "the\n"
    "                  inputs still exist and were not written; where not, a second differentiation raises";

PyType_Slot differentiable_slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                      {Py_tp_new, reinterpret_cast<void*>(differentiable_new)},
                                      {Py_tp_dealloc, reinterpret_cast<void*>(differentiable_dealloc)},
                                      {Py_tp_traverse, reinterpret_cast<void*>(differentiable_traverse)},
                                      {Py_tp_clear, reinterpret_cast<void*>(differentiable_clear)},
                                      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                      {Py_tp_getset, differentiable_getset},
                                      {Py_tp_members, differentiable_members},
                                      {0, nullptr}};

PyType_Spec differentiable_spec = {"smelt._native.Differentiable", sizeof(DifferentiableObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                                   differentiable_slots};

}  // namespace

int init_autograd(PyObject* module) {
    PyObject* type = PyType_FromSpec(&differentiable_spec);
    if (!type) return -1;
    const int failed = PyModule_AddObjectRef(module, "Differentiable", type);
    Py_DECREF(type);
    return failed;
}

}  // namespace smelt
