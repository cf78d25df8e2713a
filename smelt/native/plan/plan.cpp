// smelt._native.Plan: a program, its idle register files, and calls from Python and C++.
#include <memory>
#include <string>
#include <vector>

#include "gil.h"
#include "module.h"
#include "plan/profiler_events.h"
#include "plan/registers.h"
#include "plan/cuda_graphs.h"
#include "plan/tensor_allocation.h"
#include "plan/plan.h"
#include "plan/program.h"
#include "plan/program_reader.h"
#include "plan/executor.h"
#include "plan/new_plan.h"
#include "torch_python.h"
// structmember.h needs Python.h before it.
#include <structmember.h>

namespace smelt {
namespace plan {
namespace {

struct PlanObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Program* program;
    PyObject* keepalive;  // owners of the machine code
    IdleRegisterFiles* idle;
    CudaGraphs* graphs;  // nullptr: no CUDA graphs
    PyObject* weakrefs;
};

// Copies a misaligned input for kernels. Its dimensions may overlap; their order does not matter.
void realign(const Program& p, RegisterFile& f, size_t i, const at::Tensor& t) {
    const BelowAutograd beneath;
    int64_t last = 0;
    for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
    at::Tensor memory = t.as_strided({last + 1}, {1});
    at::Tensor copy = memory.clone();
    f.data[i] = copy.unsafeGetTensorImpl()->mutable_data();
    f.realigned.push_back({std::move(memory), std::move(copy), p.written[i] != 0});
}

void set_address(const Program& p, RegisterFile& f, size_t i, const at::Tensor& t) {
    if (!p.needs_data[i]) return;
    auto* impl = t.unsafeGetTensorImpl();
    f.data[i] = p.written[i] ? impl->mutable_data() : const_cast<void*>(impl->data());
    const bool aligned = reinterpret_cast<uintptr_t>(f.data[i]) % kVector == 0;
    if (!aligned && !t.device().is_cpu() && t.device().type() == p.device.type() && t.numel() != 0)
        realign(p, f, i, t);
}

void set_constant_addresses(const Program& p, RegisterFile& f) {
    for (size_t i = p.n_inputs; i < p.n_inputs + p.constants.size(); ++i)
        if (p.needs_data[i]) f.data[i] = f.tensors[i].unsafeGetTensorImpl()->mutable_data();
}

// Returns false with a Python error.
bool bind_inputs(const Program& p, RegisterFile& f, Objects inputs) {
    if (inputs.size() != p.n_inputs) {
        PyErr_Format(PyExc_TypeError, "Plan: %zu inputs expected, got %zu", p.n_inputs, inputs.size());
        return false;
    }
    for (size_t i = 0; i < p.n_inputs; ++i) {
        PyObject* item = inputs[i];
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
        if (item == Py_None && !p.is_read[i]) continue;  // the plan does not read it
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

// The i-th output. Call it once per output, in order: the last use moves the tensor out of the register.
at::Tensor output(const Program& p, RegisterFile& f, size_t i) {
    at::Tensor& t = f.tensors[p.outputs[i]];
    return p.is_last[i] ? std::move(t) : t;
}

// The i-th output, a new reference. A returned input is the object that was passed; `computed(i)` is any other
// output.
template <class Computed>
PyObject* output_object(const Program& p, Objects inputs, size_t i, Computed computed) {
    const Reg r = p.outputs[i];
    if (r < 0) return Py_NewRef(Py_None);
    return p.is_input(r) ? Py_NewRef(inputs[r]) : THPVariable_Wrap(computed(i));
}

template <class Computed>
PyObject* all_outputs(const Program& p, Objects inputs, Computed computed) {
    PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(p.outputs.size()));
    if (!result) return nullptr;
    for (size_t i = 0; i < p.outputs.size(); ++i) {
        PyObject* item = output_object(p, inputs, i, computed);
        if (!item) {
            Py_DECREF(result);
            return nullptr;
        }
        PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), item);
    }
    return result;
}

// Replays a CUDA graph for `inputs`; returns false if the plan must run.
bool replayed(const PlanObject* plan, Objects inputs, std::vector<at::Tensor>& outputs) {
    if (!plan->graphs || inputs.size() != plan->program->n_inputs) return false;
    Inputs tensors;
    for (PyObject* item : inputs) {
        if (!THPVariable_Check(item)) return false;
        tensors.push_back(&THPVariable_Unpack(item));
    }
    return plan->graphs->run(tensors, outputs);
}

// `pack(computed)` creates the return value from the outputs; `computed(i)` is the i-th. Returns null with a Python
// error, also if `pack` does. Throws what operators throw.
template <class Pack>
PyObject* run_for_python(const PlanObject* plan, Objects inputs, Pack pack) {
    const Program& p = *plan->program;
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs;
    if (replayed(plan, inputs, outputs)) return pack([&](size_t i) { return outputs[i]; });
    BorrowedRegisters registers(p, *plan->idle);
    if (!bind_inputs(p, *registers, inputs)) return nullptr;
    {
        ReleaseGil gil(p.release_gil);
        run(p, registers, p.steps, event.names());
    }
    return pack([&](size_t i) { return output(p, *registers, i); });
}

PyObject* plan_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    auto* plan = reinterpret_cast<PlanObject*>(self);
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Plan: call it with one tuple of tensors");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    const Objects inputs = items_of(args[0]);
    return run_for_python(plan, inputs,
                          [&](auto computed) { return all_outputs(*plan->program, inputs, computed); });
    END_HANDLE_TH_ERRORS
}

PyObject* allocated(PyTypeObject* type, std::unique_ptr<Program> program, PyObject* keepalive) {
    auto* self = reinterpret_cast<PlanObject*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = plan_call;
    self->program = program.release();
    self->keepalive = Py_NewRef(keepalive);
    self->idle = new IdleRegisterFiles;
    self->graphs = nullptr;
    return reinterpret_cast<PyObject*>(self);
}

PyObject* plan_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* spec = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "O!:Plan", &PyTuple_Type, &spec)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "Plan takes one tuple");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto program = std::make_unique<Program>();
    read_program(py::reinterpret_borrow<py::tuple>(spec), *program);
    return allocated(type, std::move(program), PyTuple_GET_ITEM(spec, 7));
    END_HANDLE_TH_ERRORS
}

void plan_dealloc(PyObject* object) {
    auto* self = reinterpret_cast<PlanObject*>(object);
    PyTypeObject* type = Py_TYPE(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    delete self->graphs;
    delete self->idle;
    delete self->program;
    Py_XDECREF(self->keepalive);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* plan_release(PyObject* self, PyObject*) {
    auto* plan = reinterpret_cast<PlanObject*>(self);
    if (plan->graphs) plan->graphs->drop();
    return PyLong_FromSize_t(plan->idle->drop());
}

PyObject* plan_use_graphs(PyObject* self, PyObject* capture) {
    auto* plan = reinterpret_cast<PlanObject*>(self);
    if (plan->graphs || !PyCallable_Check(capture)) {
        PyErr_SetString(PyExc_TypeError, "Plan.use_cuda_graphs takes a function, once");
        return nullptr;
    }
    plan->graphs = new CudaGraphs(*plan->program, capture);
    Py_RETURN_NONE;
}

PyObject* arena_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(reinterpret_cast<PlanObject*>(self)->program->arena_bytes);
}

PyObject* idle_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(reinterpret_cast<PlanObject*>(self)->idle->bytes());
}

PyMethodDef plan_methods[] = {
    {"release", plan_release, METH_NOARGS,
     "Frees the arenas that no call is using; returns their bytes. The next call makes a new one."},
    {"use_cuda_graphs", plan_use_graphs, METH_O,
     "use_cuda_graphs(capture): records runs as CUDA graphs and replays them (native/plan/cuda_graphs.h)."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* launches_only(PyObject* self, void*) {
    return PyBool_FromLong(plan_launches_only(self));
}

PyGetSetDef plan_getset[] = {
    {"launches_only", launches_only, nullptr,
     "Whether all steps are kernel launches: no operator of torch or of the program is called.", nullptr},
    {"arena_bytes", arena_bytes, nullptr, "Bytes of scratch memory one call uses.", nullptr},
    {"idle_bytes", idle_bytes, nullptr, "Bytes held between calls.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef plan_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlanObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PlanObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot plan_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Plan(spec): executes a smelt.plan.steps.Plan. plan(inputs) -> outputs, tuples of "
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

PyObject* new_plan(std::unique_ptr<Program> program, PyObject* keepalive) {
    return allocated(plan_type, std::move(program), keepalive);
}

int init_plan(PyObject* module) {
    PyObject* type = PyType_FromSpec(&plan_spec);
    if (!type) return -1;
    plan_type = reinterpret_cast<PyTypeObject*>(type);  // never freed
    return PyModule_AddObjectRef(module, "Plan", type);
}

}  // namespace plan

// ------------------------------------------------------------------------------------------------ for C++

using namespace plan;

bool is_plan(PyObject* object) {
    return Py_TYPE(object) == plan_type;
}

size_t plan_inputs(PyObject* plan) {
    return as_plan(plan)->program->n_inputs;
}

bool plan_launches_only(PyObject* plan) {
    return !as_plan(plan)->program->dispatches;
}

size_t plan_outputs(PyObject* plan) {
    return as_plan(plan)->program->outputs.size();
}

void set_arena_budget(PyObject* plan, std::shared_ptr<ArenaBudget> budget) {
    as_plan(plan)->idle->set_budget(std::move(budget), bytes_of(*as_plan(plan)->program));
}

int64_t plan_returned_input(PyObject* plan, size_t position) {
    const Program& p = *as_plan(plan)->program;
    const Reg r = p.outputs.at(position);
    return r >= 0 && static_cast<size_t>(r) < p.n_inputs ? r : -1;
}

PyObject* call_plan_of_one(PyObject* object, Objects inputs) {
    const PlanObject* plan = as_plan(object);
    auto call = [&] {
        return run_for_python(
            plan, inputs, [&](auto computed) { return output_object(*plan->program, inputs, 0, computed); });
    };
    if (plan->program->dispatches) {
        HANDLE_TH_ERRORS  // also forwards warnings of operators to Python
            return call();
        END_HANDLE_TH_ERRORS
    }
    try {
        return call();
    } catch (const std::exception&) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

// A Python number as the 0-d tensor that torch creates for one: it does not take part in type promotion.
at::Tensor number_tensor(PyObject* item) {
    at::Tensor t = at::detail::empty_cpu({}, PyFloat_CheckExact(item) ? at::kDouble : at::kLong);
    if (PyFloat_CheckExact(item))
        *t.mutable_data_ptr<double>() = PyFloat_AS_DOUBLE(item);
    else
        *t.mutable_data_ptr<int64_t>() = THPUtils_unpackLong(item);
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

namespace {

// `computed(i)` is the i-th output unless that is an input.
template <class Computed>
Results results_of(const Program& p, Objects inputs, Computed computed) {
    Results results(p.outputs.size());
    for (size_t i = 0; i < p.outputs.size(); ++i) {
        const Reg r = p.outputs[i];
        if (r < 0) continue;
        Result& result = results[i];
        result.is_input = static_cast<size_t>(r) < p.n_inputs;
        if (!result.is_input) {
            result.tensor = computed(i);
            continue;
        }
        result.object = inputs[r];
        if (!p.is_number[r]) result.tensor = THPVariable_Unpack(result.object);
    }
    return results;
}

// As the other `replayed`, but acquires the GIL. Inputs stay alive until the graph has read them.
bool replayed(const PlanObject* plan, const std::vector<at::Tensor>& inputs,
              std::vector<at::Tensor>& outputs) {
    if (!plan->graphs) return false;
    const py::gil_scoped_acquire gil;
    Inputs tensors;
    for (const at::Tensor& t : inputs) tensors.push_back(t.defined() ? &t : nullptr);
    return plan->graphs->run(tensors, outputs);
}

}  // namespace

Results run_plan(PyObject* plan, PyObject* tuple) {
    const Program& p = *as_plan(plan)->program;
    const Objects inputs = items_of(tuple);
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs;
    if (replayed(as_plan(plan), inputs, outputs))
        return results_of(p, inputs, [&](size_t i) { return outputs[i]; });
    BorrowedRegisters registers(p, *as_plan(plan)->idle);
    if (!bind_inputs(p, *registers, inputs)) throw python_error();
    {
        ReleaseGil gil(p.release_gil);
        run(p, registers, p.steps, event.names());
    }
    return results_of(p, inputs, [&](size_t i) { return output(p, *registers, i); });
}

std::vector<at::Tensor> run_plan(PyObject* plan, std::vector<at::Tensor>&& inputs) {
    const Program& p = *as_plan(plan)->program;
    TORCH_CHECK(inputs.size() == p.n_inputs, "Plan: " + std::to_string(p.n_inputs) +
                                                 " inputs expected, got " + std::to_string(inputs.size()));
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs(p.outputs.size());
    if (replayed(as_plan(plan), inputs, outputs)) {
        for (size_t i = 0; i < outputs.size(); ++i)
            if (p.is_input(p.outputs[i])) outputs[i] = inputs[p.outputs[i]];
        return outputs;
    }
    BorrowedRegisters registers(p, *as_plan(plan)->idle);
    RegisterFile& f = *registers;
    for (size_t i = 0; i < p.n_inputs; ++i) {
        if (!inputs[i].defined()) {  // the plan does not read it
            TORCH_CHECK(!p.is_read[i], "Plan: input " + std::to_string(i) + " must be a Tensor, got none");
            continue;
        }
        set_address(p, f, i, inputs[i]);
        if (p.is_read[i]) f.tensors[i] = std::move(inputs[i]);
    }
    inputs.clear();
    set_constant_addresses(p, f);
    run(p, registers, p.owning_steps, event.names());
    for (size_t i = 0; i < p.outputs.size(); ++i)
        if (p.outputs[i] >= 0) outputs[i] = output(p, f, i);
    return outputs;
}

}  // namespace smelt
