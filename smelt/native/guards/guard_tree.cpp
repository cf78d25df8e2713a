// The guard tree: decides in one pass over a call's argument slots whether a compiled frame may answer the call, and
// collects the tensors that its graph takes.
//
// A tree is a list of nodes, parents before children. A node reads one object from its parent's object (an accessor)
// and has checks. Both run in order and the first failure ends the pass, so the builder puts likely failures first.
//
// Invariants:
//   - No accessor or check runs user code, or raises: what cannot be read is a mismatch.
//   - Values are borrowed from the objects they were read from. The slots or the tree keep those alive, or they are
//     known to be alive (guard_pass.h: OwnedReferences). The few new references are released at the end of the pass.
//   - No other thread and no finalizer runs within a pass. The few trees that call Python code, or that may block, own
//     all values of a pass, and are not memoized.
#include "cpython.h"
#include "cpython_iterators.h"

#include "guards/accessors.h"
#include "guards/guard_checks.h"
#include "guards/checks/dropped.h"
#include "guards/checks/tensors.h"
#include "guards/name_lookup.h"
#include "guards/memoized_guards.h"
#include "guards/guard_tree.h"
#include "module.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace smelt::guards {
namespace {

struct Tree {
    std::vector<Node> nodes;
    std::vector<int> collected;  // nodes, in the order of the tuple
    OwnedReferences held;
    std::map<std::vector<int64_t>, std::shared_ptr<TensorFacts>> facts;
    MemoizedPass memo;
    std::vector<bool> words;  // of a pass: all are written
    bool may_release_gil = false;

    // Whether all guards hold. If not, *failed is the index of the first one that does not.
    bool run(Pass& pass, int* failed) {
        if (may_release_gil) held.keep_weak(pass);
        for (size_t i = 0; i < nodes.size(); i++) {
            Node& node = nodes[i];
            PyObject* x = node.accessor->read(node.parent < 0 ? nullptr : pass.values[node.parent], pass);
            if (!x) {
                *failed = first_guard_under(i);
                return false;
            }
            pass.values[i] = may_release_gil ? pass.keep(Py_NewRef(x)) : x;
            for (CheckPtr& check : node.checks) {
                if (check->holds(x, pass)) continue;
                *failed = check->failed(x, pass);
                return false;
            }
        }
        return true;
    }

    // The first guard on the node or below it, which a missing object fails; -1 if there is none.
    int first_guard_under(size_t root) const {
        std::vector<bool> under(nodes.size(), false);
        for (size_t i = root; i < nodes.size(); i++) {
            under[i] = i == root || (nodes[i].parent >= 0 && under[nodes[i].parent]);
            if (under[i] && !nodes[i].checks.empty()) return nodes[i].checks[0]->guard;
        }
        return -1;
    }
};

struct GuardTree {
    PyObject_HEAD Tree* tree;  // null once cleared by the collector: then no call matches
};

Tree* tree_of(PyObject* self) {
    return reinterpret_cast<GuardTree*>(self)->tree;
}

// An array of `count` elements, on the stack if they are few.
template <class T, size_t kLocal>
class ScratchArray {
  public:
    explicit ScratchArray(size_t count) : large_(count > kLocal ? new T[count] : nullptr) {}
    T* data() { return large_ ? large_.get() : local_; }

  private:
    T local_[kLocal];
    std::unique_ptr<T[]> large_;
};
using Words = ScratchArray<int64_t, 64>;

// Runs `use(pass)` over a new pass and contains exceptions: what torch throws is a mismatch.
template <class Use>
void with_pass(Tree* tree, PyObject* const* slots, Py_ssize_t count, Use use) {
    ScratchArray<PyObject*, 256> values(tree->nodes.size());
    Words words(tree->words.size());
    Pass pass(slots, count, values.data(), words.data());
    try {
        use(pass);
    } catch (...) {
        PyErr_Clear();
    }
}

bool collect(const Tree& tree, const Pass& pass, Collected& collected) {
    return collected.take(static_cast<Py_ssize_t>(tree.collected.size()),
                          [&](Py_ssize_t i) { return pass.values[tree.collected[i]]; });
}

// Runs one pass: the memoized one if it can decide, else over all nodes. What torch throws is a mismatch.
bool check(Tree& tree, PyObject* const* slots, Py_ssize_t count, Collected& collected) {
    std::optional<CollectorOff> off;
    if (!tree.may_release_gil) off.emplace();
    if (!tree.held.all_live()) return false;
    if (tree.memo.ready()) {
        Words words(tree.words.size());
        Pass pass(slots, count, tree.memo.values(), words.data());
        Answer answer = Answer::Fails;
        try {
            answer = tree.memo.run(tree.nodes, pass);
        } catch (...) {
            PyErr_Clear();
        }
        if (answer != Answer::Unknown) return answer == Answer::Holds && collect(tree, pass, collected);
    }
    bool held = false;
    with_pass(&tree, slots, count, [&](Pass& pass) {
        int failed;
        if (!tree.run(pass, &failed)) return;
        held = collect(tree, pass, collected);
        if (!tree.may_release_gil && tree.memo.should_record()) tree.memo.record(tree.nodes, pass.values);
    });
    return held;
}

// One (guard_index, kind, value).
bool add_check(PyObject* spec, Tree& tree, Node& node) {
    PyObject *kind, *value;
    int guard;
    if (!PyArg_ParseTuple(spec, "iOO;a check is (guard_index, kind, value)", &guard, &kind, &value))
        return false;
    const CheckKind* row = CheckKind::find(kind);
    if (!row) return false;
    Building building{tree.held, static_cast<int>(tree.nodes.size()), tree.facts, tree.words, row->name};
    CheckPtr check = row->make(value, building);
    if (!check) return false;
    check->guard = guard;
    node.checks.push_back(std::move(check));
    return true;
}

// One (parent_index, accessor_kind, accessor_key, checks, collect_index).
bool add_node(PyObject* spec, Tree& tree) {
    PyObject *kind, *key, *checks;
    Node node{};
    if (!PyTuple_Check(spec) ||
        !PyArg_ParseTuple(spec, "iOOO!i;a node is (parent, kind, key, checks, collect)", &node.parent, &kind,
                          &key, &PyTuple_Type, &checks, &node.collect)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "GuardTree: a node is a tuple");
        return false;
    }
    const AccessorKind* row = find_accessor(kind);
    if (!row) return false;
    if (row->is_root ? node.parent != -1
                     : node.parent < 0 || node.parent >= static_cast<int>(tree.nodes.size())) {
        PyErr_Format(PyExc_ValueError, "GuardTree: node %zu (%s) has parent %d", tree.nodes.size(), row->name,
                     node.parent);
        return false;
    }
    if (node.collect < -1 || node.collect >= static_cast<int>(tree.collected.size()) ||
        (node.collect >= 0 && tree.collected[node.collect] >= 0)) {
        PyErr_Format(PyExc_ValueError, "GuardTree: node %zu has collect index %d", tree.nodes.size(),
                     node.collect);
        return false;
    }
    if (node.collect >= 0) tree.collected[node.collect] = static_cast<int>(tree.nodes.size());
    if (!(node.accessor = row->make(key, tree.held))) return false;
    const Accessor* parent = node.parent < 0 ? nullptr : tree.nodes[node.parent].accessor.get();
    tree.may_release_gil |= node.accessor->may_release_gil(parent);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
        PyObject* check = PyTuple_GET_ITEM(checks, i);
        if (!PyTuple_Check(check)) {
            PyErr_SetString(PyExc_TypeError, "GuardTree: a check is a tuple");
            return false;
        }
        if (!add_check(check, tree, node)) return false;
    }
    tree.nodes.push_back(std::move(node));
    return true;
}

bool build(PyObject* spec, Tree& tree) {
    PyObject *nodes, *weak = nullptr;
    int n_collect;
    if (!PyTuple_Check(spec)) {
        PyErr_SetString(PyExc_TypeError, "GuardTree: expected (nodes, n_collect, weak)");
        return false;
    }
    if (!PyArg_ParseTuple(spec, "O!i|O!;GuardTree: expected (nodes, n_collect, weak)", &PyTuple_Type, &nodes,
                          &n_collect, &PyTuple_Type, &weak))
        return false;
    for (Py_ssize_t i = 0; weak && i < PyTuple_GET_SIZE(weak); i++)
        if (!tree.held.hold_weakly(PyTuple_GET_ITEM(weak, i))) return false;
    tree.collected.assign(std::max(n_collect, 0), -1);
    tree.nodes.reserve(PyTuple_GET_SIZE(nodes));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++)
        if (!add_node(PyTuple_GET_ITEM(nodes, i), tree)) return false;
    if (std::find(tree.collected.begin(), tree.collected.end(), -1) == tree.collected.end()) return true;
    PyErr_SetString(PyExc_ValueError, "GuardTree: a collect index is missing");
    return false;
}

int traverse_tree(PyObject* self, visitproc visit, void* arg) {
    if (Tree* tree = tree_of(self))
        for (const std::vector<PyObject*>* some : {&tree->held.owned, &tree->held.references})
            for (PyObject* x : *some) Py_VISIT(x);
    return 0;
}

int clear_tree(PyObject* self) {
    Tree* tree = std::exchange(reinterpret_cast<GuardTree*>(self)->tree, nullptr);
    if (!tree) return 0;
    for (const std::vector<PyObject*>* some : {&tree->held.owned, &tree->held.references})
        for (PyObject* x : *some) Py_DECREF(x);
    delete tree;
    return 0;
}

void dealloc_tree(PyObject* self) {
    PyObject_GC_UnTrack(self);
    clear_tree(self);
    Py_TYPE(self)->tp_free(self);
}

PyObject* new_tree(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    PyObject* spec;
    static const char* keywords[] = {"spec", nullptr};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:GuardTree", const_cast<char**>(keywords), &spec))
        return nullptr;
    PyObject* self = type->tp_alloc(type, 0);
    if (!self) return nullptr;
    reinterpret_cast<GuardTree*>(self)->tree = new Tree;
    if (build(spec, *tree_of(self))) return self;
    Py_DECREF(self);
    return nullptr;
}

PyObject* py_check(PyObject* self, PyObject* const* slots, Py_ssize_t count) {
    Collected inputs;
    if (!check_guard_tree(self, slots, count, inputs)) return Py_NewRef(Py_None);
    return Py_XNewRef(inputs.tuple());
}

PyObject* py_explain(PyObject* self, PyObject* const* slots, Py_ssize_t count) {
    Tree* tree = tree_of(self);
    if (!tree || !tree->held.all_live()) return PyLong_FromLong(-1);
    int failed = -1;
    bool held = false;
    std::optional<CollectorOff> off;
    if (!tree->may_release_gil) off.emplace();
    with_pass(tree, slots, count, [&](Pass& pass) { held = tree->run(pass, &failed); });
    return held ? Py_NewRef(Py_None) : PyLong_FromLong(failed);
}

PyObject* py_memo_size(PyObject* self, PyObject*) {
    Tree* tree = tree_of(self);
    if (!tree || !tree->memo.ready()) return Py_NewRef(Py_None);
    return Py_BuildValue("nn", static_cast<Py_ssize_t>(tree->memo.words()),
                         static_cast<Py_ssize_t>(tree->memo.objects_read()));
}

PyCFunction fast(PyObject* (*method)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(method));
}

PyMethodDef tree_methods[] = {{"check", fast(py_check), METH_FASTCALL,
                               "check(*slots): the tuple of collected objects, or None on a mismatch."},
                              {"explain", fast(py_explain), METH_FASTCALL,
                               "explain(*slots): the index of the first guard that fails; None: all hold; "
                               "-1: an object without guards is missing."},
                              {"memo_size", py_memo_size, METH_NOARGS,
                               "memo_size(): how many memory words the next check compares and how many "
                               "objects it reads; None if it walks all nodes."},
                              {}};

PyTypeObject guard_tree_type = {PyVarObject_HEAD_INIT(nullptr, 0) "smelt._native.GuardTree",
                                sizeof(GuardTree)};

int ready_guard_tree_type() {
    PyTypeObject& t = guard_tree_type;
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    t.tp_doc = "GuardTree(spec): spec is (nodes, n_collect, weak), see smelt/guards/tree_layout.py.";
    t.tp_new = new_tree;
    t.tp_dealloc = dealloc_tree;
    t.tp_traverse = traverse_tree;
    t.tp_clear = clear_tree;
    t.tp_methods = tree_methods;
    return PyType_Ready(&t);
}

PyObject* py_type_version(PyObject*, PyObject* cls) {
    if (!PyType_Check(cls))
        return PyErr_Format(PyExc_TypeError, "type_version: expected a class, not %R", cls);
    return PyLong_FromUnsignedLong(assign_class_version(reinterpret_cast<PyTypeObject*>(cls)));
}

// Python shows the slots of a C class as wrappers, which do not identify the functions in them.
PyObject* py_is_generic(PyObject*, PyObject* cls) {
    if (!PyType_Check(cls)) return PyErr_Format(PyExc_TypeError, "is_generic: expected a class, not %R", cls);
    auto* type = reinterpret_cast<PyTypeObject*>(cls);
    return Py_BuildValue("(NN)", PyBool_FromLong(type->tp_getattro == PyObject_GenericGetAttr),
                         PyBool_FromLong(type->tp_setattro == PyObject_GenericSetAttr));
}

PyObject* py_made_by_python(PyObject*, PyObject* cls) {
    if (!PyType_Check(cls))
        return PyErr_Format(PyExc_TypeError, "made_by_python: expected a class, not %R", cls);
    return PyBool_FromLong(made_by_python(reinterpret_cast<PyTypeObject*>(cls)));
}

PyObject* py_annotations_wait(PyObject*, PyObject* x) {
    return PyBool_FromLong(annotations_wait(x));
}

PyObject* py_keep_annotations(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2 || !PyFunction_Check(args[0]) || !PyDict_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "keep_annotations: expected a function and a dictionary");
    keep_annotations(reinterpret_cast<PyFunctionObject*>(args[0]), args[1]);
    Py_RETURN_NONE;
}

PyObject* py_hidden_dict(PyObject*, PyObject* x) {
    PyObject* dict = instance_dict(x);
    return Py_NewRef(dict ? dict : Py_None);
}

// Whether reading `__class__` returns the type and runs no code of the class.
bool shows_its_type(PyTypeObject* type) {
    return type->tp_getattro == PyObject_GenericGetAttr &&
           _PyType_Lookup(type, names.class_) == _PyType_Lookup(&PyBaseObject_Type, names.class_);
}

int is_instance(PyObject* x, PyObject* kinds) {
    if (PyTuple_Check(kinds)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); i++)
            if (int found = is_instance(x, PyTuple_GET_ITEM(kinds, i))) return found;
        return 0;
    }
    if (PyType_Check(kinds)) {
        if (PyType_IsSubtype(Py_TYPE(x), reinterpret_cast<PyTypeObject*>(kinds))) return 1;
        PyObject* check = _PyType_Lookup(Py_TYPE(kinds), names.instancecheck);
        if (check == _PyType_Lookup(&PyType_Type, names.instancecheck)) return 0;
    }
    if (shows_its_type(Py_TYPE(x))) return PyObject_IsInstance(x, kinds);
    return PyObject_IsSubclass(reinterpret_cast<PyObject*>(Py_TYPE(x)), kinds);
}

PyObject* py_isinstance(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "isinstance: expected 2 arguments, got %zd", count);
    int found = is_instance(args[0], args[1]);
    return found < 0 ? nullptr : PyBool_FromLong(found);
}

PyObject* py_is_unhooked_leaf(PyObject*, PyObject* x) {
    return PyBool_FromLong(is_unhooked_leaf(x));
}

PyObject* py_write_restriction(PyObject*, PyObject* x) {
    return PyLong_FromLong(write_restriction(x));
}

PyObject* py_drops_silently(PyObject*, PyObject* const* args, Py_ssize_t count) {
    Place place;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "drops_silently: expected 3 arguments, got %zd", count);
    return to_place(args[1], &place) ? PyBool_FromLong(drops_silently(args[0], place, args[2])) : nullptr;
}

PyMethodDef guard_tree_functions[] = {
    {"drops_silently", fast(py_drops_silently), METH_FASTCALL,
     "drops_silently(owner, kind, name): whether no code runs when what the owner has there is destroyed."},
    {"write_restriction", py_write_restriction, METH_O,
     "write_restriction(x): whether autograd allows an in-place write that requires grad (0), or raises "
     "because x "
     "is a leaf (1), a view of one (2) or a restricted view (3)."},
    {"is_unhooked_leaf", py_is_unhooked_leaf, METH_O,
     "is_unhooked_leaf(x): whether x is a leaf of autograd's graph whose gradients no hook observes."},
    {"is_generic", py_is_generic, METH_O,
     "is_generic(cls): whether attributes of instances are read as object.__getattribute__ reads them, and "
     "whether they are stored as object.__setattr__ stores them."},
    {"isinstance", fast(py_isinstance), METH_FASTCALL,
     "isinstance(x, kinds): as Python's, without reading x.__class__."},
    {"made_by_python", py_made_by_python, METH_O,
     "made_by_python(cls): whether a class statement or a call of a metaclass made the class, not C code."},
    {"hidden_dict", py_hidden_dict, METH_O,
     "hidden_dict(x): the instance dictionary, even if the class hides it; None if there is none."},
    {"annotations_wait", py_annotations_wait, METH_O,
     "annotations_wait(x): whether reading the annotations of a function, class or module would run code of "
     "the "
     "program."},
    {"keep_annotations", fast(py_keep_annotations), METH_FASTCALL,
     "keep_annotations(function, annotations): sets the annotations without removing the function's "
     "__annotate__."},
    {"type_version", py_type_version, METH_O,
     "type_version(cls): a number that changes with the class or a base. 0: the class has no version."},
    {}};

}  // namespace

bool is_guard_tree(PyObject* object) {
    return Py_IS_TYPE(object, &guard_tree_type);
}

bool check_guard_tree(PyObject* self, PyObject* const* slots, Py_ssize_t count, Collected& collected) {
    Tree* tree = tree_of(self);
    return tree && check(*tree, slots, count, collected);
}

int init_guard_tree(PyObject* module) {
    auto* type = reinterpret_cast<PyObject*>(&guard_tree_type);
    if (!init_lookup() || !init_iterators() || ready_guard_tree_type() < 0 ||
        PyModule_AddObjectRef(module, "GuardTree", type) < 0)
        return -1;
    return PyModule_AddFunctions(module, guard_tree_functions);
}

}  // namespace smelt::guards
