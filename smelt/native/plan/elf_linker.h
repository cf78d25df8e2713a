// Links the object files of libraries into one executable mapping, without LLVM.
//
// Kernels are compiled for the large code model, so they refer to constants, to each other and to the C library by 64-bit
// absolute addresses. That leaves three kinds of relocations. Object files of other machines, and other relocations, are
// refused; LLVM's linker (codegen/llvm/link.py) takes what this one refuses.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace smelt::plan {

// As smelt/plan/machine_code.py: relocatable object files that are linked together. `imports`: symbols that earlier libraries
// export, and the positions of these.
struct Library {
    std::vector<std::string> objects, exports;
    std::vector<std::pair<std::string, size_t>> imports;
};

// Machine code, executable and read-only as long as the object lives.
class LinkedCode {
  public:
    // Importers are last. Throws FormatError for object files that need another linker, are damaged, or refer to unknown
    // symbols.
    explicit LinkedCode(const std::vector<Library>& libraries);
    ~LinkedCode();
    LinkedCode(const LinkedCode&) = delete;
    LinkedCode& operator=(const LinkedCode&) = delete;

    // The function that a library exports. Throws FormatError if there is none.
    void* address_of(size_t library, const std::string& name) const;

  private:
    friend class Linker;
    char* memory_ = nullptr;
    size_t size_ = 0;
    std::vector<std::unordered_map<std::string, size_t>> exports_;  // offsets, by library
};

}  // namespace smelt::plan
