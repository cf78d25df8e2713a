// Where torch's generators of random numbers stand.
//
// Used as it is: `at::mt19937_data_pod`, the state of the engine, as ATen/core/MT19937RNGEngine.h lays it out: the words
// `state_`, of which `next_` is the next and `left_` less one are unused. No version differs in it.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

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
                others_.push_back(generator.get_state());
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
    std::optional<CpuRandomState> cpu_;
    std::vector<at::Tensor> others_;
    std::vector<bool> is_cpu_;
};

}  // namespace smelt
