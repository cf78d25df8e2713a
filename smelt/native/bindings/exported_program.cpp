// Files and plans of exported programs, for smelt/exported/program.py.
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/plan.h"
#include "exported/processor.h"
#include "exported/program_file.h"
#include "exported/program_plans.h"
#include "exported/tables.h"
#include "module.h"
#include "torch_python.h"

namespace smelt::exported {
namespace {

// Calls `function`; a FormatError becomes a ValueError.
template <class Function>
auto checked(Function function) {
    try {
        return function();
    } catch (const values::FormatError& error) {
        TORCH_CHECK_VALUE(false, error.what());
    }
}

std::string bytes_of(const py::handle& object) {
    if (!PyBytes_Check(object.ptr())) throw py::type_error("bytes are expected");
    return {PyBytes_AS_STRING(object.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()))};
}

// ------------------------------------------------------------------------------------------------ ProgramPlans

struct PlansObject {
    PyObject_HEAD ProgramPlans* plans;
};

PyObject* plans_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject *code = nullptr, *plans = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "SO!:ProgramPlans", &code, &PyTuple_Type, &plans)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "ProgramPlans takes no named arguments");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    std::vector<ProgramPlans::Source> sources;
    for (py::handle h : py::reinterpret_borrow<py::tuple>(plans)) {
        const auto pair = h.cast<std::pair<py::object, py::tuple>>();
        ProgramPlans::Source source{[section = bytes_of(pair.first)] { return unpacked(section); }, {}};
        for (py::handle tensor : pair.second) {
            if (!THPVariable_Check(tensor.ptr())) throw py::type_error("a constant is a Tensor");
            source.constants.push_back(THPVariable_Unpack(tensor.ptr()));
        }
        sources.push_back(std::move(source));
    }
    auto made =
        checked([&] { return std::make_unique<ProgramPlans>(unpacked(bytes_of(code)), std::move(sources)); });
    auto* self = reinterpret_cast<PlansObject*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->plans = made.release();
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

void plans_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<PlansObject*>(object)->plans;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* plans_at(PyObject* self, PyObject* sizes) {
    HANDLE_TH_ERRORS
    const auto numbers = py::handle(sizes).cast<std::vector<int64_t>>();
    auto program = checked([&] { return reinterpret_cast<PlansObject*>(self)->plans->at(numbers); });
    if (!program) Py_RETURN_NONE;
    return new_plan(std::move(program), self);
    END_HANDLE_TH_ERRORS
}

PyMethodDef plans_methods[] = {
    {"at", plans_at, METH_O, "at(sizes): a Plan for these sizes; None if no plan covers them."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot plans_slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "ProgramPlans(code, plans): the plans of a program's file, best first. `code` and plans "
                    "are sections as they are stored; a plan is a pair of its section and its constants.")},
    {Py_tp_new, reinterpret_cast<void*>(plans_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(plans_dealloc)},
    {Py_tp_methods, plans_methods},
    {0, nullptr}};

PyType_Spec plans_spec = {"smelt._native.ProgramPlans", sizeof(PlansObject), 0, Py_TPFLAGS_DEFAULT,
                          plans_slots};

// ------------------------------------------------------------------------------------------------ functions

PyObject* read_program(PyObject*, PyObject* args) {
    PyObject *path = nullptr, *weights = nullptr;
    if (!PyArg_ParseTuple(args, "O&O:read_program", PyUnicode_FSConverter, &path, &weights)) return nullptr;
    const auto owned = py::reinterpret_steal<py::object>(path);
    HANDLE_TH_ERRORS
    try {
        const ProgramFile file(bytes_of(owned));
        const auto other = py::handle(weights).cast<std::optional<std::string>>();
        read_tables(file.section("tables"));  // Python decodes them without checks
        py::dict sections;
        for (const auto& [name, data] : file.sections())
            if (name != "weights" && name != "state")
                sections[py::str(name)] = py::bytes(data.data(), data.size());
        py::list state;
        for (const auto& [name, tensor] : file.state(other))
            state.append(py::make_tuple(name, py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor))));
        return py::make_tuple(sections, state).release().ptr();
    } catch (const std::system_error& error) {
        const std::string what = error.what();  // "path: reason"
        errno = error.code().value();
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, what.substr(0, what.rfind(": ")).c_str());
    } catch (const values::FormatError& error) {
        TORCH_CHECK_VALUE(false, error.what());
    }
    END_HANDLE_TH_ERRORS
}

PyObject* unpacked_section(PyObject*, PyObject* section) {
    HANDLE_TH_ERRORS
    return checked([&] { return py::bytes(unpacked(bytes_of(section))); }).release().ptr();
    END_HANDLE_TH_ERRORS
}

PyObject* lacking_here(PyObject*, PyObject* args) {
    HANDLE_TH_ERRORS
    const auto [triple, needs] = py::handle(args).cast<std::pair<std::string, std::vector<std::string>>>();
    return py::cast(lacking(triple, needs)).release().ptr();
    END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"read_program", read_program, METH_VARARGS,
     "read_program(path, weights): the sections of a program's file except its weights, and its state. "
     "`weights`: the path of its file of weights, or None. Raises OSError, and ValueError for another file "
     "or a damaged one."},
    {"unpacked", unpacked_section, METH_O,
     "unpacked(section): a section of a graph, of plans or of machine code, unpacked. Raises ValueError."},
    {"lacking", lacking_here, METH_VARARGS,
     "lacking(triple, needs): the reason why code for a target does not run here; None if it runs."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_exported_program(PyObject* module) {
    PyObject* type = PyType_FromSpec(&plans_spec);
    if (!type || PyModule_AddObject(module, "ProgramPlans", type) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt::exported
