#include "bindings/arena_budget.h"

#include <new>

#include "bindings/plan.h"
#include "module.h"

namespace smelt::plan {
namespace {

struct BudgetObject {
    PyObject_HEAD std::shared_ptr<ArenaBudget> budget;
};

PyTypeObject* budget_type = nullptr;

BudgetObject* as_budget(PyObject* object) {
    return reinterpret_cast<BudgetObject*>(object);
}

PyObject* budget_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    Py_ssize_t limit = 0;
    PyObject* parent = Py_None;
    const bool is_read = !kwargs && PyArg_ParseTuple(args, "n|O:ArenaBudget", &limit, &parent);
    if (!is_read || limit < 1 || (parent != Py_None && !budget_of(parent))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "ArenaBudget takes a number of arenas, and a parent or None");
        return nullptr;
    }
    auto* self = as_budget(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    new (&self->budget) std::shared_ptr<ArenaBudget>(std::make_shared<ArenaBudget>(limit, budget_of(parent)));
    return reinterpret_cast<PyObject*>(self);
}

void budget_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    as_budget(object)->budget.~shared_ptr();
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* budget_add(PyObject* object, PyObject* plan) {
    if (!is_plan(plan)) {
        PyErr_Format(PyExc_TypeError, "ArenaBudget.add takes a Plan, got %s", Py_TYPE(plan)->tp_name);
        return nullptr;
    }
    set_arena_budget(plan, as_budget(object)->budget);
    Py_RETURN_NONE;
}

PyObject* budget_program_bytes(PyObject* object, void*) {
    return PyLong_FromSize_t(as_budget(object)->budget->program_bytes());
}

PyMethodDef budget_methods[] = {
    {"add", budget_add, METH_O,
     "add(plan): from now on the memory of this Plan counts. A plan has one budget."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef budget_getset[] = {{"program_bytes", budget_program_bytes, nullptr,
                                "Bytes of the programs of its plans that exist.", nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot budget_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("ArenaBudget(limit, parent=None): between calls its plans hold at most `limit` "
                       "times the memory of the largest; those used longest ago free theirs "
                       "first. Programs also count in the parent.")},
    {Py_tp_new, reinterpret_cast<void*>(budget_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(budget_dealloc)},
    {Py_tp_methods, budget_methods},
    {Py_tp_getset, budget_getset},
    {0, nullptr}};

PyType_Spec budget_spec = {"smelt._native.ArenaBudget", sizeof(BudgetObject), 0, Py_TPFLAGS_DEFAULT,
                           budget_slots};

}  // namespace

std::shared_ptr<ArenaBudget> budget_of(PyObject* object) {
    return Py_TYPE(object) == budget_type ? as_budget(object)->budget : nullptr;
}

int init_arena_budget(PyObject* module) {
    PyObject* type = PyType_FromSpec(&budget_spec);
    if (!type) return -1;
    budget_type = reinterpret_cast<PyTypeObject*>(type);  // never freed
    return PyModule_AddObjectRef(module, "ArenaBudget", type);
}

}  // namespace smelt::plan
