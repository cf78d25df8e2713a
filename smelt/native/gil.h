// Releases the GIL for a scope that runs no Python.
#pragma once
#include <Python.h>

namespace smelt {

class ReleaseGil {
  public:
    explicit ReleaseGil(bool release = true) : state_(release ? PyEval_SaveThread() : nullptr) {}
    ~ReleaseGil() {
        if (state_) PyEval_RestoreThread(state_);
    }
    ReleaseGil(const ReleaseGil&) = delete;
    ReleaseGil& operator=(const ReleaseGil&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace smelt
