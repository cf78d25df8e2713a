// State and offset of torch's random number generators.
//
// On a GPU: `at::PhiloxCudaState`, a struct whose header does not depend on CUDA, and the method of
// `at::CUDAGeneratorImpl` that returns one. The method is in the library of CUDA builds, so it is looked up by its
// mangled name and called as a function of the object and the argument, which is its ABI with all compilers that
// build torch for Linux.
//
// On the CPU: `at::mt19937_data_pod`, the state of the engine, as in ATen/core/MT19937RNGEngine.h: in the words
// `state_`, `next_` is the next index and `left_` - 1 words are unused. It is the same in all versions.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace smelt {

// The state of the CPU generator. Copying the engine takes a tenth of the time of its state as a tensor.
struct CpuRandomState {
    explicit CpuRandomState(at::CPUGeneratorImpl& generator)
        : engine(generator.engine()),
          next_float(generator.next_float_normal_sample()),
          next_double(generator.next_double_normal_sample()) {}

    // As `torch.get_rng_state()` returns it.
    at::Tensor tensor() const {
        auto generator = at::make_generator<at::CPUGeneratorImpl>();
        auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
        impl->set_engine(engine);
        impl->set_next_float_normal_sample(next_float);
        impl->set_next_double_normal_sample(next_double);
        return generator.get_state();
    }

    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
};

// The generator states of some devices.
class RandomState {
  public:
    explicit RandomState(const std::vector<c10::Device>& devices) {
        for (c10::Device device : devices) {
            at::Generator generator = at::globalContext().defaultGenerator(device);
            const std::lock_guard<std::mutex> lock(generator.mutex());
            if (device.is_cpu())
                cpu_.emplace(*at::check_generator<at::CPUGeneratorImpl>(generator));
            else
                others_.push_back(of(generator));
            is_cpu_.push_back(device.is_cpu());
        }
    }

    // As `torch.get_rng_state()` and `torch.cuda.get_rng_state()` return them, in the order of the devices.
    std::vector<at::Tensor> tensors() const {
        std::vector<at::Tensor> states;
        auto other = others_.begin();
        for (bool is_cpu : is_cpu_) states.push_back(is_cpu ? cpu_->tensor() : *other++);
        return states;
    }

  private:
    // Undefined during a CUDA graph capture, where the generator has no readable state.
    static at::Tensor of(const at::Generator& generator) {
        try {
            return generator.get_state();
        } catch (const c10::Error&) {
            return {};
        }
    }

    std::optional<CpuRandomState> cpu_;
    std::vector<at::Tensor> others_;
    std::vector<bool> is_cpu_;
};

using PhiloxCudaStateOf = at::PhiloxCudaState (*)(c10::GeneratorImpl*, uint64_t);

// nullptr: this torch has no such function.
inline PhiloxCudaStateOf philox_cuda_state_of_torch() {
    static const auto function = [] {
        void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
        const char* name = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm";
        return reinterpret_cast<PhiloxCudaStateOf>(library ? dlsym(library, name) : nullptr);  // NOLINT
    }();
    return function;
}

// Advances a CUDA generator by `offsets` and returns its previous state; during a capture of the current stream, the
// address of that state. The caller holds the generator's mutex.
inline at::PhiloxCudaState philox_cuda_state(at::Generator& generator, uint64_t offsets) {
    const auto function = philox_cuda_state_of_torch();
    TORCH_CHECK(function != nullptr,
                "smelt: torch has no at::CUDAGeneratorImpl::philox_cuda_state(uint64_t)");
    return function(generator.unsafeGetGeneratorImpl(), offsets);
}

}  // namespace smelt
