#include "cpython.h"

#include "autograd/differentiable_spec.h"

#include <algorithm>
#include <queue>

#include "autograd/python_errors.h"
#include "tensor_layout_reader.h"
#include "bindings/plan.h"

namespace smelt::autograd {

Spec::~Spec() {
    if (!Py_IsInitialized()) return;  // at interpreter shutdown: leaked
    pybind11::gil_scoped_acquire gil;
    Py_XDECREF(forward);
    Py_XDECREF(compile_backward);
    Py_XDECREF(lock);
    Py_XDECREF(double_backward);
    Py_XDECREF(substitute);
    for (EpilogueStep& t : taken) Py_XDECREF(t.make);
    for (Backward* b = backwards; b;) {
        Backward* next = b->next;
        Py_DECREF(b->callable);
        delete b;
        b = next;
    }
}

size_t count_defined(const Mask& mask) {
    size_t n = 0;
    for (char defined : mask) n += defined;
    return n;
}

bool intersect(const Mask& a, const Mask& b) {
    for (size_t k = 0; k < a.size(); ++k)
        if (a[k] && b[k]) return true;
    return false;
}

namespace {

// A Python lock: a thread that waits for it releases the GIL.
class Lock {
  public:
    explicit Lock(PyObject* lock) : lock_(lock) {
        Py_DECREF(checked(PyObject_CallMethod(lock_, "acquire", nullptr)));
    }
    ~Lock() {
        ErrorAside aside;
        PyObject* result = PyObject_CallMethod(lock_, "release", nullptr);
        if (!result) PyErr_WriteUnraisable(lock_);
        Py_XDECREF(result);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

  private:
    PyObject* lock_;
};

void check_backward(const Spec& spec, const Mask& mask, PyObject* callable) {
    if (!is_plan(callable)) {
        if (PyCallable_Check(callable)) return;
        raise(PyExc_TypeError, "Differentiable: the compiled backward is not callable");
    }
    if (plan_inputs(callable) != spec.saved.size() + count_defined(mask) ||
        plan_outputs(callable) != spec.gradients.size() + spec.through.size())
        raise(PyExc_ValueError, "Differentiable: the backward's plan has other inputs or outputs");
}

PyObject* owned(py::handle h) {
    return h.inc_ref().ptr();
}

class Reader {
  public:
    explicit Reader(Spec& spec) : s_(spec) {}

    void read(const py::dict& spec) {
        check_keys(spec);
        s_.name = spec["name"].cast<std::string>();
        s_.n_outputs = spec["n_outputs"].cast<size_t>();
        for (py::handle h : spec["gradients"]) s_.gradients.push_back(h.cast<size_t>());
        if (spec.contains("leaves")) s_.n_leaves = spec["leaves"].cast<size_t>();
        if (spec.contains("taken"))
            for (py::handle h : spec["taken"]) s_.taken.push_back(taken(h.cast<py::tuple>()));
        for (py::handle h : spec["differentiable"]) s_.tangents.push_back(tangent(h.cast<py::tuple>()));
        if (spec.contains("through"))
            for (py::handle h : spec["through"]) s_.through.push_back(h.cast<size_t>());
        for (py::handle h : spec["saved"]) s_.saved.push_back(source(h.cast<py::tuple>()));
        read_groups(spec);
        s_.compile_backward = owned(callable(spec, "backward"));
        s_.lock = spec.contains("lock") ? owned(spec["lock"])
                                        : py::module_::import("threading").attr("RLock")().release().ptr();
        if (spec.contains("double_backward") && !spec["double_backward"].is_none())
            s_.double_backward = owned(callable(spec, "double_backward"));
        if (spec.contains("substitute")) s_.substitute = owned(callable(spec, "substitute"));
        if (spec.contains("draws"))
            for (py::handle h : spec["draws"]) s_.draws.push_back(as_device(h.ptr()).value());
        if (spec.contains("devices"))
            for (py::handle h : spec["devices"]) s_.devices.push_back(as_device(h.ptr()).value());
        if (spec.contains("rewritten"))
            for (py::handle h : spec["rewritten"]) s_.rewritten.push_back(h.cast<size_t>());
        if (spec.contains("layouts"))
            for (py::handle h : spec["layouts"]) s_.layouts.push_back(layout_of_input(h.cast<py::tuple>()));
        if (spec.contains("copied"))
            for (py::handle h : spec["copied"]) s_.copied.push_back(h.cast<size_t>());
        count();
        s_.forward = owned(callable(spec, "forward"));
        s_.forward_is_plan = is_plan(s_.forward);
        if (s_.forward_is_plan) read_plan();
    }

  private:
    static void check_keys(const py::dict& spec) {
        const py::set needed(py::make_tuple("forward", "n_outputs", "differentiable", "gradients", "saved",
                                            "backward", "name"));
        const py::set optional(py::make_tuple("lock", "double_backward", "through", "groups", "contributors",
                                              "direct", "conflicts", "draws", "rewritten", "copied", "leaves",
                                              "taken", "devices", "layouts", "substitute"));
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
        const size_t n = s_.tangents.size();
        s_.conflicts =
            spec.contains("conflicts") ? masks(spec["conflicts"]) : std::vector<Mask>(n, Mask(n, 1));
        if (s_.conflicts.size() != n) raise(PyExc_ValueError, "Differentiable: conflicts are per tangent");
        const size_t n_gradients = s_.gradients.size() + s_.through.size();
        const auto contributors = spec.contains("contributors") ? masks(spec["contributors"])
                                                                : std::vector<Mask>(n_gradients, Mask(n, 1));
        s_.direct = spec.contains("direct") ? masks(spec["direct"]) : contributors;
        if (contributors.size() != n_gradients || s_.direct.size() != n_gradients)
            raise(PyExc_ValueError, "Differentiable: contributors are per gradient");
        if (!spec.contains("groups")) {
            std::vector<size_t> all(n);
            for (size_t k = 0; k < n; ++k) all[k] = k;
            s_.groups.push_back(group({std::move(all)}, contributors));
            return;
        }
        for (py::handle h : spec["groups"]) {
            const auto parts = h.cast<py::tuple>();
            auto tangents = parts[0].cast<std::vector<size_t>>();
            for (size_t k : tangents)
                if (k >= n) raise(PyExc_ValueError, "Differentiable: no such tangent");
            s_.groups.push_back(
                group({std::move(tangents), parts[1].cast<bool>(), parts[2].cast<bool>()}, contributors));
        }
    }

    NodeSpec group(NodeSpec group, const std::vector<Mask>& contributors) const {
        Mask own(s_.tangents.size());
        for (size_t k : group.tangents) own[k] = 1;
        auto within = [&](Mask mask) {
            for (size_t k = 0; k < mask.size(); ++k) mask[k] &= own[k];
            return mask;
        };
        for (size_t i = 0; i < contributors.size(); ++i)
            if (const Mask mask = within(contributors[i]); count_defined(mask))
                entry(group.ends, &End::tangents, mask).edges.push_back(i);
        for (End& end : group.ends) end.edges = as_pushed(end.edges, s_.n_leaves);
        if (group.is_single() && group.ends.empty()) group.ends.push_back({own, {}});
        for (size_t i = 0; i < s_.saved.size(); ++i) {
            const Mask& readers = s_.saved[i].readers;
            if (const Mask mask = readers.empty() ? own : within(readers); count_defined(mask))
                entry(group.buckets, &Bucket::readers, mask).saved.push_back(i);
        }
        for (Bucket& bucket : group.buckets) {
            bucket.first = group.n_saved;
            group.n_saved += bucket.saved.size();
        }
        return group;
    }

    // The order in which to pass `edges` to the engine. The first edges lead to leaves, in the order in which their
    // gradients must be accumulated. In the engine's ready queue, a heap, all accumulations have equal priority,
    // before all other nodes; an equal heap here predicts the order in which the engine pops them.
    static std::vector<size_t> as_pushed(const std::vector<size_t>& edges, size_t n_leaves) {
        struct Item {
            bool is_leaf;
            size_t position;
        };
        const auto comes_after = [](const Item& a, const Item& b) { return a.is_leaf < b.is_leaf; };
        std::priority_queue<Item, std::vector<Item>, decltype(comes_after)> queue(comes_after);
        for (size_t i = 0; i < edges.size(); ++i) queue.push({edges[i] < n_leaves, i});
        std::vector<size_t> pushed = edges;
        for (size_t i = 0; i < edges.size() && edges[i] < n_leaves; ++i) {
            pushed[queue.top().position] = edges[i];
            queue.pop();
        }
        return pushed;
    }

    // The entry with this mask, created if there is none.
    template <class T>
    static T& entry(std::vector<T>& entries, Mask T::* key, const Mask& mask) {
        for (T& e : entries)
            if (e.*key == mask) return e;
        entries.emplace_back();
        entries.back().*key = mask;
        return entries.back();
    }

    std::vector<Mask> masks(py::handle lists) const {
        std::vector<Mask> result;
        for (py::handle h : lists) result.push_back(mask(h));
        return result;
    }

    static py::object callable(const py::dict& spec, const char* key) {
        py::object object = spec[key];
        if (!PyCallable_Check(object.ptr()))
            raise(PyExc_TypeError, std::string("Differentiable: ") + key + " must be callable");
        return object;
    }

    Tangent tangent(const py::tuple& t) const {
        Tangent result{t[0].cast<size_t>(), layout(t[1], t[2], t[3])};
        check_output(result.output);
        return result;
    }

    static std::optional<Layout> layout_of_input(const py::tuple& t) {
        return t.empty() ? std::nullopt : std::optional(layout(t[0], t[1], t[2]));
    }

    void check_output(size_t output) const {
        if (output >= s_.n_outputs + s_.n_epilogue) raise(PyExc_ValueError, "Differentiable: no such output");
    }

    EpilogueStep taken(const py::tuple& t) {
        EpilogueStep result{t[0].cast<size_t>(), {}, nullptr, s_.n_epilogue, t[3].cast<size_t>()};
        for (py::handle h : t[1]) {
            const auto [kind, index] = h.cast<std::pair<std::string, size_t>>();
            if (kind != "input") check_output(index);
            result.operands.push_back({kind == "input", index});
        }
        if (!PyCallable_Check(t[2].ptr()))
            raise(PyExc_TypeError, "Differentiable: what is taken must be callable");
        result.make = owned(t[2]);
        s_.n_epilogue += result.count;
        return result;
    }

    SavedSource source(const py::tuple& t) const {
        const auto kind = t[0].cast<std::string>();
        const auto index = t[1].cast<size_t>();
        const Mask readers = t.size() > 2 ? mask(t[2]) : Mask();
        if (kind == "primal") {
            SavedSource primal{SavedSource::Kind::primal, index, readers, {}, {}};
            if (t.size() > 3) primal.layout = layout(t[3], t[4], t[5]);
            return primal;
        }
        if (kind == "alias") {
            const bool is_recomputed_from = t.size() > 3 && t[3].cast<bool>();
            return {SavedSource::Kind::alias, index, readers, {}, primal_of(index), is_recomputed_from};
        }
        if (kind == "temporary") return {SavedSource::Kind::temporary, index, readers, {}, {}};
        if (kind != "output") raise(PyExc_ValueError, "Differentiable: unknown kind of saved value " + kind);
        if (index >= s_.n_outputs) raise(PyExc_ValueError, "Differentiable: no such output");
        SavedSource output{SavedSource::Kind::output, index, readers, {}, {}};
        const auto data = t.size() > 3 ? t[3].cast<std::string>() : std::string("old");
        if (data != "old")
            output.data = data == "new" ? SavedSource::Data::new_data : SavedSource::Data::mixed;
        return output;
    }

    // The saved value, among those read so far, that is this input itself.
    std::optional<size_t> primal_of(size_t index) const {
        for (size_t i = 0; i < s_.saved.size(); ++i)
            if (s_.saved[i].kind == SavedSource::Kind::primal && s_.saved[i].index == index) return i;
        return {};
    }

    Mask mask(py::handle tangents) const {
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
        for (size_t i : s_.copied) s_.n_inputs = std::max(s_.n_inputs, i + 1);
        for (const EpilogueStep& t : s_.taken)
            for (const EpilogueStep::Operand& o : t.operands)
                if (o.is_input) s_.n_inputs = std::max(s_.n_inputs, o.index + 1);
        for (const SavedSource& s : s_.saved) {
            if (s.kind == SavedSource::Kind::primal || s.kind == SavedSource::Kind::alias)
                s_.n_inputs = std::max(s_.n_inputs, s.index + 1);
            if (s.kind == SavedSource::Kind::temporary)
                s_.n_results = std::max(s_.n_results, s_.n_outputs + s.index + 1);
        }
    }

    void read_plan() {
        if (plan_inputs(s_.forward) < s_.n_inputs || plan_outputs(s_.forward) < s_.n_results)
            raise(PyExc_ValueError, "Differentiable: the forward's plan has too few inputs or outputs");
        for (const Tangent& t : s_.tangents) {
            if (s_.is_epilogue_output(t.output)) continue;
            const int64_t input = plan_returned_input(s_.forward, t.output);
            if (input >= 0) s_.returned_inputs.push_back(static_cast<size_t>(input));
        }
    }

    Spec& s_;
};

}  // namespace

const Backward& compile_backward(Spec& spec, const Mask& mask, Reach reach,
                                 const std::vector<bool>& requested) {
    pybind11::gil_scoped_acquire gil;
    Lock lock(spec.lock);
    if (const Backward* made = spec.find(mask, reach, requested)) return *made;
    const bool deterministic = at::globalContext().deterministicAlgorithms();
    THPObjectPtr defined(checked(PyTuple_New(static_cast<Py_ssize_t>(mask.size()))));
    for (size_t i = 0; i < mask.size(); ++i)
        PyTuple_SET_ITEM(defined.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(mask[i]));
    THPObjectPtr further, gradients;
    if (reach != Reach::segment || !requested.empty())
        further = checked(PyLong_FromLong(static_cast<long>(reach)));
    if (!requested.empty()) gradients = checked(PyTuple_New(static_cast<Py_ssize_t>(requested.size())));
    for (size_t i = 0; i < requested.size(); ++i)
        PyTuple_SET_ITEM(gradients.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(requested[i]));
    THPObjectPtr callable(checked(PyObject_CallFunctionObjArgs(spec.compile_backward, defined.get(),
                                                               further.get(), gradients.get(), nullptr)));
    check_backward(spec, mask, callable);
    auto* made = new Backward{
        mask, reach, requested, deterministic, callable.get(), is_plan(callable), spec.backwards};
    callable.release();
    spec.backwards.store(made, std::memory_order_release);
    return *made;
}

c10::intrusive_ptr<Spec> read_spec(PyObject* dict) {
    auto made = c10::make_intrusive<Spec>();
    Reader(*made).read(py::reinterpret_borrow<py::dict>(dict));
    return made;
}

}  // namespace smelt::autograd
