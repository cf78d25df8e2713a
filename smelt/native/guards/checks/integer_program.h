// The evaluator of guards' size expressions: arithmetic on 64-bit ints without Python objects.
#pragma once
#include "guards/guard_checks.h"

#include <vector>

namespace smelt::guards {

// A postfix program over sizes of tensors and ints that nodes read. Its result is that of Python's ints, or Unknown:
// where 64 bits overflow, or a node's object is not an int.
class IntegerProgram {
  public:
    enum class Answer { No, Yes, Unknown };

    void push_node(int node) { push({Op::Node, node, 0}); }
    void push_size(int word) { push({Op::Size, word, 0}); }
    void push_constant(PyObject* number);
    void apply(const char* name, int operands);

    // Call it after the last step. Returns whether the program can run: `expected` is True, False, or the type of the
    // value.
    bool finish(PyObject* expected);

    // Whether the value is as expected; No where Python would raise.
    Answer run(const Pass& pass) const;

  private:
    enum class Op : uint8_t {
        Node,
        Size,
        Constant,
        Add,
        Sub,
        Mul,
        FloorDiv,
        Mod,
        Min,
        Max,
        Neg,
        Abs,
        Same,
        Lt,
        Le,
        Eq
    };
    struct Step {
        Op op;
        int index;       // a node, or a word of the pass
        int64_t number;  // a constant
    };
    struct Row {
        const char* name;
        int operands;
        Op op;
        bool negated = false;
    };
    static const Row kRows[];
    static constexpr int kDepth = 16;

    static bool is_comparison(Op op) { return op >= Op::Lt; }
    static Answer read(const Step& step, const Pass& pass, int64_t* out);
    static Answer compute(Op op, int64_t a, int64_t b, int64_t* out);
    Answer compare(Op op, int64_t a, int64_t b) const;
    void push(Step step);

    std::vector<Step> steps_;
    int depth_ = 0;
    bool is_known_ = true;     // all steps are among the supported ones
    bool compares_ = false;    // the last step compares; no other may follow
    bool is_negated_ = false;  // the comparison's result is negated
    bool wanted_ = true;       // the expected result of the comparison
};

}  // namespace smelt::guards
