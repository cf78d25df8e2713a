#include "bindings/values.h"

#include <utility>
#include <vector>

#include "bindings/device_kernel.h"
#include "module.h"
#include "torch_script.h"
#include "values/decode.h"

namespace smelt {
namespace {

using values::Items;
using values::Node;
using values::Value;

Value integer(PyObject* object) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow) throw py::value_error("an integer of more than 64 bits");
    return static_cast<int64_t>(number);
}

Value sequence(PyObject* object, values::Kind kind) {
    Node made{kind};
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
    made.items.reserve(static_cast<size_t>(n));
    for (Py_ssize_t i = 0; i < n; ++i) made.items.push_back(value_of(PySequence_Fast_GET_ITEM(object, i)));
    return made;
}

Value dict(PyObject* object) {
    Node made{values::Kind::dict};
    PyObject *key = nullptr, *item = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &item);) {
        made.items.push_back(value_of(key));
        made.items.push_back(value_of(item));
    }
    return made;
}

std::string text(PyObject* object) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(object, &size);
    if (!data) throw python_error();
    return {data, static_cast<size_t>(size)};
}

}  // namespace

Value value_of(PyObject* object) {
    if (object == Py_None) return {};
    if (PyBool_Check(object)) return object == Py_True;
    if (PyLong_Check(object)) return integer(object);
    if (PyUnicode_Check(object)) return text(object);
    if (PyTuple_Check(object)) return sequence(object, values::Kind::tuple);
    if (PyList_Check(object)) return sequence(object, values::Kind::list);
    if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
    if (const auto dtype = as_dtype(object)) return *dtype;
    if (const auto device = as_device(object)) return *device;
    if (PyComplex_Check(object))
        return c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
    if (PyBytes_Check(object))
        return values::Bytes{{PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))}};
    if (PyDict_Check(object)) return dict(object);
    if (const auto layout = as_layout(object)) return *layout;
    if (const auto format = as_memory_format(object)) return *format;
    return boxed_object(object);
}

plan::Surroundings surroundings_of(PyObject* constants, PyObject* kernels) {
    plan::Surroundings made;
    for (py::handle h : py::reinterpret_borrow<py::tuple>(constants)) {
        if (!THPVariable_Check(h.ptr())) throw py::type_error("Plan: a constant is a Tensor");
        made.constants.push_back(THPVariable_Unpack(h.ptr()));
    }
    for (py::handle h : py::reinterpret_borrow<py::tuple>(kernels)) {
        if (devices::is_kernel(h.ptr()))
            made.kernels.push_back({nullptr, &devices::as_kernel(h.ptr())});
        else
            made.kernels.push_back({reinterpret_cast<void*>(h.cast<uintptr_t>()), nullptr});  // NOLINT
    }
    return made;
}

// ------------------------------------------------------------------------------------------------ for Python

namespace {

// Makes Python objects of values. `makers`: by the tag of a kind that only Python knows ("y", "/", "%", "z", "o") a function of
// its parts; by the number of a record, its class.
class ToPython {
  public:
    explicit ToPython(py::dict makers) : makers_(std::move(makers)) {}

    size_t fields_of(uint64_t kind) const {
        const py::int_ key(kind);
        if (!makers_.contains(key)) throw values::FormatError("an unknown kind of record");
        return py::len(py::tuple(makers_[key])[1]);
    }

    py::object operator()(const Value& value) const {
        if (value.is_none()) return py::none();
        if (const auto* x = value.get<bool>()) return py::bool_(*x);
        if (const auto* x = value.get<int64_t>()) return py::int_(*x);
        if (const auto* x = value.get<double>()) return py::float_(*x);
        if (const auto* x = value.get<c10::complex<double>>())
            return owned(PyComplex_FromDoubles(x->real(), x->imag()));
        if (const auto* x = value.get<std::string>()) return text(*x);
        if (const auto* x = value.get<values::Bytes>()) return py::bytes(x->data);
        if (const auto* x = value.get<values::LargeInteger>())
            return py::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
                .attr("from_bytes")(py::bytes(x->data), "little", py::arg("signed") = true);
        if (const auto* x = value.get<c10::ScalarType>()) return dtype_object(*x);
        if (const auto* x = value.get<c10::Layout>()) return layout_object(*x);
        if (const auto* x = value.get<c10::MemoryFormat>()) return memory_format_object(*x);
        if (const auto* x = value.get<c10::Device>()) return owned(THPDevice_New(*x));
        return node(values::as<Node>(value, "a value with an encoding"));
    }

  private:
    static py::object owned(PyObject* object) {
        if (!object) throw python_error();
        return py::reinterpret_steal<py::object>(object);
    }

    static py::object text(const std::string& data) {
        PyObject* made = PyUnicode_DecodeUTF8(data.data(), static_cast<Py_ssize_t>(data.size()), nullptr);
        if (made) return owned(made);
        PyErr_Clear();
        throw values::FormatError("a text is not UTF-8");
    }

    py::tuple parts(const Items& items) const {
        py::tuple made(items.size());
        for (size_t i = 0; i < items.size(); ++i) made[i] = (*this)(items[i]);
        return made;
    }

    py::object node(const Node& node) const {
        switch (node.kind) {
            case values::Kind::tuple:
                return parts(node.items);
            case values::Kind::list:
                return py::list(parts(node.items));
            case values::Kind::dict: {
                py::dict made;
                for (size_t i = 0; i < node.items.size(); i += 2)
                    made[(*this)(node.items[i])] = (*this)(node.items[i + 1]);
                return made;
            }
            case values::Kind::record:
                return py::tuple(makers_[py::int_(node.number)])[0](*parts(node.items));
            default:
                return makers_[py::str(std::string(1, static_cast<char>(node.kind)))](*parts(node.items));
        }
    }

    py::dict makers_;
};

PyObject* decode(PyObject*, PyObject* args) {
    Py_buffer data;
    PyObject* makers = nullptr;
    if (!PyArg_ParseTuple(args, "y*O!:decode", &data, &PyDict_Type, &makers)) return nullptr;
    const auto release = std::unique_ptr<Py_buffer, void (*)(Py_buffer*)>(&data, PyBuffer_Release);
    HANDLE_TH_ERRORS
    try {
        const ToPython to_python(py::reinterpret_borrow<py::dict>(makers));
        const Value value =
            values::decode({static_cast<const char*>(data.buf), static_cast<size_t>(data.len)},
                           [&](uint64_t kind) { return to_python.fields_of(kind); });
        return to_python(value).release().ptr();
    } catch (const values::FormatError& error) {
        TORCH_CHECK_VALUE(false, error.what());
    }
    END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"decode", decode, METH_VARARGS,
     "decode(data, makers): the value that `data` holds (smelt/plan/value_encoding.py). Raises ValueError."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int init_values(PyObject* module) {
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt
