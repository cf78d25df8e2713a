// Layouts from CPython's dictobject.c, listobject.c, tupleobject.c, unicodeobject.c, rangeobject.c, enumobject.c and
// bltinmodule.c; except for ranges they are the same from 3.11 on.
#include "cpython_iterators.h"

#include "guards/kind_table.h"

namespace smelt {

namespace {

PyTypeObject* ascii_iterator;
PyTypeObject* text_iterator;

struct Walk {  // over a list (in either direction), a tuple or a str
    PyObject_HEAD Py_ssize_t index;
    PyObject* over;  // null at the end
};

struct DictWalk {
    PyObject_HEAD PyDictObject* over;  // null at the end
    Py_ssize_t used;                   // its size at the start
    Py_ssize_t position;
    PyObject* result;
    Py_ssize_t left;
};

struct RangeWalk {
    PyObject_HEAD
#if !SMELT_PY312
        long index;
#endif
    long start;
    long step;
    long length;

    long taken() const {
#if SMELT_PY312
        return 0;  // `start` and `length` describe the remaining items
#else
        return index;
#endif
    }
};

struct Enumerate {
    PyObject_HEAD Py_ssize_t index;
    PyObject* inner;
    PyObject* result;
    PyObject* long_index;
};

struct Zip {
    PyObject_HEAD Py_ssize_t size;
    PyObject* inner;
    PyObject* result;
    int strict;
};

template <class Layout>
Layout* as(PyObject* iterator) {
    return reinterpret_cast<Layout*>(iterator);
}

bool walks_text(PyObject* iterator) {
    return Py_IS_TYPE(iterator, ascii_iterator) || Py_IS_TYPE(iterator, text_iterator);
}

bool walks_list(PyObject* iterator) {
    return Py_IS_TYPE(iterator, &PyListIter_Type) || Py_IS_TYPE(iterator, &PyListRevIter_Type);
}

bool is_walk(PyObject* iterator) {
    return walks_list(iterator) || Py_IS_TYPE(iterator, &PyTupleIter_Type) || walks_text(iterator);
}

bool walks_dict(PyObject* iterator) {
    return Py_IS_TYPE(iterator, &PyDictIterKey_Type) || Py_IS_TYPE(iterator, &PyDictIterValue_Type) ||
           Py_IS_TYPE(iterator, &PyDictIterItem_Type);
}

Py_ssize_t entries_left(DictWalk* walk) {  // -1: it will raise, because the dictionary has changed
    PyDictObject* dict = walk->over;
    if (!dict) return 0;
    if (walk->used != dict->ma_used) return -1;
    Py_ssize_t left = 0, position = walk->position;
    if (!dict->ma_values && dict->ma_keys->dk_nentries == dict->ma_used)  // no gaps
        left = dict->ma_used - position;
    else
        while (PyDict_Next(reinterpret_cast<PyObject*>(dict), &position, nullptr, nullptr)) left++;
    return left <= walk->left ? left : -1;
}

PyObject* entry_ahead(PyObject* iterator, Py_ssize_t count) {
    auto* walk = as<DictWalk>(iterator);
    Py_ssize_t position = walk->position;
    PyObject *key, *value;
    do {
        if (!PyDict_Next(reinterpret_cast<PyObject*>(walk->over), &position, &key, &value)) return nullptr;
    } while (count--);
    if (Py_IS_TYPE(iterator, &PyDictIterItem_Type)) return PyTuple_Pack(2, key, value);
    return Py_NewRef(Py_IS_TYPE(iterator, &PyDictIterKey_Type) ? key : value);
}

Py_ssize_t size_of(PyObject* over) {
    return PyUnicode_Check(over) ? PyUnicode_GET_LENGTH(over) : Py_SIZE(over);
}

Py_ssize_t items_left(PyObject* iterator) {  // -1: unknown
    if (Py_IS_TYPE(iterator, &PyRangeIter_Type)) {
        auto* range = as<RangeWalk>(iterator);
        return range->length - range->taken();
    }
    if (walks_dict(iterator)) return entries_left(as<DictWalk>(iterator));
    if (!is_walk(iterator)) return -1;
    auto* walk = as<Walk>(iterator);
    if (!walk->over) return 0;
    Py_ssize_t size = size_of(walk->over);
    if (Py_IS_TYPE(iterator, &PyListRevIter_Type)) return walk->index < size ? walk->index + 1 : 0;
    return walk->index < size ? size - walk->index : 0;
}

PyObject* left_part(PyObject* iterator) {
    Py_ssize_t left = items_left(iterator);
    return left < 0 ? nullptr : PyLong_FromSsize_t(left);
}

PyObject* over_part(PyObject* iterator) {
    if (walks_dict(iterator)) {
        auto* over = reinterpret_cast<PyObject*>(as<DictWalk>(iterator)->over);
        return Py_NewRef(over ? over : Py_None);
    }
    if (!walks_list(iterator)) return nullptr;
    auto* walk = as<Walk>(iterator);
    // an exhausted reverse iterator yields nothing more; 3.13 keeps the list nevertheless
    bool ended = !walk->over || walk->index < 0;
    return Py_NewRef(ended ? Py_None : walk->over);
}

PyObject* inner_part(PyObject* iterator) {
    if (Py_IS_TYPE(iterator, &PyEnum_Type)) return Py_NewRef(as<Enumerate>(iterator)->inner);
    return Py_IS_TYPE(iterator, &PyZip_Type) ? Py_NewRef(as<Zip>(iterator)->inner) : nullptr;
}

PyObject* index_part(PyObject* iterator) {
    if (!Py_IS_TYPE(iterator, &PyEnum_Type)) return nullptr;
    Py_ssize_t index = as<Enumerate>(iterator)->index;
    return index == PY_SSIZE_T_MAX ? nullptr : PyLong_FromSsize_t(index);
}

PyObject* strict_part(PyObject* iterator) {
    return Py_IS_TYPE(iterator, &PyZip_Type) ? PyBool_FromLong(as<Zip>(iterator)->strict) : nullptr;
}

struct PartKind {
    const char* name;
    IteratorPart read;
};

constexpr PartKind kParts[] = {
    {"left", left_part},      // the number of remaining items
    {"over", over_part},      // the list or dictionary that it iterates over; None at the end
    {"inner", inner_part},    // of enumerate an iterator, of zip a tuple of iterators
    {"index", index_part},    // the next number of enumerate
    {"strict", strict_part},  // of zip
};

}  // namespace

PyObject* item_ahead(PyObject* iterator, Py_ssize_t count) {
    if (count < 0 || count >= items_left(iterator)) return nullptr;
    if (Py_IS_TYPE(iterator, &PyRangeIter_Type)) {
        auto* range = as<RangeWalk>(iterator);
        return PyLong_FromLong(range->start + (range->taken() + static_cast<long>(count)) * range->step);
    }
    if (walks_dict(iterator)) return entry_ahead(iterator, count);
    auto* walk = as<Walk>(iterator);
    if (Py_IS_TYPE(iterator, &PyListRevIter_Type))
        return Py_NewRef(PyList_GET_ITEM(walk->over, walk->index - count));
    Py_ssize_t index = walk->index + count;
    if (PyList_Check(walk->over)) return Py_NewRef(PyList_GET_ITEM(walk->over, index));
    if (PyTuple_Check(walk->over)) return Py_NewRef(PyTuple_GET_ITEM(walk->over, index));
    return PyUnicode_FromOrdinal(PyUnicode_READ_CHAR(walk->over, index));
}

IteratorPart find_iterator_part(PyObject* name) {
    const PartKind* found = guards::find_row(kParts, name, "part of an iterator");
    return found ? found->read : nullptr;
}

bool keeps(PyObject* iterator, PyObject* inside) {
    auto at = [&](size_t size, auto pointer) {
        bool is_large_enough = Py_TYPE(iterator)->tp_basicsize >= static_cast<Py_ssize_t>(size);
        return is_large_enough && reinterpret_cast<PyObject*>(*pointer) == inside;
    };
    if (is_walk(iterator)) return at(sizeof(Walk), &as<Walk>(iterator)->over);
    if (walks_dict(iterator)) return at(sizeof(DictWalk), &as<DictWalk>(iterator)->over);
    if (Py_IS_TYPE(iterator, &PyEnum_Type)) return at(sizeof(Enumerate), &as<Enumerate>(iterator)->inner);
    return Py_IS_TYPE(iterator, &PyZip_Type) && at(sizeof(Zip), &as<Zip>(iterator)->inner);
}

bool init_iterators() {
    auto type_of = [](const char* text) -> PyTypeObject* {
        PyObject* object = PyUnicode_FromString(text);
        PyObject* iterator = object ? PyObject_GetIter(object) : nullptr;
        PyTypeObject* type = iterator ? Py_TYPE(iterator) : nullptr;  // a static type
        Py_XDECREF(object);
        Py_XDECREF(iterator);
        return type;
    };
    return (ascii_iterator = type_of("a")) && (text_iterator = type_of("\xc4\x80"));
}

}  // namespace smelt
