// The plans of an exported program: their machine code, linked, and the plans for the sizes of calls.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_kernel.h"
#include "exported/tables.h"
#include "plan/elf_linker.h"
#include "plan/plan.h"
#include "plan/plan_template.h"

namespace smelt::exported {

constexpr size_t kMostInstances = 64;  // plans for sizes of earlier calls
constexpr size_t kIdleArenas = 2;      // that they hold between calls

// Thread-safe.
class ProgramPlans {
  public:
    // A plan, unpacked when a call first needs it, and its constants.
    struct Source {
        std::function<std::string()> section;
        std::vector<at::Tensor> constants;
    };

    // Links `code` (unpacked) and reads the first plan, which loads its kernels; the plans are best first. Throws FormatError,
    // and c10::Error if the driver of a GPU refuses a kernel.
    ProgramPlans(const std::string& code, std::vector<Source> plans);

    // A program for these sizes, whose machine code lives as long as this object; null if no plan covers them. Throws as the
    // constructor, and std::overflow_error for sizes that are too large.
    std::unique_ptr<const plan::Program> at(const std::vector<int64_t>& sizes);

    // Which inputs the steps write.
    std::vector<char> written_inputs() const;

  private:
    struct Entry {
        Source source;
        bool is_read = false;
        std::unique_ptr<const plan::Program> fixed;
        std::unique_ptr<const plan::Template> sized;
    };

    ProgramPlans(std::vector<Library> libraries, std::vector<Source> plans);
    void read(Entry& entry);
    plan::Code code_of(const KernelData& kernel);

    const plan::LinkedCode code_;
    std::vector<std::vector<std::string>> images_;  // by library
    std::map<std::pair<size_t, std::string>, std::unique_ptr<devices::Kernel>> kernels_;
    std::vector<Entry> entries_;
    std::mutex mutex_;
};

}  // namespace smelt::exported
