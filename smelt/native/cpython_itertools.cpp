// The state of `itertools` iterators, which have no `__reduce__` from CPython 3.14 on.
//
// Layouts from itertoolsmodule.c of 3.14: the fields after the object header, in order.
#include "cpython_iterators.h"
#include "module.h"

#include <cstring>

namespace smelt {

namespace {

#if SMELT_PY314

// The type of a field. `o`: an object, read as a tuple that is empty for a null pointer. `t`: a tuple whose items may
// be null, read as a tuple of those. `b`: whether there is an object. `n`: a number. `i`: a flag. `p`: an array with
// one number per item of the tuple in the first field. `q`: an array whose length is the number in the fourth field.
struct Layout {
    const char* type;
    const char* fields;
    int others = 0;  // further fields, which are not read
};

constexpr Layout kLayouts[] = {
    {"chain", "oo"},            // source of the iterators, current iterator
    {"count", "noo"},           // the next number if it is short, else the next object, the step
    {"cycle", "oon"},           // first iteration's source, saved items, next index
    {"repeat", "on"},           // the object, remaining repetitions
    {"islice", "onnnn"},        // source, next index, stop or -1, step, current index
    {"accumulate", "oooo", 1},  // total, source, function, initial value
    {"starmap", "oo"},
    {"filterfalse", "oo"},
    {"compress", "oo"},
    {"takewhile", "ooi"},  // function, source, whether it has stopped
    {"dropwhile", "ooi"},  // function, source, whether it has started
    {"zip_longest", "nntbo"},
    {"product", "opbi"},  // pools, indices, whether a result was yielded, whether it has stopped
    {"permutations", "oppbni"},
    {"combinations", "oqbni"},  // pool, indices, whether a result was yielded, length, whether it has stopped
    {"combinations_with_replacement", "oqbni"},
};

PyObject* optional(PyObject* x) {
    return x ? PyTuple_Pack(1, x) : PyTuple_New(0);
}

PyObject* optional_items(PyObject* tuple) {
    Py_ssize_t size = tuple ? PyTuple_GET_SIZE(tuple) : 0;
    PyObject* items = PyTuple_New(size);
    for (Py_ssize_t i = 0; items && i < size; i++) {
        PyObject* item = optional(PyTuple_GET_ITEM(tuple, i));
        if (!item) Py_CLEAR(items);
        if (item) PyTuple_SET_ITEM(items, i, item);
    }
    return items;
}

PyObject* numbers(const Py_ssize_t* from, Py_ssize_t count) {
    PyObject* made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject* number = PyLong_FromSsize_t(from[i]);
        if (!number) Py_CLEAR(made);
        if (number) PyTuple_SET_ITEM(made, i, number);
    }
    return made;
}

PyObject* read(char kind, void* const* fields, void* const* at) {
    auto* object = static_cast<PyObject*>(*at);
    switch (kind) {
        case 'o':
            return optional(object);
        case 't':
            return optional_items(object);
        case 'b':
            return PyBool_FromLong(object != nullptr);
        case 'n':
            return PyLong_FromSsize_t(reinterpret_cast<Py_ssize_t>(*at));
        case 'i':
            return PyBool_FromLong(*reinterpret_cast<const int*>(at));
        case 'q':
            return numbers(static_cast<const Py_ssize_t*>(*at), reinterpret_cast<Py_ssize_t>(fields[3]));
        default:
            return numbers(static_cast<const Py_ssize_t*>(*at), Py_SIZE(static_cast<PyObject*>(fields[0])));
    }
}

// Whether the object size matches the layout: all fields have the size of a pointer.
bool fits(const Layout& layout, PyTypeObject* type) {
    const size_t count = strlen(layout.fields) + layout.others;
    return static_cast<size_t>(type->tp_basicsize) == sizeof(PyObject) + count * sizeof(void*);
}

const char* fields_of(PyObject* x) {
    const char* name = Py_TYPE(x)->tp_name;
    constexpr const char* kModule = "itertools.";
    if (made_by_python(Py_TYPE(x))) return nullptr;
    if (strncmp(name, kModule, strlen(kModule)) != 0) return nullptr;
    for (const Layout& layout : kLayouts)
        if (strcmp(name + strlen(kModule), layout.type) == 0)
            return fits(layout, Py_TYPE(x)) ? layout.fields : nullptr;
    return nullptr;
}

#endif

}  // namespace

PyObject* parts_of_itertools([[maybe_unused]] PyObject* x) {
#if SMELT_PY314
    const char* fields = fields_of(x);
    if (!fields) Py_RETURN_NONE;
    auto* at = reinterpret_cast<void* const*>(reinterpret_cast<char*>(x) + sizeof(PyObject));
    auto count = static_cast<Py_ssize_t>(strlen(fields));
    PyObject* parts = PyTuple_New(count);
    for (Py_ssize_t i = 0; parts && i < count; i++) {
        PyObject* part = read(fields[i], at, at + i);
        if (!part) Py_CLEAR(parts);
        if (part) PyTuple_SET_ITEM(parts, i, part);
    }
    return parts;
#else
    Py_RETURN_NONE;
#endif
}

namespace {

PyObject* py_parts_of_itertools(PyObject*, PyObject* x) {
    return parts_of_itertools(x);
}

PyMethodDef itertools_functions[] = {
    {"parts_of_itertools", py_parts_of_itertools, METH_O,
     "parts_of_itertools(x): the fields of an itertools iterator from 3.14 on; None for another object."},
    {}};

}  // namespace

int init_itertools(PyObject* module) {
    return PyModule_AddFunctions(module, itertools_functions);
}

}  // namespace smelt
