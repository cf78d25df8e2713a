// smelt._native.Plan: a plan, and its calls from Python and C++.
#include "bindings/plan.h"

#include <memory>
#include <string>
#include <vector>

#include "bindings/cuda_graphs.h"
#include "bindings/device_kernel.h"
#include "bindings/values.h"
#include "gil.h"
#include "module.h"
#include "plan/inner_plans.h"
#include "plan/plan.h"
#include "plan/profiler_events.h"
#include "plan/program_reader.h"
#include "torch_python.h"
// structmember.h needs Python.h before it.
#include <structmember.h>

namespace smelt {
namespace plan {
namespace {

struct PlanObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    Plan* plan;
    PyObject* keepalive;  // owners of the machine code
    PyObject* weakrefs;
};

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
            set_number(f, i, smelt::number_tensor(item));
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
bool replayed(const Plan& plan, Objects inputs, std::vector<at::Tensor>& outputs) {
    if (!plan.graphs || inputs.size() != plan.program->n_inputs) return false;
    Inputs tensors;
    for (PyObject* item : inputs) {
        if (!THPVariable_Check(item)) return false;
        tensors.push_back(&THPVariable_Unpack(item));
    }
    return plan.graphs->run(tensors, outputs);
}

// `pack(computed)` creates the return value from the outputs; `computed(i)` is the i-th. Returns null with a Python
// error, also if `pack` does. Throws what operators throw.
template <class Pack>
PyObject* run_for_python(Plan& plan, Objects inputs, Pack pack) {
    const Program& p = *plan.program;
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs;
    if (replayed(plan, inputs, outputs)) return pack([&](size_t i) { return outputs[i]; });
    BorrowedRegisters registers(p, plan.idle);
    if (!bind_inputs(p, *registers, inputs)) return nullptr;
    {
        ReleaseGil gil(p.release_gil);
        run(p, registers, p.steps, event.names());
    }
    return pack([&](size_t i) { return output(p, *registers, i); });
}

PyObject* plan_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    Plan& plan = *reinterpret_cast<PlanObject*>(self)->plan;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Plan: call it with one tuple of tensors");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    const Objects inputs = items_of(args[0]);
    return run_for_python(plan, inputs,
                          [&](auto computed) { return all_outputs(*plan.program, inputs, computed); });
    END_HANDLE_TH_ERRORS
}

PyObject* allocated(PyTypeObject* type, std::unique_ptr<const Program> program, PyObject* keepalive) {
    auto* self = reinterpret_cast<PlanObject*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = plan_call;
    self->plan = new Plan(std::move(program));
    self->keepalive = Py_NewRef(keepalive);
    return reinterpret_cast<PyObject*>(self);
}

PyObject* plan_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *spec = nullptr, *constants = nullptr, *kernels = nullptr, *keepalive = Py_None;
    if (kwargs || !PyArg_ParseTuple(args, "OO!O!|O:Plan", &spec, &PyTuple_Type, &constants, &PyTuple_Type,
                                    &kernels, &keepalive)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "Plan takes no named arguments");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto program = std::make_unique<Program>();
    read_program(value_of(spec), surroundings_of(constants, kernels), *program);
    return allocated(type, std::move(program), keepalive);
    END_HANDLE_TH_ERRORS
}

void plan_dealloc(PyObject* object) {
    auto* self = reinterpret_cast<PlanObject*>(object);
    PyTypeObject* type = Py_TYPE(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    delete self->plan;
    Py_XDECREF(self->keepalive);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* plan_release(PyObject* self, PyObject*) {
    Plan& plan = *reinterpret_cast<PlanObject*>(self)->plan;
    if (plan.graphs) plan.graphs->drop();
    return PyLong_FromSize_t(plan.drop_idle());
}

PyObject* plan_use_graphs(PyObject* self, PyObject* capture) {
    Plan& plan = *reinterpret_cast<PlanObject*>(self)->plan;
    if (plan.graphs || !PyCallable_Check(capture)) {
        PyErr_SetString(PyExc_TypeError, "Plan.use_cuda_graphs takes a function, once");
        return nullptr;
    }
    plan.graphs = std::make_unique<CudaGraphs>(*plan.program, capture_with(capture));
    Py_RETURN_NONE;
}

PyObject* arena_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(reinterpret_cast<PlanObject*>(self)->plan->program->arena_bytes);
}

PyObject* idle_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(reinterpret_cast<PlanObject*>(self)->plan->idle_bytes());
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
     const_cast<char*>("Plan(spec, constants, kernels, keepalive=None): executes a smelt.plan.steps.Plan "
                       "(smelt/plan/executable_plan.py). plan(inputs) -> outputs, tuples of tensors. Safe to "
                       "call from several threads at once.")},
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

// Raises KeyboardInterrupt if the user interrupts the process.
void check_signals() {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return;
    python_error error;
    error.persist();
    throw error;
}

Plan& as_plan(PyObject* object) {
    return *reinterpret_cast<PlanObject*>(object)->plan;
}

}  // namespace

int init_plan(PyObject* module) {
    set_between_steps(check_signals);
    PyObject* type = PyType_FromSpec(&plan_spec);
    if (!type) return -1;
    plan_type = reinterpret_cast<PyTypeObject*>(type);  // never freed
    if (PyModule_AddObjectRef(module, "Plan", type) < 0) return -1;
    try {
        auto m = py::reinterpret_borrow<py::module_>(module);
        m.def("loop_history", &loop_history).def("loop_states", &loop_states);
    } catch (py::error_already_set& error) {
        error.restore();
        return -1;
    }
    return 0;
}

}  // namespace plan

// ------------------------------------------------------------------------------------------------ for C++

using namespace plan;

PyObject* new_plan(std::unique_ptr<const Program> program, PyObject* keepalive) {
    return allocated(plan_type, std::move(program), keepalive);
}

bool is_plan(PyObject* object) {
    return Py_TYPE(object) == plan_type;
}

size_t plan_inputs(PyObject* plan) {
    return as_plan(plan).program->n_inputs;
}

bool plan_launches_only(PyObject* plan) {
    return !as_plan(plan).program->dispatches;
}

size_t plan_outputs(PyObject* plan) {
    return as_plan(plan).program->outputs.size();
}

void set_arena_budget(PyObject* plan, std::shared_ptr<ArenaBudget> budget) {
    as_plan(plan).set_budget(budget);
}

int64_t plan_returned_input(PyObject* plan, size_t position) {
    const Program& p = *as_plan(plan).program;
    const Reg r = p.outputs.at(position);
    return r >= 0 && static_cast<size_t>(r) < p.n_inputs ? r : -1;
}

PyObject* call_plan_of_one(PyObject* object, Objects inputs) {
    Plan& plan = as_plan(object);
    auto call = [&] {
        return run_for_python(
            plan, inputs, [&](auto computed) { return output_object(*plan.program, inputs, 0, computed); });
    };
    if (plan.program->dispatches) {
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

at::Tensor number_tensor(PyObject* item) {
    if (PyFloat_CheckExact(item)) return plan::number_tensor(PyFloat_AS_DOUBLE(item));
    return plan::number_tensor(THPUtils_unpackLong(item));
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

}  // namespace

Results run_plan(PyObject* object, PyObject* tuple) {
    Plan& plan = as_plan(object);
    const Program& p = *plan.program;
    const Objects inputs = items_of(tuple);
    const GraphEvent event(p);
    std::vector<at::Tensor> outputs;
    if (replayed(plan, inputs, outputs)) return results_of(p, inputs, [&](size_t i) { return outputs[i]; });
    BorrowedRegisters registers(p, plan.idle);
    if (!bind_inputs(p, *registers, inputs)) throw python_error();
    {
        ReleaseGil gil(p.release_gil);
        run(p, registers, p.steps, event.names());
    }
    return results_of(p, inputs, [&](size_t i) { return output(p, *registers, i); });
}

std::vector<at::Tensor> run_plan(PyObject* object, std::vector<at::Tensor>&& inputs) {
    Plan& plan = as_plan(object);
    // Acquires the GIL. Inputs stay alive until the graph has read them.
    const auto replayed = [&plan](const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs) {
        const py::gil_scoped_acquire gil;
        Inputs tensors;
        for (const at::Tensor& t : inputs) tensors.push_back(t.defined() ? &t : nullptr);
        return plan.graphs->run(tensors, outputs);
    };
    return run_owned(plan, std::move(inputs), replayed);
}

}  // namespace smelt
