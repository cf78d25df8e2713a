// Where the generator of a GPU stands: `smelt::philox_place`, for kernels that draw ATen's numbers themselves.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <torch/library.h>

#include <mutex>
#include <tuple>

#include "torch.h"

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

TORCH_LIBRARY_FRAGMENT(smelt, m) {
    m.def("philox_place(int offsets, Device device) -> (Tensor, Tensor)",
          torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, philox_place),
          {at::Tag::nondeterministic_seeded});
}

}  // namespace
}  // namespace smelt
