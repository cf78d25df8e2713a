// What arithmetic on the numbers of several nodes gives.
#include "guards/checks/makers.h"
#include "guards/lookup.h"

#include <c10/util/SmallVector.h>

namespace smelt::guards {

namespace {

// What arithmetic on numbers gives: postfix over functions of C, which exact ints and floats keep from running
// user code. What raises is a mismatch.
struct ExpressionGives : Check {
    struct Step {
        int node = -1;               // >= 0: push the number of that node
        PyObject* object = nullptr;  // the constant to push, or the function to call
        int operands = -1;           // of the function
    };
    std::vector<Step> steps;
    PyObject* expected;  // True, False, or the exact type of the value

    using Stack = c10::SmallVector<PyObject*, 16>;  // of owned references

    bool holds(PyObject*, Pass& pass) override {
        Stack stack;
        bool held = run(pass, stack) && agrees(stack.back());
        for (PyObject* x : stack) Py_DECREF(x);
        return held;
    }

    bool agrees(PyObject* x) const {
        return PyType_Check(expected) ? reinterpret_cast<PyObject*>(Py_TYPE(x)) == expected : x == expected;
    }

    bool run(Pass& pass, Stack& stack) const {
        for (const Step& step : steps) {
            if (step.operands < 0) {
                PyObject* x = step.node < 0 ? step.object : pass.values[step.node];
                if (!PyLong_CheckExact(x) && !PyFloat_CheckExact(x) && !PyBool_Check(x)) return false;
                stack.push_back(Py_NewRef(x));
                continue;
            }
            PyObject** first = stack.data() + stack.size() - step.operands;
            PyObject* x = PyObject_Vectorcall(step.object, first, step.operands, nullptr);
            for (int i = 0; i < step.operands; i++) {
                Py_DECREF(stack.back());
                stack.pop_back();
            }
            if (!x) {
                PyErr_Clear();
                return false;
            }
            stack.push_back(x);
        }
        return true;
    }
};

// One of ("leaf", node), ("const", number), (function, number of operands); `depth` is that of the stack.
bool to_step(PyObject* item, Building& b, Py_ssize_t* depth, ExpressionGives::Step* step) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) return false;
    PyObject *kind = PyTuple_GET_ITEM(item, 0), *value = PyTuple_GET_ITEM(item, 1);
    if (PyUnicode_Check(kind)) {
        ++*depth;
        if (PyUnicode_CompareWithASCIIString(kind, "leaf") == 0) return to_node(value, b, &step->node);
        step->object = hold(b.held, value);
        return true;
    }
    step->operands = static_cast<int>(PyLong_AsLong(value));
    step->object = hold(b.held, kind);
    *depth += 1 - step->operands;
    bool is_native = PyCFunction_Check(kind) ||
                     (PyType_Check(kind) && !made_by_python(reinterpret_cast<PyTypeObject*>(kind)));
    return is_native && step->operands > 0 && *depth > 0;
}

}  // namespace

CheckPtr make_expression(PyObject* value, Building& b) {
    const char* expected = "(program, True, False or a type)";
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(value, 0)))
        return wrong_value("expression", expected, value);
    PyObject *program = PyTuple_GET_ITEM(value, 0), *wanted = PyTuple_GET_ITEM(value, 1);
    auto check = std::make_unique<ExpressionGives>();
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program); i++) {
        ExpressionGives::Step step;
        if (!to_step(PyTuple_GET_ITEM(program, i), b, &depth, &step))
            return wrong_value("expression", expected, value);
        check->steps.push_back(step);
    }
    if (depth != 1) return wrong_value("expression", expected, value);
    check->expected = hold(b.held, wanted);
    return check;
}

}  // namespace smelt::guards
