// Seed and offset of a GPU's Philox generator, for kernels that draw ATen's numbers themselves:
// `smelt::philox_offset`, and `smelt::philox_in_memory` for work that may be captured into a CUDA graph.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <mutex>
#include <tuple>

#include "torch.h"
#include "torch_generator.h"

namespace smelt {
namespace {

at::Tensor number(uint64_t value) {
    at::Tensor t = at::detail::empty_cpu({}, at::kLong);
    *t.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
    return t;
}

// Returns (seed, offset), numbers on the CPU, and advances the generator by `offsets` as ATen's kernels do. Raises
// during a CUDA graph capture: each replay would draw the same numbers.
std::tuple<at::Tensor, at::Tensor> philox_offset(int64_t offsets, c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    const uint64_t seed = generator.current_seed(), offset = generator.get_offset();
    generator.set_offset(offset + static_cast<uint64_t>(offsets));
    return {number(seed), number(offset)};
}

// Returns (seed, offset, addend to the offset): two numbers on the device and one on the CPU. During a capture the
// first two are torch's own, which torch writes before each replay, and the third is a constant.
std::tuple<at::Tensor, at::Tensor, at::Tensor> philox_in_memory(int64_t offsets, c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const at::PhiloxCudaState state = [&] {
        std::lock_guard<std::mutex> lock(generator.mutex());
        return philox_cuda_state(generator, static_cast<uint64_t>(offsets));
    }();
    const auto options = at::TensorOptions().dtype(at::kLong).device(device);
    if (state.captured_) {
        auto at_address = [&](int64_t* p) {
            return at::for_blob(p, {}).options(options).target_device(device).make_tensor();
        };
        return {at_address(state.seed_.ptr), at_address(state.offset_.ptr), number(state.offset_intragraph_)};
    }
    auto written = [&](uint64_t value) { return at::full({}, static_cast<int64_t>(value), options); };
    return {written(state.seed_.val), written(state.offset_.val), number(0)};
}

TORCH_LIBRARY_FRAGMENT(smelt, m) {
    m.def("philox_offset(int offsets, Device device) -> (Tensor, Tensor)",
          torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, philox_offset),
          {at::Tag::nondeterministic_seeded});
    m.def("philox_in_memory(int offsets, Device device) -> (Tensor, Tensor, Tensor)",
          torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, philox_in_memory),
          {at::Tag::nondeterministic_seeded});
    m.def("has_philox_in_memory() -> bool", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, [] {
              return philox_cuda_state_of_torch() != nullptr;
          }));
}

}  // namespace
}  // namespace smelt
