// NVIDIA's GPU driver without its headers: the machine's library is opened on first use. hip_driver.cpp provides the
// same functions for AMD.
//
// Invariant: a process that launches nothing on a GPU does not load the driver. Names are those of the driver's C
// interface (docs.nvidia.com/cuda/cuda-driver-api); suffixes are the versions that its headers select.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace smelt::devices {

using Status = int;  // 0: success
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Linker = void*;

struct Driver {
    Status (*version)(int*);
    Status (*init)(unsigned flags);
    Status (*attribute)(int* value, int attribute, int device);  // null if no caller needs it
    Status (*context_of_thread)(Context*);
    Status (*set_context)(Context);
    Status (*device)(int*, int ordinal);
    Status (*retain_primary_context)(Context*, int device);
    Status (*load_module)(Module*, const void* image, unsigned options, int* names, void** values);
    Status (*function_of_module)(Function*, Module, const char* name);
    Status (*set_attribute)(Function, int attribute, int value);
    Status (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream, void** parameters,
                     void** extra);
    Status (*capture_status)(Stream, int* status);  // 0: not captured
    Status (*new_linker)(unsigned options, int* names, void** values,
                         Linker*);  // linker functions are null if the driver has none
    Status (*add_to_linker)(Linker, int kind, void* data, size_t bytes, const char* name, unsigned options,
                            int* names, void** values);
    Status (*link)(Linker, void** image, size_t* bytes);  // the linker owns the image
    Status (*delete_linker)(Linker);
    Status (*error_name)(Status, const char**);
    Status (*error_text)(Status, const char**);
};

// Throws if there is no driver.
const Driver& driver();

constexpr Status kNoContext = 201;  // CUDA_ERROR_INVALID_CONTEXT: the thread has none

// Throws an exception with the driver's text for `status`, an error; `doing` names the failed action.
[[noreturn]] void fail(Status status, std::string_view doing);

inline void check(Status status, std::string_view doing) {
    if (status != 0) fail(status, doing);
}

// Makes sure that this thread has a context: that of `device`, which torch uses too.
void enter(int device);

// Makes the context of `device` current for the lifetime of the object.
class Entered {
  public:
    explicit Entered(int device);
    ~Entered();
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;

  private:
    Context before_ = nullptr;
    bool changed_ = false;
};

// The status of `call`, a call of the driver, which is repeated in the context of `device` if this thread has none. New
// threads have none, autograd's threads included: torch makes a context current only where it changes the device.
template <class Call>
Status in_context(int device, const Call& call) {
    const Status status = call();
    if (status != kNoContext) return status;
    enter(device);
    return call();
}

// Ten times the compute capability of a GPU; 0 without such a GPU or without NVIDIA's driver.
int capability(int ordinal);

// Whether the stream, of `device`, is being captured into a graph.
bool is_captured(int device, Stream stream);

// The driver's error log for code that it compiles, as CUjit_option values; it must outlive the objects that it is
// passed to.
class CompilerLog {
  public:
    CompilerLog() = default;
    CompilerLog(const CompilerLog&) = delete;
    CompilerLog& operator=(const CompilerLog&) = delete;

    unsigned size() const { return names_.size(); }
    int* names() { return names_.data(); }
    void** values() { return values_.data(); }
    std::string in_brackets() const;  // "" if the log is empty

  private:
    std::array<char, 4096> text_{};
    std::array<int, 2> names_{5, 6};  // CU_JIT_ERROR_LOG_BUFFER and its size
    std::array<void*, 2> values_{text_.data(), reinterpret_cast<void*>(text_.size())};  // NOLINT
};

// Opens `file` instead of the machine's driver. Call it before any other function here.
void use_driver(const std::string& file);

// Selects AMD's driver. Call it before the first kernel is loaded.
void use_hip();

}  // namespace smelt::devices
