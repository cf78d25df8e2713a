// torch's generator of random numbers on the CPU: where it stands.
//
// Used as it is: `at::mt19937_data_pod`, the state of the engine, as ATen/core/MT19937RNGEngine.h lays it out: the words
// `state_`, of which `next_` is the next and `left_` less one are unused. No version differs in it.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

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

}  // namespace smelt
