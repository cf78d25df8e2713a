// Frames that never run: tracebacks of code that the VM interpreted consist of them.
#include "cpython.h"
#include "module.h"

#include <frameobject.h>

namespace smelt::calls {
namespace {

PyObject* py_frame_of(PyObject*, PyObject* args) {
    PyObject *code, *globals, *locals = nullptr;
    if (!PyArg_ParseTuple(args, "O!O!|O!:traceback_frame", &PyCode_Type, &code, &PyDict_Type, &globals,
                          &PyDict_Type, &locals))
        return nullptr;
    PyFrameObject* made =
        PyFrame_New(PyThreadState_Get(), reinterpret_cast<PyCodeObject*>(code), globals, locals);
    return reinterpret_cast<PyObject*>(made);
}

PyMethodDef traceback_frames_functions[] = {
    {"traceback_frame", py_frame_of, METH_VARARGS,
     "traceback_frame(code, globals, locals=None): a frame of this code that never runs and holds `locals`."},
    {}};

}  // namespace

int init_traceback_frames(PyObject* module) {
    return PyModule_AddFunctions(module, traceback_frames_functions);
}

}  // namespace smelt::calls
