// smelt._native.PlanTemplate: a plan::Template.
#include "plan/plan_template.h"

#include <utility>
#include <vector>

#include "bindings/plan.h"
#include "bindings/values.h"
#include "module.h"
#include "torch_python.h"

namespace smelt::plan {
namespace {

struct TemplateObject {
    PyObject_HEAD const Template* made;
    PyObject* keepalive;  // owners of the machine code
};

TemplateObject* as_template(PyObject* object) {
    return reinterpret_cast<TemplateObject*>(object);
}

PyObject* template_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *spec = nullptr, *sizes = nullptr, *constants = nullptr, *kernels = nullptr,
             *keepalive = Py_None;
    if (kwargs || !PyArg_ParseTuple(args, "OOO!O!|O:PlanTemplate", &spec, &sizes, &PyTuple_Type, &constants,
                                    &PyTuple_Type, &kernels, &keepalive)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "PlanTemplate takes no named arguments");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto made = read_template(value_of(spec), value_of(sizes), surroundings_of(constants, kernels));
    auto* self = as_template(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->made = made.release();
    self->keepalive = Py_NewRef(keepalive);
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

void template_dealloc(PyObject* object) {
    auto* self = as_template(object);
    PyTypeObject* type = Py_TYPE(object);
    delete self->made;
    Py_XDECREF(self->keepalive);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* template_at(PyObject* object, PyObject* sizes) {
    HANDLE_TH_ERRORS
    const TemplateObject& self = *as_template(object);
    auto numbers = py::handle(sizes).cast<std::vector<int64_t>>();
    if (numbers.size() != self.made->n_sizes) {
        PyErr_Format(PyExc_TypeError, "PlanTemplate: %zu sizes expected, got %zu", self.made->n_sizes,
                     numbers.size());
        return nullptr;
    }
    auto program = program_at(*self.made, std::move(numbers));
    if (!program) Py_RETURN_NONE;
    return new_plan(std::move(program), self.keepalive);
    END_HANDLE_TH_ERRORS
}

PyMethodDef template_methods[] = {
    {"at", template_at, METH_O,
     "at(sizes): the Plan for these sizes; None if they do not satisfy the conditions."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot template_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("PlanTemplate(spec, sizes, constants, kernels, keepalive=None): a symbolic plan, "
                       "which creates Plans for sizes (smelt/plan/symbolic_plan.py).")},
    {Py_tp_new, reinterpret_cast<void*>(template_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(template_dealloc)},
    {Py_tp_methods, template_methods},
    {0, nullptr}};

PyType_Spec template_spec = {"smelt._native.PlanTemplate", sizeof(TemplateObject), 0, Py_TPFLAGS_DEFAULT,
                             template_slots};

}  // namespace

int init_plan_template(PyObject* module) {
    PyObject* type = PyType_FromSpec(&template_spec);
    return type ? PyModule_AddObject(module, "PlanTemplate", type) : -1;
}

}  // namespace smelt::plan
