// Bernoulli draws in bulk: `smelt::bernoulli.out` returns the same numbers as `aten::bernoulli.p`.
//
// ATen draws one element at a time from its Mersenne Twister (mt19937). An element takes two 32-bit words of the
// stream: r1 and r2 give the 53-bit number (r1 << 32 | r2) mod 2^53, and the element is 1 if that is below p * 2^53.
// This code generates one state of words at a time and compares in loops that the compiler vectorizes. On processors
// where ATen draws differently (MKL's generator on Intel) `smelt/ops/random_numbers.py` detects that and calls ATen.
//
// Source of the generator: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998).
#include <ATen/Dispatch.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "module.h"
#include "torch_generator.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define WIDE
#endif

namespace smelt {
namespace {

constexpr int kState = at::MERSENNE_STATE_N, kShift = at::MERSENNE_STATE_M;
constexpr int64_t kBlock = 2048;  // elements

inline uint32_t twist(uint32_t u, uint32_t v) {
    return (((u & at::UMASK) | (v & at::LMASK)) >> 1) ^ (-(v & 1) & at::MATRIX_A);
}

// The next `kState` words of the untempered stream.
WIDE void next_state(uint32_t* state) {
    for (int j = 0; j < kState - kShift; j++) state[j] = state[j + kShift] ^ twist(state[j], state[j + 1]);
    for (int j = kState - kShift; j < kState - 1; j++)
        state[j] = state[j + kShift - kState] ^ twist(state[j], state[j + 1]);
    state[kState - 1] = state[kShift - 1] ^ twist(state[kState - 1], state[0]);
}

WIDE void temper(const uint32_t* state, int64_t count, uint32_t* words) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t y = state[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680;
        y ^= (y << 15) & 0xefc60000;
        words[i] = y ^ (y >> 18);
    }
}

// bits[i] = 1 if the number of words 2i and 2i + 1 is below `limit`.
WIDE void compare(const uint32_t* words, int64_t count, uint64_t limit, uint8_t* bits) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t number = (uint64_t{words[2 * i]} << 32 | words[2 * i + 1]) & ((uint64_t{1} << 53) - 1);
        bits[i] = number < limit;
    }
}

template <class T>
WIDE void store(const uint8_t* bits, int64_t count, T* out) {
    for (int64_t i = 0; i < count; i++) out[i] = static_cast<T>(bits[i]);
}

void draw(at::mt19937_data_pod& engine, uint32_t* words, int64_t count) {
    while (count > 0) {
        if (engine.left_ <= 1) {  // ATen decrements before it tests
            next_state(engine.state_.data());
            engine.left_ = kState + 1;
            engine.next_ = 0;
        }
        int64_t taken = std::min<int64_t>(count, engine.left_ - 1);
        temper(engine.state_.data() + engine.next_, taken, words);
        engine.left_ -= static_cast<int>(taken);
        engine.next_ += static_cast<uint32_t>(taken);
        words += taken;
        count -= taken;
    }
}

at::Tensor& bernoulli_out(const at::Tensor& self, double p, std::optional<at::Generator> generator,
                          at::Tensor& out) {
    bool known = out.scalar_type() == at::kBool || out.scalar_type() == at::kFloat ||
                 out.scalar_type() == at::kDouble || out.scalar_type() == at::kBFloat16 ||
                 out.scalar_type() == at::kHalf;
    if (!known || !(p >= 0 && p <= 1) || !out.is_non_overlapping_and_dense()) {
        return out.bernoulli_(p, generator);  // which raises for invalid arguments
    }
    auto* source =
        at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
    std::lock_guard<std::mutex> lock(source->mutex_);
    at::mt19937 engine = source->engine();
    at::mt19937_data_pod state = engine.data();
    const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
    uint32_t words[2 * kBlock];
    uint8_t bits[kBlock];
    AT_DISPATCH_FLOATING_TYPES_AND3(at::kBool, at::kBFloat16, at::kHalf, out.scalar_type(),
                                    "smelt::bernoulli", [&] {
                                        scalar_t* data = out.mutable_data_ptr<scalar_t>();
                                        for (int64_t i = 0; i < out.numel(); i += kBlock) {
                                            int64_t count = std::min(kBlock, out.numel() - i);
                                            draw(state, words, 2 * count);
                                            compare(words, count, limit, bits);
                                            store(bits, count, data + i);
                                        }
                                    });
    engine.set_data(state);
    source->set_engine(engine);
    return out;
}

TORCH_LIBRARY_FRAGMENT(smelt, m) {
    m.def("bernoulli.out(Tensor self, float p, *, Generator? generator=None, Tensor(a!) out) -> Tensor(a!)",
          {at::Tag::nondeterministic_seeded});
}

TORCH_LIBRARY_IMPL(smelt, CPU, m) {
    m.impl("bernoulli.out", bernoulli_out);
}

}  // namespace
}  // namespace smelt
