// Checks on expressions over the numbers of several nodes.
#include "guards/checks/integer_program.h"
#include "guards/guard_checks.h"
#include "guards/name_lookup.h"

#include <c10/util/SmallVector.h>

namespace smelt::guards {

namespace {

// The result of an expression on numbers. 64-bit ints are computed as such; otherwise the expression is postfix over
// C functions, which run no user code on exact ints and floats. An exception is a mismatch.
struct ExpressionGives : Check {
    struct Step {
        int node = -1;               // >= 0: push the number of that node
        int word = -1;               // >= 0: push this size
        PyObject* object = nullptr;  // the constant to push, or the function to call
        int operands = -1;           // of the function
    };
    std::vector<Step> steps;
    IntegerProgram integers;
    bool has_integers = false;
    PyObject* expected;  // True, False, or the exact type of the value

    using Stack = c10::SmallVector<PyObject*, 16>;  // owned references

    bool holds(PyObject*, Pass& pass) override {
        if (has_integers) {
            const IntegerProgram::Answer answer = integers.run(pass);
            if (answer != IntegerProgram::Answer::Unknown) return answer == IntegerProgram::Answer::Yes;
        }
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
                PyObject* x = number(step, pass);
                if (!x) return false;
                stack.push_back(x);
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

    // The number that a step without a call pushes; a new reference, null if the object is not a number.
    static PyObject* number(const Step& step, const Pass& pass) {
        if (step.word >= 0) return PyLong_FromLongLong(pass.words[step.word]);
        PyObject* x = step.node < 0 ? step.object : pass.values[step.node];
        if (!PyLong_CheckExact(x) && !PyFloat_CheckExact(x) && !PyBool_Check(x)) return nullptr;
        return Py_NewRef(x);
    }
};

// Adds the steps of a program to a check; `add` returns false for an invalid step.
class StepReader {
  public:
    StepReader(ExpressionGives& check, Building& b) : check_(check), b_(b) {}

    bool add(PyObject* item) {
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) < 2) return false;
        PyObject *kind = PyTuple_GET_ITEM(item, 0), *value = PyTuple_GET_ITEM(item, 1);
        if (!PyUnicode_Check(kind)) return add_call(kind, item);
        depth_++;
        if (PyUnicode_CompareWithASCIIString(kind, "leaf") == 0) return add_leaf(value);
        if (PyUnicode_CompareWithASCIIString(kind, "size") == 0) return add_size(value);
        check_.steps.push_back({.object = hold(b_.held, value)});
        check_.integers.push_constant(value);
        return true;
    }

    bool is_one_value() const { return depth_ == 1; }

  private:
    bool add_leaf(PyObject* value) {
        int node;
        if (!to_node(value, b_, &node)) return false;
        check_.steps.push_back({.node = node});
        check_.integers.push_node(node);
        return true;
    }

    bool add_size(PyObject* value) {
        const size_t word = PyLong_AsSize_t(value);
        if (PyErr_Occurred() || word >= b_.words.size() || !b_.words[word]) return false;
        check_.steps.push_back({.word = static_cast<int>(word)});
        check_.integers.push_size(static_cast<int>(word));
        return true;
    }

    bool add_call(PyObject* function, PyObject* item) {
        const int operands = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 1)));
        const char* name = PyTuple_GET_SIZE(item) == 3 ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 2)) : "";
        if (PyErr_Occurred()) return false;
        check_.steps.push_back({.object = hold(b_.held, function), .operands = operands});
        depth_ += 1 - operands;
        bool is_native =
            PyCFunction_Check(function) ||
            (PyType_Check(function) && !made_by_python(reinterpret_cast<PyTypeObject*>(function)));
        if (!is_native || operands <= 0 || depth_ <= 0) return false;
        check_.integers.apply(name, operands);
        return true;
    }

    ExpressionGives& check_;
    Building& b_;
    Py_ssize_t depth_ = 0;
};

// The items of a program: ("leaf", node), ("size", word), ("const", number), (function, number of operands) and
// optionally the name of the operation.
CheckPtr make_expression(PyObject* value, Building& b) {
    const char* expected = "(program, True, False or a type)";
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(value, 0)))
        return wrong_value(b, expected, value);
    PyObject *program = PyTuple_GET_ITEM(value, 0), *wanted = PyTuple_GET_ITEM(value, 1);
    auto check = std::make_unique<ExpressionGives>();
    StepReader reader(*check, b);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program); i++)
        if (!reader.add(PyTuple_GET_ITEM(program, i))) return wrong_value(b, expected, value);
    if (!reader.is_one_value()) return wrong_value(b, expected, value);
    check->expected = hold(b.held, wanted);
    check->has_integers = check->integers.finish(wanted);
    return check;
}
const CheckKind expression_kind("expression", make_expression);

}  // namespace

}  // namespace smelt::guards
