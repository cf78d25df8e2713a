// torch's generators of random numbers: where they stand.
//
// Of a GPU's: `at::PhiloxCudaState`, a struct whose header names nothing of CUDA, and the method of `at::CUDAGeneratorImpl`
// that gives one. That is in the library of CUDA builds, so it is looked up by its name, and called as what it is to the
// linker: a function of the object and the argument, which all compilers that build torch for Linux agree upon.
//
// Of the CPU's: `at::mt19937_data_pod`, the state of the engine, as ATen/core/MT19937RNGEngine.h lays it out: the words
// `state_`, of which `next_` is the next and `left_` less one are unused. No version differs in it.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <optional>

namespace smelt {

// Copying the engine takes a tenth of the time that its state as a tensor takes.
struct RandomState {
    explicit RandomState(at::CPUGeneratorImpl& generator)
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

inline std::shared_ptr<const RandomState> state_of_generator() {
    const at::Generator& generator = at::detail::getDefaultCPUGenerator();
    auto* impl = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    return std::make_shared<const RandomState>(*impl);
}

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
