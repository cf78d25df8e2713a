#include "plan/launcher.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace smelt::plan {
namespace {

using Buffers = c10::SmallVector<void*, 32>;

// On torch's threads.
class CpuLauncher final : public Launcher {
  public:
    void launch(const Launch& l, void* const* data) const override {
        Buffers buffers(l.regs.size());
        for (size_t i = 0; i < l.regs.size(); ++i) buffers[i] = data[l.regs[i]];
        if (l.extent <= l.grain) {
            l.function(buffers.data(), 0, l.extent);
            return;
        }
        at::parallel_for(0, l.extent, l.grain,
                         [&](int64_t begin, int64_t end) { l.function(buffers.data(), begin, end); });
    }

    void together(const Together& t, const Launch* launches, void* const* data) const override {
        const int64_t total = t.ends.back();
        if (total <= t.grain) return share(t, launches, data, 0, total);
        at::parallel_for(0, total, t.grain,
                         [&](int64_t begin, int64_t end) { share(t, launches, data, begin, end); });
    }

  private:
    // The items of all launches that are in [begin, end) of the work.
    static void share(const Together& t, const Launch* launches, void* const* data, int64_t begin,
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
            buffers.clear();
            for (Reg r : l.regs) buffers.push_back(data[r]);
            l.function(buffers.data(), first, last);
        }
    }
};

const CpuLauncher kCpu;

}  // namespace

const Launcher& launcher_of(c10::Device device) {
    TORCH_CHECK(device.is_cpu(), "Plan: kernels cannot be launched on ", device);
    return kCpu;
}

}  // namespace smelt::plan
