// The plans of an exported program: their machine code, linked, and the plans for the sizes of calls.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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

    // Links `code` (unpacked) and reads the first plan; the plans are best first. Throws FormatError.
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

    void read(Entry& entry) const;

    const plan::LinkedCode code_;
    std::vector<Entry> entries_;
    std::mutex mutex_;
};

}  // namespace smelt::exported
