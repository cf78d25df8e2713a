// What is inside of the iterators of `itertools`, which do not tell it (`__reduce__`) from CPython 3.14 on.
//
// The layouts are those of itertoolsmodule.c of 3.14: fields behind the head of the object, in order.
#include "cpython_iterators.h"
#include "module.h"

#include <cstring>

namespace smelt {

namespace {

#if SMELT_PY314

// How a field is read: `o` an object as a tuple that is empty for a null pointer, `t` a tuple whose items may be null, as
// a tuple of such, `b` whether there is an object, `n` a number, `i` a flag, `p` an array with a number for each item of
// the tuple in the first field, `q` one with as many as the number in the fourth says.
struct Layout {
    const char* type;
    const char* fields;
    int others = 0;  // fields behind those, which are not read
};

constexpr Layout kLayouts[] = {
    {"chain", "oo"},      // where the next comes from, the one that is walked over
    {"count", "noo"},     // the next number if it is short, the next otherwise, the step
    {"cycle", "oon"},     // what is walked over the first time, what that gave, the next place in it
    {"repeat", "on"},     // what is given, how many times more
    {"islice", "onnnn"},  // what is walked over, the next place, the end or -1, the step, the place it is at
    {"accumulate", "oooo", 1},  // the total, what is walked over, the function, the value to begin with
    {"starmap", "oo"},
    {"filterfalse", "oo"},
    {"compress", "oo"},
    {"takewhile", "ooi"},  // the function, what is walked over, whether it has ended
    {"dropwhile", "ooi"},  // the same, whether it has begun
    {"zip_longest", "nntbo"},
    {"product", "opbi"},  // the pools, the places in them, whether one was given, whether it has ended
    {"permutations", "oppbni"},
    {"combinations",
     "oqbni"},  // the pool, the places in it, whether one was given, how many, whether it has ended
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

// Whether its objects are as large as the layout says: all fields have the size of a pointer.
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
     "parts_of_itertools(x): what is inside of an iterator of itertools from 3.14 on, "
     "None of another object."},
    {}};

}  // namespace

int init_itertools(PyObject* module) {
    return PyModule_AddFunctions(module, itertools_functions);
}

}  // namespace smelt
