// smelt._native.Differentiable: a compiled graph with its backward, as one node of autograd's graph.
//
// A call runs the forward beneath autograd and, where a gradient is wanted, puts one `CompiledBackward` between
// the outputs and the inputs. What the backward reads is held by the node as torch's own SavedVariables, and
// the node's edges are those that eager's nodes would have: so version checks, hooks, errors, accumulation and
// what is freed when are autograd's own.
//
// spec.h has what it is built from, call.h what a call does, node.h what a gradient meets.
#include "autograd/call.h"
#include "autograd/spec.h"
#include "module.h"
#include "torch_python.h"
// After Python.h, which it does not include itself.
#include <structmember.h>

namespace smelt::autograd {

namespace {

struct DifferentiableObject {
    PyObject_HEAD vectorcallfunc vectorcall;
    c10::intrusive_ptr<Spec> spec;
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
    new (&self->spec) c10::intrusive_ptr<Spec>(std::move(spec));
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
}

int differentiable_traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    const auto& spec = as_differentiable(object)->spec;
    // A node that lives owns these objects too, and the collector cannot see it.
    if (!spec || spec.use_count() != 1) return 0;
    Py_VISIT(spec->forward);
    Py_VISIT(spec->compile_backward);
    Py_VISIT(spec->lock);
    Py_VISIT(spec->double_backward);
    for (const Taken& t : spec->taken) Py_VISIT(t.make);
    for (const Backward* b = spec->backwards; b; b = b->next) Py_VISIT(b->callable);
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
        py::tuple mask(b->mask.size());
        for (size_t i = 0; i < b->mask.size(); ++i) mask[i] = py::bool_(b->mask[i] != 0);
        const py::tuple key = b->whole ? py::make_tuple(mask, "whole") : mask;
        result[key] = py::reinterpret_borrow<py::object>(b->callable);
    }
    return result.release().ptr();
    END_HANDLE_TH_ERRORS
}

PyGetSetDef differentiable_getset[] = {
    {"forward", differentiable_forward, nullptr, "The forward that the spec gave.", nullptr},
    {"backwards", differentiable_backwards, nullptr,
     "What has been compiled so far: a dict from masks of defined tangents.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef differentiable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DifferentiableObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DifferentiableObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

constexpr const char* kDoc = R"(Differentiable(spec): a graph with its backward.

d(inputs) -> outputs, both tuples; the outputs have one node of autograd as their history if grad mode is on and one
of the inputs in `gradients` requires grad. Safe to call, and to differentiate, from several threads at once. spec is
a dict:

  forward         a Plan, or a callable from the tuple of inputs (tensors and numbers) to a sequence, which runs
                  beneath autograd: (*outputs, *temporaries)
  n_outputs       how many of these are outputs
  differentiable  per tangent (position among the outputs, shape, stride, dtype): the outputs that require grad, and
                  the layout in which the backward gets their gradients (it must not overlap). One that is an input
                  is differentiable if the forward wrote it; if not, its gradient goes past the node
  gradients       positions of the inputs that the backward returns gradients for
  leaves          optional, how many of these, the first, are leaves of autograd's graph, in the order in which their
                  gradients are accumulated
  saved           what the backward reads, each ('primal', input), ('output', output) or ('temporary', n), perhaps
                  followed by the tangents whose gradients read it: others neither look at it nor free it
  backward        a callable from a tuple of bools, which tangents are defined, to a Plan or a callable; asked once for
                  each, at a backward call. What it returns is called, as the forward is, with the tuple
                  (*saved, *defined tangents) and returns a gradient or None per `gradients` and `through`
  through         optional, positions of the outputs that other outputs are computed from: their tangents hold all
                  that flows into them, and the others' gradients with respect to them are returned
  devices         optional, of a graph over several GPUs these: the backward runs on the streams that the call had on them
  taken           optional, tensors that are made between the nodes: (after how many groups, operands, callable on these, how
                  many it gives).
                  An operand is ('input', place) or ('output', place); what is taken counts as further outputs, and is
                  returned after them. It has a tangent, which is in no group, and is in `through`
  groups          optional, (tangents, whether they do the work of all groups where nobody sees what flows into `through`),
                  in the order of computation; by default one group for all. The backward is computed for a group at once.
                  `backward` then gets True as well, and what it gives takes all saved values
  contributors    optional, per gradient (of `gradients`, then of `through`) the tangents that contribute to it: what is
                  behind the others is not run. By default all
  conflicts       optional, per tangent those that cannot be differentiated after it unless the graph is kept. By default all
  name            of the node
  lock            optional, an RLock to hold while `backward` runs; by default one of its own
  double_backward optional, a callable from the tuple of inputs, that of the outputs in `through` (None where gone), that of
                  tangents (None where undefined) and that of the states of torch's
                  generators (`draws`) before the forward to the gradients, with a history, and then, per tangent, its output of that
                  run (or None). What the gradients were computed from them leads to the real outputs. Asked where
                  create_graph=True, if the inputs still exist and were not written; where not, a second differentiation raises
  draws           optional, the devices whose generators' states `double_backward` is given
  rewritten       optional, positions of inputs that may be written all the same
  copied          optional, positions of those of which it is given copies, made before the forward)";

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

int init_autograd(PyObject* module) {
    PyObject* type = PyType_FromSpec(&autograd::differentiable_spec);
    if (!type) return -1;
    const int failed = PyModule_AddObjectRef(module, "Differentiable", type);
    Py_DECREF(type);
    return failed;
}

}  // namespace smelt
