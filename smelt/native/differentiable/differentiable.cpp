// smelt._native.Differentiable: a compiled graph with its backward, as one node of autograd's graph.
//
// A call runs the forward below autograd and, where an input requires grad, connects the outputs to the inputs by
// `CompiledBackward` nodes. A node saves what the backward reads as torch's SavedVariables, and its edges are those
// of eager's nodes. So version checks, hooks, errors, gradient accumulation and freeing are those of autograd.
//
// differentiable_spec.h describes the arguments, differentiable_call.h a call, backward_nodes.h the backward.
#include "differentiable/differentiable_call.h"
#include "differentiable/differentiable_spec.h"
#include "module.h"
#include "torch_python.h"
// structmember.h needs Python.h before it.
#include <structmember.h>

namespace smelt::autograd {

namespace {

struct DifferentiableObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    c10::intrusive_ptr<PythonSpec> spec;
    PyObject* weakrefs;
};

DifferentiableObject* as_differentiable(PyObject* object) {
    return reinterpret_cast<DifferentiableObject*>(object);
}

PyObject* differentiable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames && PyTuple_GET_SIZE(kwnames) != 0) ||
        !PyTuple_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "Differentiable: call it with one tuple");
        return nullptr;
    }
    const auto& spec = as_differentiable(self)->spec;
    if (!spec) {
        PyErr_SetString(PyExc_RuntimeError, "Differentiable: it was cleared by the garbage collector");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    return call(spec, args[0]);
    END_HANDLE_TH_ERRORS
}

PyObject* differentiable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* dict = nullptr;
    if (kwargs || !PyArg_ParseTuple(args, "O!:Differentiable", &PyDict_Type, &dict)) {
        if (kwargs) PyErr_SetString(PyExc_TypeError, "Differentiable takes one dict");
        return nullptr;
    }
    HANDLE_TH_ERRORS
    auto spec = read_spec(dict);
    auto* self = as_differentiable(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->vectorcall = differentiable_call;
    new (&self->spec) c10::intrusive_ptr<PythonSpec>(std::move(spec));
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

int differentiable_traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    const auto& spec = as_differentiable(object)->spec;
    // An existing node owns these objects too, and the collector cannot traverse nodes.
    if (!spec || spec.use_count() != 1) return 0;
    Py_VISIT(spec->forward);
    Py_VISIT(spec->compiler);
    Py_VISIT(spec->lock);
    Py_VISIT(spec->double_backward);
    Py_VISIT(spec->substitution);
    for (PyObject* make : spec->makes) Py_VISIT(make);
    for (const Backward* b = spec->backwards.load(); b; b = b->next)
        Py_VISIT(static_cast<const PythonBackward*>(b)->callable);
    return 0;
}

int differentiable_clear(PyObject* object) {
    as_differentiable(object)->spec.reset();
    return 0;
}

void differentiable_dealloc(PyObject* object) {
    auto* self = as_differentiable(object);
    PyTypeObject* type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    self->spec.~intrusive_ptr();
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* differentiable_forward(PyObject* object, void*) {
    const auto& spec = as_differentiable(object)->spec;
    return Py_NewRef(spec ? spec->forward : Py_None);
}

PyObject* differentiable_backwards(PyObject* object, void*) {
    HANDLE_TH_ERRORS
    py::dict result;
    const auto& spec = as_differentiable(object)->spec;
    for (const Backward* b = spec ? spec->backwards.load() : nullptr; b; b = b->next) {
        if (!b->requested.empty()) continue;
        py::tuple mask(b->mask.size());
        for (size_t i = 0; i < b->mask.size(); ++i) mask[i] = py::bool_(b->mask[i] != 0);
        const py::tuple key =
            b->reach == Reach::segment ? mask : py::make_tuple(mask, static_cast<int>(b->reach));
        if (!result.contains(key))
            result[key] = py::reinterpret_borrow<py::object>(static_cast<const PythonBackward*>(b)->callable);
    }
    return result.release().ptr();
    END_HANDLE_TH_ERRORS
}

PyGetSetDef differentiable_getset[] = {
    {"forward", differentiable_forward, nullptr, "The forward of the spec.", nullptr},
    {"backwards", differentiable_backwards, nullptr,
     "The backwards compiled so far: a dict from masks of defined tangents.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef differentiable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DifferentiableObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DifferentiableObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kDoc = R"(Differentiable(spec): a compiled graph with its backward.

d(inputs) -> outputs, both tuples. If grad mode is on and one of the inputs in `gradients` requires grad, autograd nodes are
the history of the outputs. Thread-safe, and may be differentiated from several threads at once. spec is a dict:

  forward         a Plan, or a callable from the tuple of inputs (tensors and numbers) to the sequence
                  (*outputs, *temporaries), which runs below autograd
  n_outputs       how many of these are outputs
  differentiable  per tangent (index of the output, shape, stride, dtype): the outputs that require grad, and the layout in
                  which the backward takes their gradients (without overlap). An output that is an input is differentiable
                  if the forward modified it; if not, its gradient bypasses the node
  gradients       indices of the inputs that the backward returns gradients for
  leaves          optional, how many of these, the first, are leaves of autograd's graph, in the order in which their
                  gradients are accumulated
  conditions      optional, per item of `gradients` the index of a temporary, a bool: if it is false, the gradient is
                  undefined in this call, and no edge leads to the input. None: it is defined
  saved           the values that the backward reads, each ('primal', input), ('alias', input), ('output', output) or
                  ('temporary', n), optionally followed by the tangents whose gradients read it: others neither unpack nor
                  free it. An alias of an input keeps the input's memory when the program assigns to its `data`; shape,
                  stride and dtype of an input may follow, which the backward relies on. True may follow for an alias: values
                  that eager saves are recomputed from it, so saved-tensor hooks may not give it modified
  backward        a callable from a tuple of bools, the defined tangents, to a Plan or a callable; called once for each
                  mask, during a backward. Its result is called as the forward is, with the tuple
                  (*saved, *defined tangents), and returns a gradient or None per item of `gradients` and `through`
  through         optional, indices of the outputs that other outputs are computed from: their tangents contain all
                  gradients that arrive there, and the backward returns the others' gradients with respect to them
  devices         optional, the devices of a graph over several GPUs: the backward runs on the streams of the call
  taken           optional, the mutation and view epilogue: tensors that are created between the nodes, each (number of
                  groups before it, operands, callable, number of results). An operand is ('input', index) or
                  ('output', index). The results are numbered after the outputs, and are returned after them. A result
                  has a tangent, which is in no group, and is in `through`
  groups          optional, (tangents, whole, ends_at_last), in the order of computation; by default one group of all
                  tangents. The backward of a group runs once. A `whole` group computes the backward of the groups before
                  it, too, if the gradients of `through` are not observed; if it `ends_at_last`, it may compute that of all
                  but the last of them. Then `backward` also gets 2, or 1 for all but the last, and its result takes all
                  saved values
  contributors    optional, per gradient (of `gradients`, then of `through`) the tangents that contribute to it: nodes behind
                  other gradients do not run. By default all tangents
  conflicts       optional, per tangent those that cannot be differentiated after it unless the graph is retained. By
                  default all tangents
  name            of the node
  lock            optional, an RLock to hold while `backward` runs; by default one of its own
  double_backward optional, a callable from the inputs, the outputs in `through` (None if destroyed), the tangents (None if
                  undefined) and the generator states of `draws` before the forward, all tuples, to the gradients, with a
                  history, and per tangent its output in the recomputed forward (or None). The history of the gradients is
                  redirected to the original outputs. Called for create_graph=True if the inputs still exist and were not
                  modified; otherwise a second differentiation raises
  substitute      optional, a callable from the index of a saved value and a tuple of bools, which gradients an engine call
                  requests, to a tensor if none of these needs the value, else to None. Called where a saved value was
                  modified or freed and not all gradients are requested
  layouts         optional, per input the (shape, stride, dtype) that `double_backward` relies on, or ()
  draws           optional, the devices whose generator states `double_backward` takes
  rewritten       optional, indices of inputs that may be modified nevertheless
  copied          optional, indices of the inputs that `double_backward` gets copies of, created before the forward)";

PyType_Slot differentiable_slots[] = {{Py_tp_doc, const_cast<char*>(kDoc)},
                                      {Py_tp_new, reinterpret_cast<void*>(differentiable_new)},
                                      {Py_tp_dealloc, reinterpret_cast<void*>(differentiable_dealloc)},
                                      {Py_tp_traverse, reinterpret_cast<void*>(differentiable_traverse)},
                                      {Py_tp_clear, reinterpret_cast<void*>(differentiable_clear)},
                                      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                      {Py_tp_getset, differentiable_getset},
                                      {Py_tp_members, differentiable_members},
                                      {0, nullptr}};

PyType_Spec differentiable_spec = {"smelt._native.Differentiable", sizeof(DifferentiableObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                                   differentiable_slots};

}  // namespace

}  // namespace smelt::autograd

namespace smelt {

int init_differentiable(PyObject* module) {
    PyObject* type = PyType_FromSpec(&autograd::differentiable_spec);
    if (!type) return -1;
    const int failed = PyModule_AddObjectRef(module, "Differentiable", type);
    Py_DECREF(type);
    return failed;
}

}  // namespace smelt
