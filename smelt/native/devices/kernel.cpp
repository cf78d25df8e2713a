#include "devices/kernel.h"

#include <c10/core/DeviceGuard.h>

#include <array>

#include "module.h"
#include "torch_python.h"

namespace smelt::devices {
namespace {

constexpr int kErrorLog = 5, kErrorLogBytes = 6;     // of CUjit_option
constexpr int kMaxDynamicShared = 8;                 // of CUfunction_attribute
constexpr unsigned kSharedWithoutAsking = 48 << 10;  // bytes

}  // namespace

Function Kernel::on(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<size_t>(device) >= functions_.size()) functions_.resize(device + 1, nullptr);
    if (!functions_[device]) {
        const c10::DeviceGuard guard(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
        enter(device);
        functions_[device] = load();
    }
    return functions_[device];
}

Function Kernel::load() const {
    std::array<char, 4096> log{};
    std::array<int, 2> names{kErrorLog, kErrorLogBytes};
    std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size())};  // NOLINT
    Module module = nullptr;
    check(driver().load_module(&module, image_.c_str(), names.size(), names.data(), values.data()),
          "loading the kernel " + name_ + (log[0] ? std::string(" (") + log.data() + ")" : ""));
    Function function = nullptr;
    check(driver().function_of_module(&function, module, name_.c_str()), "finding the kernel " + name_);
    if (shared > kSharedWithoutAsking)
        check(driver().set_attribute(function, kMaxDynamicShared, static_cast<int>(shared)),
              "asking for the shared memory of the kernel " + name_);
    return function;
}

// ------------------------------------------------------------------------------------------------ for Python

namespace {

struct KernelObject {
    PyObject_HEAD Kernel* kernel;
};

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
    self->kernel = new Kernel(std::string(PyBytes_AS_STRING(image), PyBytes_GET_SIZE(image)), name, threads,
                              shared, parts);
    return reinterpret_cast<PyObject*>(self);
}

void kernel_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<KernelObject*>(object)->kernel;
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* kernel_load(PyObject* self, PyObject* device) {
    HANDLE_TH_ERRORS
    const auto index = static_cast<int>(THPUtils_unpackLong(device));
    PyThreadState* state = PyEval_SaveThread();
    try {
        as_kernel(self).on(index);
    } catch (...) {
        PyEval_RestoreThread(state);
        throw;
    }
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

PyObject* set_driver(PyObject*, PyObject* file) {
    const char* text = PyUnicode_AsUTF8(file);
    if (!text) return nullptr;
    use_driver(text);
    Py_RETURN_NONE;
}

PyMethodDef kernel_methods[] = {
    {"load", kernel_load, METH_O, "load(device: int): loads it there, without the GIL."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kernel_slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "DeviceKernel(image, name, threads, shared, parts=0): the kernel `name` of `image`, PTX as text "
         "or a device's own code, in blocks of `threads` with `shared` bytes of shared memory; where one "
         "launch does several, `parts` at most.")},
    {Py_tp_new, reinterpret_cast<void*>(kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(kernel_dealloc)},
    {Py_tp_methods, kernel_methods},
    {0, nullptr}};

PyType_Spec kernel_spec = {"smelt._native.DeviceKernel", sizeof(KernelObject), 0, Py_TPFLAGS_DEFAULT,
                           kernel_slots};

PyMethodDef methods[] = {{"use_driver", set_driver, METH_O,
                          "use_driver(file): a library in place of the machine's driver of GPUs, for tests. "
                          "Before the first kernel is loaded."},
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool is_kernel(PyObject* object) {
    return Py_TYPE(object) == kernel_type;
}

Kernel& as_kernel(PyObject* object) {
    return *reinterpret_cast<KernelObject*>(object)->kernel;
}

int init_kernels(PyObject* module) {
    PyObject* type = PyType_FromSpec(&kernel_spec);
    if (!type) return -1;
    kernel_type = reinterpret_cast<PyTypeObject*>(type);  // and kept for ever
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return PyModule_AddObjectRef(module, "DeviceKernel", type);
}

}  // namespace smelt::devices
