// A simulated CUDA device for a torch without CUDA: tensors with dispatch key CUDA, whose memory is the host's and whose
// operators are run by the kernels for the CPU.
//
// Each operator that has no kernel of its own here is given tensors of the CPU over the same memory. What it returns is
// again of the device: what it wrote to is the argument itself, a view shares its argument's storage, and what is new
// takes over the memory that the kernel allocated.
#include <ATen/Context.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <unordered_set>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int simulated_device_count();
EXPORT int simulated_current_device();
EXPORT void simulated_set_device(int device);
EXPORT bool simulated_is_capturing();

namespace {

using c10::Device, c10::DeviceIndex, c10::DispatchKey, c10::DispatchKeySet, c10::Stream, c10::StreamId;

constexpr int kDevices = 2;

Device gpu(DeviceIndex index) {
    return {c10::kCUDA, index};
}

Device current_device() {
    return gpu(static_cast<DeviceIndex>(simulated_current_device()));
}

// The device that `cuda` or `cuda:1` stands for.
Device resolved(Device d) {
    TORCH_CHECK(d.index() < kDevices, "CUDA error: invalid device ordinal");
    return d.has_index() ? d : current_device();
}

// --------------------------------------------------------------------------------------------------------- memory

struct Usage {
    std::atomic<int64_t> current = 0, peak = 0;

    void add(int64_t nbytes) {
        const int64_t now = current += nbytes;
        for (int64_t seen = peak; seen < now && !peak.compare_exchange_weak(seen, now);) {
        }
    }
};

std::array<Usage, kDevices> usage;

// In front of each block, which is aligned as CUDA aligns.
struct alignas(512) Header {
    int64_t nbytes;
    DeviceIndex device;
};

// What torch's allocator counts for a block.
size_t rounded(size_t nbytes) {
    return (nbytes + sizeof(Header) - 1) / sizeof(Header) * sizeof(Header);
}

class Memory final : public c10::Allocator {
  public:
    c10::DataPtr allocate(size_t nbytes) override {
        const Device device = current_device();
        if (!nbytes) return {nullptr, device};
        const size_t padded = rounded(nbytes);
        auto* header = static_cast<Header*>(std::aligned_alloc(sizeof(Header), sizeof(Header) + padded));
        TORCH_CHECK(header, "CUDA out of memory: the host has no ", nbytes, " bytes");
        *header = {static_cast<int64_t>(padded), device.index()};
        usage[device.index()].add(header->nbytes);
        return {header + 1, header, &release, device};
    }

    void copy_data(void* to, const void* from, size_t nbytes) const override {
        default_copy_data(to, from, nbytes);
    }

  private:
    static void release(void* p) {
        auto* header = static_cast<Header*>(p);
        usage[header->device].add(-header->nbytes);
        std::free(header);
    }
};

Memory allocator;

// What a kernel for the CPU allocated, as memory of the device.
c10::DataPtr take_over(const c10::Storage& host, DeviceIndex device) {
    struct Taken {
        c10::Storage host;
        int64_t nbytes;
        DeviceIndex device;
    };
    auto* taken = new Taken{host, static_cast<int64_t>(rounded(host.nbytes())), device};
    usage[device].add(taken->nbytes);
    auto release = [](void* p) {
        auto* taken = static_cast<Taken*>(p);
        usage[taken->device].add(-taken->nbytes);
        delete taken;
    };
    return {host.mutable_data(), taken, release, gpu(device)};
}

c10::Storage storage_over(c10::DataPtr data, size_t nbytes, c10::Allocator* allocator, bool resizable) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data),
                                                 allocator, resizable);
}

// -------------------------------------------------------------------------------------------------- devices, streams

thread_local std::array<StreamId, kDevices> streams{};
std::atomic<StreamId> last_stream = 0;

// Never null, and says which device it is of: see `belongs_to` in driver.cpp.
void* handle_of(StreamId id, DeviceIndex device) {
    return reinterpret_cast<void*>((static_cast<uintptr_t>(id) << 8) | static_cast<uintptr_t>(device + 1));
}

// Which stream, by its handle, was told to wait for which, in order.
struct Wait {
    void *later, *earlier;
};
std::mutex waits_mutex;
std::vector<Wait> waits;

// All work is done when the call that asked for it returns: there is nothing to wait for, but it is written down. An event is
// the handle of the stream that it was recorded on.
struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::kCUDA; }
    DeviceIndex deviceCount() const noexcept override { return kDevices; }
    Device getDevice() const override { return current_device(); }
    // As torch: a thread that is on the device already keeps having no context.
    void setDevice(Device d) const override {
        if (simulated_current_device() != resolved(d).index()) simulated_set_device(resolved(d).index());
    }
    void uncheckedSetDevice(Device d) const noexcept override { simulated_set_device(d.index()); }

    Device exchangeDevice(Device d) const override {
        const Device before = current_device();
        if (d != before) setDevice(d);
        return before;
    }

    c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

    Stream getStream(Device d) const override { return of(streams[resolved(d).index()], d); }
    Stream getDefaultStream(Device d) const override { return of(0, d); }
    Stream getNewStream(Device d, int = 0) const override { return of(++last_stream, d); }
    Stream getStreamFromGlobalPool(Device d, bool = false) const override { return getNewStream(d); }

    Stream exchangeStream(Stream s) const override {
        return of(std::exchange(streams[s.device_index()], s.id()), s.device());
    }

    void* getStreamNativeHandle(Stream s) const override { return handle_of(s.id(), s.device_index()); }
    bool queryStream(const Stream&) const override { return true; }
    void synchronizeStream(const Stream&) const override {}
    void synchronizeDevice(DeviceIndex) const override {}

    void record(void** event, const Stream& s, DeviceIndex, c10::EventFlag) const override {
        *event = handle_of(s.id(), s.device_index());
    }

    void block(void* event, const Stream& s) const override {
        std::lock_guard lock(waits_mutex);
        waits.push_back({handle_of(s.id(), s.device_index()), event});
    }

    bool queryEvent(void*) const override { return true; }
    void synchronizeEvent(void*) const override {}
    double elapsedTime(void*, void*, DeviceIndex) const override { return 0; }

  private:
    static Stream of(StreamId id, Device d) { return Stream(Stream::UNSAFE, resolved(d), id); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// Draws the numbers of the CPU, and is of the device unless a kernel for the CPU is given it.
class Random final : public at::CPUGeneratorImpl {
  public:
    explicit Random(Device d) { be_of(d); }

    void be_of(Device d) {
        device_ = d;
        key_set_ = DispatchKeySet(d.is_cuda() ? DispatchKey::CUDA : DispatchKey::CPU);
    }

  private:
    at::CPUGeneratorImpl* clone_impl() const override {
        auto* clone = new Random(device_);
        clone->set_state(*get_state());
        return clone;
    }
};

}  // namespace

namespace at {

struct SimulatedHooks final : CUDAHooksInterface {
    void init() const override {}
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasCUDA() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    int getNumGPUs() const override { return kDevices; }
    DeviceIndex deviceCount() const override { return kDevices; }
    DeviceIndex current_device() const override { return ::current_device().index(); }
    DeviceIndex getCurrentDevice() const override { return ::current_device().index(); }
    void setCurrentDevice(DeviceIndex d) const override { Guard().setDevice(gpu(d)); }
    DeviceIndex exchangeDevice(DeviceIndex d) const override {
        return Guard().exchangeDevice(gpu(d)).index();
    }
    DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
    Device getDeviceFromPtr(void*) const override { return ::current_device(); }
    Generator getNewGenerator(DeviceIndex d) const override {
        return make_generator<Random>(resolved(gpu(d)));
    }
    c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
    c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
    void deviceSynchronize(DeviceIndex) const override {}
};

// torch asked the registry for its hooks when it was imported, and keeps the object that it then made: it becomes ours.
static_assert(sizeof(SimulatedHooks) == sizeof(CUDAHooksInterface));
const auto* const hooks = new (const_cast<CUDAHooksInterface*>(&detail::getCUDAHooks())) SimulatedHooks;

namespace native {

using fused_sdp_choice_fn = int64_t (*)(const Tensor&, const Tensor&, const Tensor&,
                                        const std::optional<Tensor>&, double, bool, std::optional<double>,
                                        bool);
DECLARE_DISPATCH(fused_sdp_choice_fn, _fused_sdp_choice_stub)

std::atomic<bool> fused_attention = false;

// Attention made of other operators, as where no fused kernel takes its operands; or the kernel that CUDA takes for them,
// which does not run here.
int64_t attention_choice(const Tensor& query, const Tensor&, const Tensor&, const std::optional<Tensor>& mask,
                         double, bool, std::optional<double>, bool) {
    // As CUDA's does when it is first asked, on some GPUs.
    static const bool ordered = (globalContext().setSDPPriorityOrder({3, 1, 2, 0}), true);
    if (!ordered || !fused_attention) return 0;
    return mask || !isReducedFloatingType(query.scalar_type()) ? 2 : 1;  // efficient, flash
}

REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_choice)

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
    m.impl("_fused_sdp_choice", &attention_choice);
}

}  // namespace native
}  // namespace at

EXPORT void simulated_use_fused_attention(bool use) {
    at::native::fused_attention = use;
}

namespace {

// ------------------------------------------------------------------------------------------------------ operators

// What of a tensor's keys says how its elements are to be read.
constexpr DispatchKeySet kReading({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});

// May be given tensors of the CPU that have dimensions, beside those of the device.
const std::unordered_set<std::string> kMixesDevices = {
    "aten::copy_",
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_copy_from",
    "aten::_pack_padded_sequence",
    "aten::_ctc_loss",
    "aten::_ctc_loss_backward",
};

void place(const at::Tensor& t, const at::Tensor& like) {
    t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
}

bool same_place(const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

bool is_write(const c10::AliasInfo* alias) {
    return alias && alias->isWrite();
}

// An operator on its way to the CPU and back.
class Call {
  public:
    explicit Call(const c10::OperatorHandle& op) : op_(op) {}
    ~Call() {
        for (auto& [random, device] : randoms_) random->be_of(device);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void run(torch::jit::Stack* stack) {
        to_host(stack);
        check_devices();
        op_.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
        carry_back();
        to_device(stack);
    }

  private:
    struct Shared {
        c10::Storage device, host;
        const void* data;  // before the call
    };
    struct Argument {
        at::Tensor device, host;
    };

    void to_host(torch::jit::Stack* stack) {
        const size_t count = op_.schema().arguments().size(), first = stack->size() - count;
        for (size_t i = 0; i < count; ++i) {
            auto& value = (*stack)[first + i];
            given_.push_back(value);
            value = host_value(value);
        }
    }

    c10::IValue host_value(const c10::IValue& v) {
        if (v.isTensor()) return host_tensor(v.toTensor());
        if (v.isTensorList() || v.isOptionalTensorList()) return mapped(v, &Call::host_value);
        if (v.isStorage()) return host_storage(v.toStorage());
        if (v.isGenerator()) lend(v.toGenerator());
        if (v.isDevice() && v.toDevice().is_cuda()) {
            if (!device_) device_ = resolved(v.toDevice());
            return Device(c10::kCPU);
        }
        return v;
    }

    c10::IValue mapped(const c10::IValue& v, c10::IValue (Call::*each)(const c10::IValue&)) {
        const auto from = v.toList();
        c10::impl::GenericList to(from.elementType());
        to.reserve(from.size());
        for (size_t i = 0; i < from.size(); ++i) to.push_back((this->*each)(from.get(i)));
        return to;
    }

    at::Tensor host_tensor(const at::Tensor& t) {
        if (!t.defined()) return t;
        see(t);
        if (!t.is_cuda()) return t;
        auto host = at::detail::make_tensor<c10::TensorImpl>(
            host_storage(t.storage()), DispatchKeySet(DispatchKey::CPU) | (t.key_set() & kReading),
            t.dtype());
        place(host, t);
        if (t.unsafeGetTensorImpl()->is_wrapped_number())
            host.unsafeGetTensorImpl()->set_wrapped_number(true);
        arguments_.push_back({t, host});
        return host;
    }

    void lend(const at::Generator& generator) {
        TORCH_CHECK(generator.device().is_cuda(),
                    "Expected a 'cuda' device type for generator but found 'cpu'");
        auto* random = generator.get<Random>();
        randoms_.push_back({random, random->device()});
        random->be_of(c10::kCPU);
    }

    void see(const at::Tensor& t) {
        if (t.is_cpu() && !t.dim()) return;
        if (t.is_cuda() && (!device_ || !found_tensor_)) {
            device_ = t.device();
            found_tensor_ = true;
        }
        if (!first_seen_) first_seen_ = t.device();
        if (t.device() != *first_seen_) other_ = t.device();
    }

    void check_devices() {
        if (!other_ || kMixesDevices.count(op_.operator_name().name)) return;
        TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                    *first_seen_, " and ", *other_, "! (", op_.operator_name(), ")");
    }

    // Keeps the storage of the device alive, and may be resized as that may.
    c10::Storage host_storage(const c10::Storage& s) {
        if (s.device_type() != c10::kCUDA) return s;
        for (auto& m : memory_)
            if (m.device.unsafeGetStorageImpl() == s.unsafeGetStorageImpl()) return m.host;
        void* data = s.mutable_data();
        auto* owner = new c10::Storage(s);
        auto release = [](void* p) { delete static_cast<c10::Storage*>(p); };
        auto host = storage_over({data, owner, release, Device(c10::kCPU)}, s.nbytes(),
                                 c10::GetCPUAllocator(), s.resizable());
        memory_.push_back({s, host, data});
        return host;
    }

    // To the arguments, what the kernel changed of their storages and places.
    void carry_back() {
        for (auto& m : memory_) {
            if (m.host.data() == m.data && m.host.nbytes() == m.device.nbytes()) continue;
            m.device.set_data_ptr_noswap(take_over(m.host, m.device.device().index()));
            m.device.set_nbytes(m.host.nbytes());
            m.data = m.host.data();
        }
        for (auto& a : arguments_) {
            const auto storage = device_storage(a.host.storage());
            if (storage.unsafeGetStorageImpl() != a.device.storage().unsafeGetStorageImpl())
                a.device.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
            if (!same_place(a.device, a.host)) place(a.device, a.host);
        }
    }

    void to_device(torch::jit::Stack* stack) {
        const auto& returns = op_.schema().returns();
        const size_t first = stack->size() - returns.size();
        for (size_t i = 0; i < returns.size(); ++i) {
            auto& value = (*stack)[first + i];
            value =
                is_write(returns[i].alias_info()) ? written(*returns[i].alias_info()) : device_value(value);
        }
    }

    c10::IValue written(const c10::AliasInfo& alias) {
        const auto& arguments = op_.schema().arguments();
        for (size_t i = 0; i < arguments.size(); ++i) {
            const auto* own = arguments[i].alias_info();
            if (is_write(own) && own->beforeSets() == alias.beforeSets()) return given_[i];
        }
        TORCH_CHECK(false, "simulated CUDA: which argument does ", op_.operator_name(), " return?");
    }

    c10::IValue device_value(const c10::IValue& v) {
        if (v.isTensor()) return device_tensor(v.toTensor());
        return v.isTensorList() ? mapped(v, &Call::device_value) : v;
    }

    at::Tensor device_tensor(const at::Tensor& host) {
        if (!host.defined() || !host.is_cpu()) return host;
        const auto reading = host.key_set() & kReading;
        const at::Tensor* base = argument_over(host.storage());
        auto storage = device_storage(host.storage());
        auto made = base ? at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage),
                                                                    (base->key_set() - kReading) | reading,
                                                                    host.dtype())
                         : at::detail::make_tensor<c10::TensorImpl>(
                               std::move(storage), DispatchKeySet(DispatchKey::CUDA) | reading, host.dtype());
        place(made, host);
        return made;
    }

    // One whose memory that is: the result is a view.
    const at::Tensor* argument_over(const c10::Storage& host) const {
        for (auto& a : arguments_)
            if (a.host.storage().unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return &a.device;
        return nullptr;
    }

    c10::Storage device_storage(const c10::Storage& host) {
        for (auto& m : memory_)
            if (m.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return m.device;
        const auto index = device_.value_or(current_device()).index();
        auto device = storage_over(take_over(host, index), host.nbytes(), &allocator, true);
        memory_.push_back({device, host, host.data()});
        return device;
    }

    const c10::OperatorHandle& op_;
    c10::SmallVector<c10::IValue, 8> given_;
    c10::SmallVector<Argument, 4> arguments_;
    c10::SmallVector<Shared, 4> memory_;
    std::optional<Device> device_;  // of what is new
    bool found_tensor_ = false;     // rather than an argument that names a device
    std::optional<Device> first_seen_, other_;
    c10::SmallVector<std::pair<Random*, Device>, 1> randoms_;  // lent to the CPU
};

bool gives_views(const c10::FunctionSchema& schema) {
    for (const auto& r : schema.returns())
        if (!r.alias_info() || r.alias_info()->isWrite()) return false;
    return !schema.returns().empty();
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    TORCH_CHECK(gives_views(op.schema()) || !simulated_is_capturing(), "a simulated graph cannot repeat ",
                op.operator_name());
    Call(op).run(stack);
}

using OptionalType = std::optional<c10::ScalarType>;

// While it lives, the current device is the one that new memory is asked for on.
class On {
  public:
    explicit On(std::optional<Device> wanted)
        : before_(Guard().exchangeDevice(wanted ? resolved(*wanted) : current_device())) {}
    ~On() { Guard().exchangeDevice(before_); }
    On(const On&) = delete;
    On& operator=(const On&) = delete;

  private:
    Device before_;
};

at::Tensor empty(at::IntArrayRef size, OptionalType dtype, std::optional<c10::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    const On on(device);
    return at::detail::empty_generic(size, &allocator, DispatchKeySet(DispatchKey::CUDA),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptionalType dtype,
                         std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool>) {
    const On on(device);
    return at::detail::empty_strided_generic(size, stride, &allocator, DispatchKeySet(DispatchKey::CUDA),
                                             c10::dtype_or_default(dtype));
}

void record_stream(at::Tensor&, Stream) {}

// GPUs convert the number whatever the size; of one element, the kernel for the CPU does not look whether it fits.
void fill(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& self = (*stack)[stack->size() - 2].toTensor();
    at::empty({2}, self.options().device(c10::kCPU)).fill_(stack->back().toScalar());
    on_host(op, stack);
}

// Made of other operators by torch, by kernels that look for CUDA's own or that CPU builds lack.
constexpr const char* kWhole[] = {
    "copy_",
    "convolution",
    "convolution_backward",
};

TORCH_LIBRARY_IMPL(_, CUDA, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
    m.impl("empty.memory_format", &empty);
    m.impl("empty_strided", &empty_strided);
    m.impl("record_stream", &record_stream);
    m.impl("fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&fill>());
    for (const char* name : kWhole) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

REGISTER_ALLOCATOR(c10::kCUDA, &allocator)

}  // namespace

// ------------------------------------------------------------------------------------------------------- for Python

EXPORT int64_t simulated_allocated(int device) {
    return usage[device].current;
}
EXPORT int64_t simulated_peak(int device) {
    return usage[device].peak;
}
EXPORT void simulated_reset_peak(int device) {
    usage[device].peak = usage[device].current.load();
}
EXPORT int64_t simulated_current_stream(int device) {
    return streams[device];
}
EXPORT void simulated_set_stream(int device, int64_t id) {
    streams[device] = id;
}
// False where there were fewer.
EXPORT bool simulated_wait(int64_t index, Wait* wait) {
    std::lock_guard lock(waits_mutex);
    if (index < 0 || index >= static_cast<int64_t>(waits.size())) return false;
    *wait = waits[static_cast<size_t>(index)];
    return true;
}

EXPORT void simulated_forget_waits() {
    std::lock_guard lock(waits_mutex);
    waits.clear();
}

EXPORT int64_t simulated_new_stream() {
    return ++last_stream;
}
EXPORT void* simulated_stream_handle(int device, int64_t id) {
    return handle_of(id, static_cast<DeviceIndex>(device));
}
