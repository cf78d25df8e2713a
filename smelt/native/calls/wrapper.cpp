// The wrapper as a Python object: it binds to instances as its function does and shows the function's attributes.
#include "calls/wrapper.h"

#include <cstring>

#include "calls/thread_state.h"
#include "module.h"

#include <structmember.h>

#include <cstring>

namespace smelt::calls {

PyTypeObject wrapped_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.Wrapped", sizeof(Wrapped)};

namespace {

int set_default(PyObject* fn, PyObject* value, int (*set)(PyObject*, PyObject*)) {
    return set(fn, value ? value : Py_None);
}

PyObject* bind_wrapper(PyObject* self, PyObject* instance, PyObject*) {
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

int traverse_wrapper(PyObject* self, visitproc visit, void* arg) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    Py_VISIT(w->fn);
    Py_VISIT(w->original);
    Py_VISIT(w->callback);
    Py_VISIT(w->traced);
    Py_VISIT(w->dict);
    Py_VISIT(w->table.entries);
    return 0;
}

int clear_wrapper(PyObject* self) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    Py_CLEAR(w->callback);
    Py_CLEAR(w->traced);
    Py_CLEAR(w->dict);
    w->table.replace(nullptr);
    return 0;
}

void dealloc_wrapper(PyObject* self) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    PyObject_GC_UnTrack(self);
    if (w->weakrefs) PyObject_ClearWeakRefs(self);
    clear_wrapper(self);
    Py_DECREF(w->fn);
    Py_XDECREF(w->original);
    Py_XDECREF(w->original_code);
    PyObject_GC_Del(self);
}

PyObject* repr_wrapper(PyObject* self) {
    return PyUnicode_FromFormat("<compiled %R>", reinterpret_cast<Wrapped*>(self)->fn);
}

// Own attributes first, then the function's: __code__, __defaults__, __annotations__, ...
PyObject* get_wrapper_attribute(PyObject* self, PyObject* name) {
    PyObject* value = PyObject_GenericGetAttr(self, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(reinterpret_cast<Wrapped*>(self)->fn, name);
}

// __name__ and the like: the value that was set on the wrapper, or else the function's.
PyObject* get_named(PyObject* self, void* name) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    PyObject* own = w->dict ? PyDict_GetItemString(w->dict, static_cast<char*>(name)) : nullptr;
    return own ? Py_NewRef(own) : PyObject_GetAttrString(w->fn, static_cast<char*>(name));
}

int set_named(PyObject* self, PyObject* value, void* name) {
    PyObject* dict = PyObject_GenericGetDict(self, nullptr);
    if (!dict) return -1;
    int failed = value ? PyDict_SetItemString(dict, static_cast<char*>(name), value)
                       : PyDict_DelItemString(dict, static_cast<char*>(name));
    Py_DECREF(dict);
    return failed;
}

// __code__, __defaults__ and __kwdefaults__ of the user's function: assignments here go to that function.
PyObject* get_part(PyObject* self, void* name) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    if (change_of(w) == Change::Defaults && !take_over_defaults(w)) return nullptr;
    // The code of the user's function also says whether calls return generators or coroutines.
    bool is_code = std::strcmp(static_cast<char*>(name), "__code__") == 0;
    PyObject* owner = is_code && w->original ? w->original : w->fn;
    return PyObject_GetAttrString(owner, static_cast<char*>(name));
}

int set_part(PyObject* self, PyObject* value, void* name) {
    auto* w = reinterpret_cast<Wrapped*>(self);
    PyObject* owner = w->original ? w->original : w->fn;
    return PyObject_SetAttrString(owner, static_cast<char*>(name), value);
}

// A copy is the wrapper itself, as for functions.
PyObject* copy_wrapper(PyObject* self, PyObject*) {
    return Py_NewRef(self);
}

// Makes `isinstance(wrapper, FunctionType)` true, as for the result of torch.compile: torch.fx and torch.jit.script
// only accept functions, and read no more of them than attributes, which the wrapper has.
PyObject* get_class(PyObject*, void*) {
    return Py_NewRef(object(&PyFunction_Type));
}

PyGetSetDef wrapper_properties[] = {
    {"__class__", get_class, nullptr, nullptr, nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__name__", get_named, set_named, nullptr, const_cast<char*>("__name__")},
    {"__qualname__", get_named, set_named, nullptr, const_cast<char*>("__qualname__")},
    {"__module__", get_named, set_named, nullptr, const_cast<char*>("__module__")},
    {"__doc__", get_named, set_named, nullptr, const_cast<char*>("__doc__")},
    {"__code__", get_part, set_part, nullptr, const_cast<char*>("__code__")},
    {"__defaults__", get_part, set_part, nullptr, const_cast<char*>("__defaults__")},
    {"__kwdefaults__", get_part, set_part, nullptr, const_cast<char*>("__kwdefaults__")},
    {}};
PyMemberDef wrapper_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Wrapped, fn), READONLY, "the function that was compiled"},
    {"_smelt_compiled_under_line_tracers", T_BOOL, offsetof(Wrapped, compiled_under_line_tracers), 0,
     "whether debuggers and coverage tools do not make calls eager"},
    {}};
PyMethodDef wrapper_methods[] = {
    {"__copy__", copy_wrapper, METH_NOARGS, nullptr}, {"__deepcopy__", copy_wrapper, METH_O, nullptr}, {}};

int ready_wrapped_type() {
    PyTypeObject& t = wrapped_type;
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                 Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    t.tp_vectorcall_offset = offsetof(Wrapped, vectorcall);
    t.tp_weaklistoffset = offsetof(Wrapped, weakrefs);
    t.tp_dictoffset = offsetof(Wrapped, dict);
    t.tp_call = PyVectorcall_Call;
    t.tp_descr_get = bind_wrapper;
    t.tp_traverse = traverse_wrapper;
    t.tp_clear = clear_wrapper;
    t.tp_dealloc = dealloc_wrapper;
    t.tp_repr = repr_wrapper;
    t.tp_getattro = get_wrapper_attribute;
    t.tp_setattro = PyObject_GenericSetAttr;
    t.tp_getset = wrapper_properties;
    t.tp_members = wrapper_members;
    t.tp_methods = wrapper_methods;
    return PyType_Ready(&t);
}

PyObject* py_wrap(PyObject*, PyObject* args) {
    PyObject *fn, *callback = Py_None, *traced = Py_None, *original = Py_None;
    if (!PyArg_ParseTuple(args, "O!|OOO:wrap", &PyFunction_Type, &fn, &callback, &traced, &original))
        return nullptr;
    for (PyObject* callable : {callback, traced})
        if (callable != Py_None && !PyCallable_Check(callable))
            return PyErr_Format(PyExc_TypeError, "wrap: what is called must be callable or None");
    bool copied = PyFunction_Check(original);
    auto* self = PyObject_GC_New(Wrapped, &wrapped_type);
    if (!self) return nullptr;
    self->vectorcall = call_wrapper;
    self->fn = Py_NewRef(fn);
    self->original = copied ? Py_NewRef(original) : nullptr;
    self->original_code = copied ? Py_NewRef(PyFunction_GET_CODE(original)) : nullptr;
    self->callback = callback == Py_None ? nullptr : Py_NewRef(callback);
    self->traced = traced == Py_None ? nullptr : Py_NewRef(traced);
    self->dict = self->weakrefs = nullptr;
    self->table = EntryTable();
    self->compiled_under_line_tracers = false;
    PyObject_GC_Track(self);
    return object(self);
}

PyMethodDef wrapper_functions[] = {
    {"wrap", py_wrap, METH_VARARGS,
     R"(wrap(fn, callback=None, traced=None, original=None): a callable that answers calls of the function `fn`
from compiled entries.

On a miss it calls callback(fn, slots). True: look again; False: run this call eagerly; a callable: run eagerly, then
call it unless the run raised. Under another tracer `traced`, or else `fn`, runs instead.)"},
    {}};

}  // namespace

bool take_over_defaults(Wrapped* self) {
    auto* from = reinterpret_cast<PyFunctionObject*>(self->original);
    return set_default(self->fn, from->func_defaults, PyFunction_SetDefaults) == 0 &&
           set_default(self->fn, from->func_kwdefaults, PyFunction_SetKwDefaults) == 0;
}

int init_wrapper(PyObject* module) {
    if (ready_wrapped_type() < 0 || PyModule_AddObjectRef(module, "Wrapped", object(&wrapped_type)) < 0)
        return -1;
    return PyModule_AddFunctions(module, wrapper_functions);
}

}  // namespace smelt::calls
