// Where torch's generators of random numbers stand.
//
// Of a GPU's: `at::PhiloxCudaState`, a struct whose header names nothing of CUDA, and the method of `at::CUDAGeneratorImpl`
// that gives one. That is in the library of CUDA builds, so it is looked up by its name, and called as what it is to the
// linker: a function of the object and the argument, which all compilers that build torch for Linux agree upon.
//
// Of the CPU's: `at::mt19937_data_pod`, the state of the engine, as ATen/core/MT19937RNGEngine.h lays it out: the words
// `state_`, of which `next_` is the next and `left_` less one are unused. No version differs in it.
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

// That of the CPU. Copying the engine takes a tenth of the time that its state as a tensor takes.
struct CpuRandomState {
    explicit CpuRandomState(at::CPUGeneratorImpl& generator)
        : engine(generator.engine()),
          next_float(generator.next_float_normal_sample()),
          next_double(generator.next_double_normal_sample()) {}

    // As `torch.get_rng_state()` gives it.
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

// Those of some devices.
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

    // As `torch.get_rng_state()` and `torch.cuda.get_rng_state()` give them, in the order of the devices.
    std::vector<at::Tensor> tensors() const {
        std::vector<at::Tensor> states;
        auto other = others_.begin();
        for (bool is_cpu : is_cpu_) states.push_back(is_cpu ? cpu_->tensor() : *other++);
        return states;
    }

  private:
    // Undefined while work is captured into a CUDA graph, where the generator does not tell.
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

// nullptr: this torch has none.
inline PhiloxCudaStateOf philox_cuda_state_of_torch() {
    static const auto function = [] {
        void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
        const char* name = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm";
        return reinterpret_cast<PhiloxCudaStateOf>(library ? dlsym(library, name) : nullptr);  // NOLINT
    }();
    return function;
}

// Where a CUDA generator stands, which goes on by `offsets`; within a capture of the current stream, where that is written.
// Its mutex is to be held.
inline at::PhiloxCudaState philox_cuda_state(at::Generator& generator, uint64_t offsets) {
    const auto function = philox_cuda_state_of_torch();
    TORCH_CHECK(function != nullptr,
                "smelt: torch has no at::CUDAGeneratorImpl::philox_cuda_state(uint64_t)");
    return function(generator.unsafeGetGeneratorImpl(), offsets);
}

}  // namespace smelt
