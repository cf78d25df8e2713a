// Creates meta tensors with the layout of another: `fresh_like` with a new storage, `view_like` with the storage of a
// third tensor. torch evaluates a dozen symbolic conditions when it creates a tensor of symbolic sizes, and caches
// the results in the tensor.
#include "module.h"
#include "torch_python.h"

namespace smelt {
namespace {

const at::Tensor* meta_tensor(PyObject* object) {
    if (THPVariable_CheckExact(object) && THPVariable_Unpack(object).is_meta())
        return &THPVariable_Unpack(object);
    PyErr_SetString(PyExc_TypeError, "expected a tensor on the meta device");
    return nullptr;
}

// A tensor with the layout of `like` and this storage.
PyObject* laid_out(const at::Tensor& like, c10::Storage storage) {
    at::Tensor made(like.unsafeGetTensorImpl()->shallow_copy_and_detach(
        /*version_counter=*/0, /*allow_tensor_metadata_change=*/true));
    made.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    return THPVariable_Wrap(std::move(made));
}

PyObject* fresh_like(PyObject*, PyObject* object) {
    HANDLE_TH_ERRORS
    const at::Tensor* like = meta_tensor(object);
    if (!like) return nullptr;
    const c10::Storage& storage = like->storage();
    return laid_out(*like, c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                                 storage.sym_nbytes(), storage.allocator(),
                                                                 /*resizable=*/true));
    END_HANDLE_TH_ERRORS
}

PyObject* view_like(PyObject*, PyObject* const* args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    const at::Tensor* like = count == 2 ? meta_tensor(args[0]) : nullptr;
    const at::Tensor* source = like ? meta_tensor(args[1]) : nullptr;
    if (source) return laid_out(*like, source->storage());
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "view_like takes two tensors");
    return nullptr;
    END_HANDLE_TH_ERRORS
}

PyMethodDef meta_tensors_functions[] = {
    {"fresh_like", fresh_like, METH_O,
     "fresh_like(t): a meta tensor with the layout of `t`, a new storage and no history."},
    {"view_like", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(view_like)), METH_FASTCALL,
     "view_like(t, source): the same with the storage of `source`."},
    {}};

}  // namespace

int init_meta_tensors(PyObject* module) {
    return PyModule_AddFunctions(module, meta_tensors_functions);
}

}  // namespace smelt
