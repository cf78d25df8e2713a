// Frames that never run: a traceback of what the VM interpreted is made of them.
#include "cpython.h"
#include "module.h"

#include <frameobject.h>

namespace smelt::calls {
namespace {

PyObject* py_frame_of(PyObject*, PyObject* args) {
    PyObject *code, *globals;
    if (!PyArg_ParseTuple(args, "O!O!:frame_of", &PyCode_Type, &code, &PyDict_Type, &globals)) return nullptr;
    PyFrameObject* made =
        PyFrame_New(PyThreadState_Get(), reinterpret_cast<PyCodeObject*>(code), globals, nullptr);
    return reinterpret_cast<PyObject*>(made);
}

PyMethodDef frames_functions[] = {{"frame_of", py_frame_of, METH_VARARGS,
                                   "frame_of(code, globals): a frame of this code that does not run."},
                                  {}};

}  // namespace

int init_frames(PyObject* module) {
    return PyModule_AddFunctions(module, frames_functions);
}

}  // namespace smelt::calls
