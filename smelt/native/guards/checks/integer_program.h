// Guards on 64-bit ints, without Python objects: expressions over sizes of tensors, and over ints that nodes read.
#pragma once
#include "guards/guard_checks.h"
#include "shapes/size_program.h"

#include <vector>

namespace smelt::guards {

// An expression, built from postfix steps, with the expected result. The answer is that of Python's ints, or Unknown: where
// 64 bits overflow, or a node's object is not an int.
class IntegerProgram {
  public:
    enum class Answer { No, Yes, Unknown };

    void push_node(int node) { push_input({node, -1}); }
    void push_size(int word) { push_input({-1, word}); }
    void push_constant(PyObject* number);
    void apply(const char* name, int operands);

    // Call it after the last step. Returns whether the program can run: `expected` is True, False, or the type of the value.
    bool finish(PyObject* expected);

    // Whether the value is as expected; No where Python would raise.
    Answer run(const Pass& pass) const;

  private:
    struct Input {
        int node, word;  // one of them; the other is -1
    };

    void push_input(Input input);
    void push_result(shapes::Instruction instruction);

    std::vector<Input> inputs_;
    std::vector<shapes::Instruction> instructions_;
    // The values on the postfix stack: the index of an instruction, or -1 - index of an input until `finish`.
    std::vector<int64_t> stack_;
    bool is_known_ = true;     // all steps are among the supported ones
    bool compares_ = false;    // the last step compares; no other may follow
    bool is_negated_ = false;  // the comparison's result is negated
    bool wanted_ = true;       // the expected result of the comparison
};

}  // namespace smelt::guards
