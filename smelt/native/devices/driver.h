// The driver of NVIDIA's GPUs, without its headers: the library that the machine has is opened when it is needed first.
// Where AMD's is asked for, hip.cpp has the same functions of it.
//
// What always holds: a process that launches nothing on a GPU loads nothing of it. Names are those of the driver's C
// interface (docs.nvidia.com/cuda/cuda-driver-api), whose versions with a suffix are the ones that headers choose.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace smelt::devices {

using Status = int;  // 0: done
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Linker = void*;

struct Driver {
    Status (*version)(int*);
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
    Status (*capture_status)(Stream, int* status);                               // 0: not captured
    Status (*new_linker)(unsigned options, int* names, void** values, Linker*);  // null, as those below: none
    Status (*add_to_linker)(Linker, int kind, void* data, size_t bytes, const char* name, unsigned options,
                            int* names, void** values);
    Status (*link)(Linker, void** image, size_t* bytes);  // the image is the linker's
    Status (*delete_linker)(Linker);
    Status (*error_name)(Status, const char**);
    Status (*error_text)(Status, const char**);
};

// Throws where there is none.
const Driver& driver();

constexpr Status kNoContext = 201;  // CUDA_ERROR_INVALID_CONTEXT: the thread has none

// Throws what the driver says of `status`, an error; `doing` says what was tried.
[[noreturn]] void fail(Status status, std::string_view doing);

inline void check(Status status, std::string_view doing) {
    if (status != 0) fail(status, doing);
}

// Sees to it that this thread has a context: the one of `device`, which torch uses too.
void enter(int device);

// The context of `device` is this thread's for as long as this lives.
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

// Whether work on the stream is being captured into a graph.
bool is_captured(Stream stream);

// Where the driver writes what is wrong with a text that it compiles: options of CUjit_option, which are to live as long as
// what was given them.
class CompilerLog {
  public:
    CompilerLog() = default;
    CompilerLog(const CompilerLog&) = delete;
    CompilerLog& operator=(const CompilerLog&) = delete;

    unsigned size() const { return names_.size(); }
    int* names() { return names_.data(); }
    void** values() { return values_.data(); }
    std::string in_brackets() const;  // "" where there is nothing

  private:
    std::array<char, 4096> text_{};
    std::array<int, 2> names_{5, 6};  // the errors, and how many bytes they may be
    std::array<void*, 2> values_{text_.data(), reinterpret_cast<void*>(text_.size())};  // NOLINT
};

// `file` is opened instead of the machine's driver. Before anything else here.
void use_driver(const std::string& file);

// It is AMD's. Before the first kernel is loaded.
void use_hip();

}  // namespace smelt::devices
