#include "bindings/device_kernel.h"

#include <array>

#include "devices/ptx_linker.h"
#include "gil.h"
#include "module.h"
#include "torch_python.h"

namespace smelt::devices {
namespace {

struct KernelObject {
    PyObject_HEAD Kernel* kernel;
};

std::string text_of(PyObject* bytes) {
    return {PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes))};
}

PyTypeObject* kernel_type = nullptr;

PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static const std::array<const char*, 6> names{"image", "name", "threads", "shared", "parts", nullptr};
    PyObject* image = nullptr;
    const char* name = nullptr;
    unsigned threads = 0, shared = 0, parts = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SsII|I:DeviceKernel", const_cast<char**>(names.data()),
                                     &image, &name, &threads, &shared, &parts))
        return nullptr;
    auto* self = reinterpret_cast<KernelObject*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->kernel = new Kernel({text_of(image)}, name, threads, shared, parts);
    return reinterpret_cast<PyObject*>(self);
}

void kernel_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<KernelObject*>(object)->kernel;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* kernel_load(PyObject* self, PyObject* args) {
    HANDLE_TH_ERRORS
    int device = 0;
    PyObject* image = nullptr;
    if (!PyArg_ParseTuple(args, "i|S:load", &device, &image)) return nullptr;
    const std::vector<std::string> images{image ? text_of(image) : std::string()};
    Kernel& kernel = as_kernel(self);
    {
        const ReleaseGil release;
        if (image)
            kernel.on(device, images);
        else
            kernel.on(device);
    }
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* kernel_is_loaded(PyObject* self, PyObject* device) {
    HANDLE_TH_ERRORS
    return PyBool_FromLong(as_kernel(self).is_on(static_cast<int>(THPUtils_unpackLong(device))));
    END_HANDLE_TH_ERRORS
}

PyObject* link_ptx(PyObject*, PyObject* args) {
    HANDLE_TH_ERRORS
    PyObject* ptx = nullptr;
    int device = 0;
    if (!PyArg_ParseTuple(args, "Si:link_ptx", &ptx, &device)) return nullptr;
    const std::string text = text_of(ptx);
    std::string code;
    {
        const ReleaseGil release;
        code = linked(text, device);
    }
    return PyBytes_FromStringAndSize(code.data(), static_cast<Py_ssize_t>(code.size()));
    END_HANDLE_TH_ERRORS
}

PyObject* driver_version(PyObject*, PyObject*) {
    HANDLE_TH_ERRORS
    int version = 0;
    check(driver().version(&version), "asking for the driver's version");
    return PyLong_FromLong(version);
    END_HANDLE_TH_ERRORS
}

PyObject* set_driver(PyObject*, PyObject* file) {
    const char* text = PyUnicode_AsUTF8(file);
    if (!text) return nullptr;
    use_driver(text);
    Py_RETURN_NONE;
}

PyObject* set_hip(PyObject*, PyObject*) {
    use_hip();
    Py_RETURN_NONE;
}

PyMethodDef kernel_methods[] = {
    {"load", kernel_load, METH_VARARGS,
     "load(device: int, image: bytes = ...): loads the kernel on a device, without the GIL."},
    {"is_loaded", kernel_is_loaded, METH_O, "is_loaded(device: int) -> bool"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kernel_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("DeviceKernel(image, name, threads, shared, parts=0): the kernel `name` of `image` "
                       "(PTX text or machine code), with blocks of `threads` threads and `shared` bytes of "
                       "shared memory; `parts`: the maximum of launches in a batched launch.")},
    {Py_tp_new, reinterpret_cast<void*>(kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(kernel_dealloc)},
    {Py_tp_methods, kernel_methods},
    {0, nullptr}};

PyType_Spec kernel_spec = {"smelt._native.DeviceKernel", sizeof(KernelObject), 0, Py_TPFLAGS_DEFAULT,
                           kernel_slots};

PyMethodDef methods[] = {
    {"use_driver", set_driver, METH_O,
     "use_driver(file): uses a library instead of the machine's GPU driver, for tests. Call it before the "
     "first kernel is loaded."},
    {"use_hip", set_hip, METH_NOARGS,
     "use_hip(): selects AMD's driver. Never run on such a GPU. Call it before the first kernel is loaded."},
    {"link_ptx", link_ptx, METH_VARARGS,
     "link_ptx(ptx: bytes, device: int) -> bytes: machine code for the device, compiled by the driver "
     "without the GIL."},
    {"driver_version", driver_version, METH_NOARGS, "driver_version() -> int"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool is_kernel(PyObject* object) {
    return Py_TYPE(object) == kernel_type;
}

Kernel& as_kernel(PyObject* object) {
    return *reinterpret_cast<KernelObject*>(object)->kernel;
}

int init_device_kernel(PyObject* module) {
    PyObject* type = PyType_FromSpec(&kernel_spec);
    if (!type) return -1;
    kernel_type = reinterpret_cast<PyTypeObject*>(type);  // never freed
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddObjectRef(module, "DeviceKernel", type);
}

}  // namespace smelt::devices
