// smelt._native.PlanTemplate: a plan with symbolic sizes, valid for all sizes that satisfy its conditions.
//
// Its program is read once, with slots instead of numbers that depend on sizes. A plan for concrete sizes is a copy: an
// integer program computes the slots, temporaries get offsets in the arena, and the slots' values replace the
// symbolic numbers.
#include "plan/new_plan.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "module.h"
#include "plan/arena_placement.h"
#include "plan/program_reader.h"
#include "plan/symbolic_plan.h"
#include "shapes/size_program.h"
#include "torch_python.h"

namespace smelt::plan {
namespace {

// Whether the value of a slot is at least 0.
struct Condition {
    size_t slot;
    bool holds;
};

struct SymbolicInterval {
    size_t nbytes;  // a slot
    int64_t begin, end;
};

struct Template {
    Program program;
    SymbolicFields symbolic;
    size_t n_sizes = 0;                             // the first slots
    std::vector<shapes::Instruction> instructions;  // of the other slots, in order
    std::vector<Condition> conditions;
    std::vector<SymbolicInterval> intervals;
    int64_t alignment = 1;
};

struct TemplateObject {
    PyObject_HEAD Template* made;
    PyObject* keepalive;  // owners of the machine code
};

TemplateObject* as_template(PyObject* object) {
    return reinterpret_cast<TemplateObject*>(object);
}

std::vector<int64_t> slots_for(const Template& t, std::vector<int64_t> sizes) {
    sizes.resize(t.n_sizes + t.instructions.size());
    const shapes::Status status = shapes::run(t.instructions, t.n_sizes, sizes.data());
    if (status == shapes::Status::overflow)
        throw std::overflow_error("PlanTemplate: sizes of more than 64 bits");
    if (status == shapes::Status::division_by_zero)
        throw std::invalid_argument("PlanTemplate: a division by zero");
    return sizes;
}

bool is_for(const Template& t, const std::vector<int64_t>& slots) {
    return std::all_of(t.conditions.begin(), t.conditions.end(),
                       [&](const Condition& c) { return (slots[c.slot] >= 0) == c.holds; });
}

void place_allocs(const Template& t, const std::vector<int64_t>& slots, Program& p) {
    std::vector<Interval> intervals;
    intervals.reserve(t.intervals.size());
    for (const SymbolicInterval& i : t.intervals) intervals.push_back({slots[i.nbytes], i.begin, i.end});
    const Placement placement = assign_offsets(intervals, t.alignment);
    p.arena_bytes = static_cast<size_t>(placement.nbytes);
    p.has_own_registers &= p.arena_bytes == 0;
    for (Alloc& a : p.allocs)
        if (a.arena >= 0) a.arena = placement.offsets[static_cast<size_t>(a.arena)];
}

std::unique_ptr<Program> program_for(const Template& t, const std::vector<int64_t>& slots) {
    auto program = std::make_unique<Program>(t.program);
    substitute_numbers(t.symbolic, slots, *program);
    place_allocs(t, slots, *program);
    derive_allocs(*program);
    return program;
}

// ------------------------------------------------------------------------------------------------ from Python

void check(bool holds, const char* text) {
    if (!holds) throw py::value_error(text);
}

void read_instructions(py::handle instructions, Template& t) {
    for (py::handle h : py::reinterpret_borrow<py::tuple>(instructions)) {
        const auto [operation, a, b] = h.cast<std::tuple<uint8_t, int64_t, int64_t>>();
        const int64_t known = static_cast<int64_t>(t.n_sizes + t.instructions.size());
        check(operation <= static_cast<uint8_t>(shapes::Operation::modulo),
              "PlanTemplate: no such operation");
        check(operation == 0 || (a >= 0 && b >= 0 && a < known && b < known),
              "PlanTemplate: a slot that is not known yet");
        t.instructions.push_back({static_cast<shapes::Operation>(operation), a, b});
    }
}

void read_sizes(const py::tuple& sizes, Template& t) {
    t.n_sizes = sizes[0].cast<size_t>();
    read_instructions(sizes[1], t);
    for (py::handle h : py::tuple(sizes[2])) {
        const auto [slot, holds] = h.cast<std::pair<size_t, bool>>();
        t.conditions.push_back({slot, holds});
    }
    for (py::handle h : py::tuple(sizes[3])) {
        const auto [slot, begin, end] = h.cast<std::tuple<size_t, int64_t, int64_t>>();
        t.intervals.push_back({slot, begin, end});
    }
    t.alignment = sizes[4].cast<int64_t>();
}

void check_slots(const Template& t) {
    const size_t n = t.n_sizes + t.instructions.size();
    auto check_slot = [&](size_t slot) { check(slot < n, "PlanTemplate: no such slot"); };
    for (const Condition& c : t.conditions) check_slot(c.slot);
    for (const SymbolicInterval& i : t.intervals) check_slot(i.nbytes);
    for (const SymbolicNumber& i : t.symbolic.numbers) check_slot(i.slot);
    for (const SymbolicArgument& a : t.symbolic.arguments)
        for (const auto& [position, slot] : a.slots) check_slot(slot);
    for (const Alloc& a : t.program.allocs)
        check(a.arena < static_cast<int64_t>(t.intervals.size()), "PlanTemplate: no such interval");
    check(t.alignment >= 1, "PlanTemplate: an alignment is at least 1");
    check(t.program.device.is_cpu(), "PlanTemplate: launches on a GPU take numbers");
}

PyObject* template_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *spec = nullptr, *sizes = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "O!O!:PlanTemplate", &PyTuple_Type, &spec, &PyTuple_Type, &sizes)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "PlanTemplate takes two tuples");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto made = std::make_unique<Template>();
    read_sizes(py::reinterpret_borrow<py::tuple>(sizes), *made);
    read_program(py::reinterpret_borrow<py::tuple>(spec), made->program, made->symbolic);
    check_slots(*made);
    auto* self = as_template(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->made = made.release();
    self->keepalive = Py_NewRef(PyTuple_GET_ITEM(spec, 7));
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
    const std::vector<int64_t> slots = slots_for(*self.made, std::move(numbers));
    if (!is_for(*self.made, slots)) Py_RETURN_NONE;
    return new_plan(program_for(*self.made, slots), self.keepalive);
    END_HANDLE_TH_ERRORS
}

PyMethodDef template_methods[] = {
    {"at", template_at, METH_O,
     "at(sizes): the Plan for these sizes; None if they do not satisfy the conditions."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot template_slots[] = {
    {Py_tp_doc, const_cast<char*>("PlanTemplate(spec, sizes): a symbolic plan, which creates Plans for sizes "
                                  "(smelt/plan/symbolic_plan.py).")},
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
