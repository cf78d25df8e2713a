#include "plan/kernel_launcher.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "devices/gpu_driver.h"

namespace smelt::plan {
namespace {

using Buffers = c10::SmallVector<void*, 32>;
constexpr int64_t kBeyond = INT32_MAX;  // the start of an unused launch

using CpuKernel = void (*)(void**, int64_t, int64_t);

CpuKernel cpu_kernel(const Launch& l) {
    return reinterpret_cast<CpuKernel>(l.function);
}

// Fills the arguments of a CPU kernel.
void fill(Buffers& buffers, const Launch& l, void* const* data) {
    const size_t count = l.regs.size();
    buffers.resize(count + l.sizes.size());
    for (size_t i = 0; i < count; ++i) buffers[i] = data[l.regs[i]];
    for (size_t i = 0; i < l.sizes.size(); ++i)
        buffers[count + i] = reinterpret_cast<void*>(l.sizes[i]);  // NOLINT
}

class CpuLauncher final : public Launcher {
  public:
    void launch(const Launch& l, void* const* data, const Queue& /*queue*/) const override {
        Buffers buffers;
        fill(buffers, l, data);
        const CpuKernel kernel = cpu_kernel(l);
        if (l.extent <= l.grain) {
            kernel(buffers.data(), 0, l.extent);
            return;
        }
        at::parallel_for(0, l.extent, l.grain,
                         [&](int64_t begin, int64_t end) { kernel(buffers.data(), begin, end); });
    }

    void parallel_launch(const BatchedLaunch& t, const Launch* launches, void* const* data,
                         const Queue& /*queue*/) const override {
        const int64_t total = t.ends.back();
        if (total <= t.grain) return share(t, launches, data, 0, total);
        at::parallel_for(0, total, t.grain,
                         [&](int64_t begin, int64_t end) { share(t, launches, data, begin, end); });
    }

  private:
    static void share(const BatchedLaunch& t, const Launch* launches, void* const* data, int64_t begin,
                      int64_t end);
};

// Runs the items of all launches that are in [begin, end) of the work.
void CpuLauncher::share(const BatchedLaunch& t, const Launch* launches, void* const* data, int64_t begin,
                        int64_t end) {
    Buffers buffers;
    auto i = static_cast<size_t>(std::upper_bound(t.ends.begin(), t.ends.end(), begin) - t.ends.begin());
    for (int64_t start = i ? t.ends[i - 1] : 0; i < t.count && start < end; start = t.ends[i++]) {
        const Launch& l = launches[i];
        const int64_t work = t.ends[i] - start;
        auto item = [&](int64_t at) {
            return at <= start ? 0 : at - start >= work ? l.extent : l.extent * (at - start) / work;
        };
        const int64_t first = item(begin), last = item(end);
        if (first >= last) continue;
        fill(buffers, l, data);
        cpu_kernel(l)(buffers.data(), first, last);
    }
}

class GpuLauncher final : public Launcher {
  public:
    void launch(const Launch& l, void* const* data, const Queue& queue) const override {
        // The driver takes the address of each parameter: of the register for a tensor's address, the register's
        // content (an address in host memory) for a number.
        const size_t count = l.regs.size(), numbers = count + l.sizes.size();
        std::array<void*, kFew> few;  // not cleared: a launch takes microseconds, most of them in the driver
        std::vector<void*> many;
        void** parameters = few.data();
        if (numbers + kFurther > kFew) {
            many.resize(numbers + kFurther);
            parameters = many.data();
        }
        for (size_t i = 0; i < count; ++i)
            parameters[i] = l.by_value[i] ? data[l.regs[i]] : const_cast<void**>(&data[l.regs[i]]);
        for (size_t i = 0; i < l.sizes.size(); ++i) parameters[count + i] = const_cast<int64_t*>(&l.sizes[i]);
        parameters[numbers] = const_cast<int64_t*>(&l.extent);
        start(l, l.blocks, parameters, numbers + 1, queue);
    }

    void parallel_launch(const BatchedLaunch& t, const Launch* launches, void* const* data,
                         const Queue& queue) const override {
        const Launch& first = launches[0];
        const size_t starts = std::bit_ceil(size_t{first.parts});
        std::array<int64_t, kTableSlots> table;
        std::fill_n(table.begin(), starts, kBeyond);
        int64_t* slot = table.data() + starts;
        for (size_t i = 0; i < t.count; ++i) {
            const Launch& l = launches[i];
            table[i] = i ? t.ends[i - 1] : 0;
            *slot++ = l.extent;
            for (size_t k = 0; k < l.regs.size(); ++k) {
                void* const value = data[l.regs[k]];
                *slot = reinterpret_cast<int64_t>(value);
                if (l.by_value[k]) std::memcpy(slot, value, l.by_value[k]);
                ++slot;
            }
        }
        std::array<void*, kFurther> parameters{table.data()};
        start(first, t.ends.back(), parameters.data(), 1, queue);
    }

  private:
    static constexpr size_t kFew = 64, kFurther = 3;  // parameters; of them, those that are not registers

    // The array has room after the `count` parameters for the two that Triton's kernels end with.
    static void start(const Launch& l, int64_t blocks, void** parameters, size_t count, const Queue& queue) {
        void* none = nullptr;  // Triton's scratch memory, which no kernel here uses
        parameters[count] = parameters[count + 1] = &none;
        const devices::Driver& driver = devices::driver();
        const devices::Status status = devices::in_context(queue.device, [&] {
            return driver.launch(l.function, static_cast<unsigned>(blocks), 1, 1, l.threads, 1, 1, l.shared,
                                 queue.stream, parameters, nullptr);
        });
        devices::check(status, "launching a kernel");
    }
};

const CpuLauncher kCpu;
const GpuLauncher kGpu;

}  // namespace

const Launcher& cpu_launcher() {
    return kCpu;
}

const Launcher& gpu_launcher() {
    return kGpu;
}

}  // namespace smelt::plan
