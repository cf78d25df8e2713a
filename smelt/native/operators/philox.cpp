// Where the generator of a GPU stands, for kernels that draw ATen's numbers themselves: `smelt::philox_place`, and
// `smelt::philox_in_memory` for work that may be captured into a CUDA graph.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <mutex>
#include <tuple>

#include "torch.h"
#include "torch_random.h"

namespace smelt {
namespace {

at::Tensor number(uint64_t value) {
    at::Tensor t = at::detail::empty_cpu({}, at::kLong);
    *t.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
    return t;
}

// (seed, offset), each a number on the CPU; the generator goes on by `offsets`, as ATen's kernels have it go on. Raises where
// work on the device is captured into a graph: each of its replays would draw the same numbers.
std::tuple<at::Tensor, at::Tensor> philox_place(int64_t offsets, c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    const uint64_t seed = generator.current_seed(), offset = generator.get_offset();
    generator.set_offset(offset + static_cast<uint64_t>(offsets));
    return {number(seed), number(offset)};
}

// (seed, offset, what is to be added to the offset): two numbers on the device and one on the CPU. Within a capture the first
// two are torch's own, which are written before each replay, and the third is the same in each.
std::tuple<at::Tensor, at::Tensor, at::Tensor> philox_in_memory(int64_t offsets, c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const at::PhiloxCudaState place = [&] {
        std::lock_guard<std::mutex> lock(generator.mutex());
        return philox_cuda_state(generator, static_cast<uint64_t>(offsets));
    }();
    const auto options = at::TensorOptions().dtype(at::kLong).device(device);
    if (place.captured_) {
        auto at_place = [&](int64_t* p) {
            return at::for_blob(p, {}).options(options).target_device(device).make_tensor();
        };
        return {at_place(place.seed_.ptr), at_place(place.offset_.ptr), number(place.offset_intragraph_)};
    }
    auto written = [&](uint64_t value) { return at::full({}, static_cast<int64_t>(value), options); };
    return {written(place.seed_.val), written(place.offset_.val), number(0)};
}

TORCH_LIBRARY_FRAGMENT(smelt, m) {
    m.def("philox_place(int offsets, Device device) -> (Tensor, Tensor)",
          torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, philox_place),
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
