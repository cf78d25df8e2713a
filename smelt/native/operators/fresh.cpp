// fresh_like: memory of its own for a tensor whose layout is known. torch asks symbolic sizes a dozen questions when it makes
// a tensor of them, and remembers the answers in the tensor.
#include "module.h"
#include "torch_python.h"

namespace smelt {
namespace {

PyObject* fresh_like(PyObject*, PyObject* like) {
    HANDLE_TH_ERRORS
    if (!THPVariable_CheckExact(like) || !THPVariable_Unpack(like).is_meta()) {
        PyErr_SetString(PyExc_TypeError, "fresh_like: expected a tensor on the meta device");
        return nullptr;
    }
    const at::Tensor& given = THPVariable_Unpack(like);
    const c10::Storage& storage = given.storage();
    at::Tensor made(given.unsafeGetTensorImpl()->shallow_copy_and_detach(
        /*version_counter=*/0, /*allow_tensor_metadata_change=*/true));
    made.unsafeGetTensorImpl()->set_storage_keep_dtype(
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.sym_nbytes(),
                                              storage.allocator(), /*resizable=*/true));
    return THPVariable_Wrap(std::move(made));
    END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {{"fresh_like", fresh_like, METH_O,
                            "fresh_like(t): a tensor on the meta device laid out as `t`, which has memory of "
                            "its own and no history."},
                           {}};

}  // namespace

int init_fresh(PyObject* module) {
    return PyModule_AddFunctions(module, functions);
}

}  // namespace smelt
