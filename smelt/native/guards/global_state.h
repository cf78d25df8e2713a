// Everything outside the arguments that changes what torch operators do, as numbers: one table, one field per
// line.
#pragma once
#include <Python.h>

#include <array>
#include <cstdint>
#include <vector>

namespace smelt {

constexpr int kGlobalStateFields = 39;
using GlobalState = std::array<int64_t, kGlobalStateFields>;

PyObject* global_state_names();  // tuple of str, in the order of the fields
PyObject* global_state_tuple();  // the state now: tuple of int

// Compares the state with what it was.
class GlobalStateMatcher {
  public:
    bool parse(PyObject* tuple);  // what global_state_tuple() returned; false with a Python error
    bool matches();

  private:
    GlobalState expected_;
    std::vector<char>
        agreed_;  // the bytes of torch's settings object when its fields were last compared and agreed
};

}  // namespace smelt
