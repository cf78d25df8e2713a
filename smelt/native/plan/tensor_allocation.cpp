#include "plan/tensor_allocation.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>

#include "plan/caching_allocator.h"
#include "torch.h"

namespace smelt::plan {
namespace {

c10::DataPtr part_of(const Arena& arena, const Alloc& a) {
    void* begin = static_cast<char*>(arena->get()) + a.arena;
    if (!a.device.is_cpu()) return {begin, a.device};
    return {begin, new Arena(arena), [](void* p) { delete static_cast<Arena*>(p); }, a.device};
}

}  // namespace

c10::DispatchKeySet keys_of(const Alloc& a) {
    if (a.device.is_cpu()) return c10::DispatchKeySet(c10::DispatchKey::CPU);
    return c10::DispatchKeySet(c10::computeDispatchKey(a.layout.dtype, at::kStrided, a.device));
}

Arena make_arena(size_t bytes, c10::Device device) {
    c10::Allocator* allocator = device.is_cpu() ? c10::GetCPUAllocator() : c10::GetAllocator(device.type());
    return std::make_shared<c10::DataPtr>(allocator->allocate(bytes));
}

at::Tensor arena_tensor(const Alloc& a, const Arena& arena) {
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                         static_cast<int64_t>(a.nbytes), part_of(arena, a),
                                                         nullptr, false);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), a.keys,
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

void move_to_arena(const at::Tensor& t, const Alloc& a, const Arena& arena) {
    t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(part_of(arena, a));
}

at::Tensor raw_view(const View& v, const at::Tensor& src) {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(src.storage()),
                                                      src.key_set(), src.dtype());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(v.shape, v.stride, src.storage_offset() + v.offset);
    return t;
}

at::Tensor allocate(const Alloc& a, c10::Device current) {
    c10::Allocator* allocator;
    c10::DataPtr memory;
    if (a.device.is_cpu()) {
        allocator = c10::GetCPUAllocator();
        memory = a.nbytes >= kLargeBlock ? allocate_block(a.nbytes) : allocator->allocate(a.nbytes);
    } else {
        const c10::OptionalDeviceGuard guard(a.device == current ? std::nullopt : std::optional(a.device));
        allocator = c10::GetAllocator(a.device.type());
        memory = allocator->allocate(a.nbytes);
    }
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), a.nbytes,
                                                         std::move(memory), allocator, true);
    auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), a.keys,
                                                      c10::scalarTypeToTypeMeta(a.layout.dtype));
    if (a.contiguous)
        t.unsafeGetTensorImpl()->set_sizes_contiguous(a.layout.shape);
    else
        t.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return t;
}

at::Tensor in_place_of(const at::Tensor& t, const Alloc& a) {
    if (!t.defined() || t.use_count() != 1 || t.storage_offset() != 0 || t.device() != a.device) return {};
    const c10::Storage& storage = t.storage();
    if (storage.use_count() != 1 || storage.nbytes() < a.nbytes) return {};
    if (reinterpret_cast<uintptr_t>(storage.data()) % kAlignment != 0) return {};
    auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), a.keys,
                                                         c10::scalarTypeToTypeMeta(a.layout.dtype));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(a.layout.shape, a.layout.stride);
    return made;
}

}  // namespace smelt::plan
