#include "plan/memory.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include "plan/blocks.h"

namespace smelt::plan {

at::Tensor arena_tensor(const Alloc& a, const Arena& arena) {
    auto* owner = new Arena(arena);
    auto deleter = [](void* p) { delete static_cast<Arena*>(p); };
    c10::DataPtr data(static_cast<char*>(arena->get()) + a.arena, owner, deleter, c10::Device(c10::kCPU));
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(a.nbytes), std::move(data), nullptr, false);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

at::Tensor raw_view(const View& v, const at::Tensor& src) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(src.storage()),
                                                      src.key_set(), src.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(v.shape, v.stride, src.storage_offset() + v.offset);
    return t;
}

at::Tensor allocate(const Alloc& a) {
    if (!a.device.is_cpu())
        return at::empty_strided(a.layout.shape, a.layout.stride,
                                 at::TensorOptions(a.layout.dtype).device(a.device));
    c10::DataPtr memory =
        a.nbytes >= kLargeBlock ? take_block(a.nbytes) : c10::GetCPUAllocator()->allocate(a.nbytes);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), a.nbytes,
                                                         std::move(memory), c10::GetCPUAllocator(), true);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    if (a.contiguous)
        t.unsafeGetTensorImpl()->set_sizes_contiguous(a.layout.shape);
    else
        t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

}  // namespace smelt::plan
