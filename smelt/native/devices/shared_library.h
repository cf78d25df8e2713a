// A driver's shared library, opened on first use.
#pragma once
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <string>
#include <utility>

namespace smelt::devices {

class Library {
  public:
    // Throws if the library cannot be opened. It is never closed.
    Library(std::string file, int mode) : file_(std::move(file)), handle_(dlopen(file_.c_str(), mode)) {
        TORCH_CHECK(handle_, "smelt: no driver of a GPU: ", dlerror());
    }

    // Throws if there is no function of that name.
    template <class F>
    void find(const char* name, F& function) const {
        function = reinterpret_cast<F>(dlsym(handle_, name));  // NOLINT
        TORCH_CHECK(function, "smelt: the driver in ", file_, " has no function ", name);
    }

  private:
    std::string file_;
    void* handle_;
};

}  // namespace smelt::devices
