// Arithmetic of guards on ints of 64 bits, without objects: sizes of tensors, and ints that nodes read.
#pragma once
#include "guards/check.h"

#include <vector>

namespace smelt::guards {

// A postfix program. What it gives is what Python's ints would give, or it says that it does not know: where 64 bits are
// too few, or a node's object is another number than an int.
class IntProgram {
  public:
    enum class Answer { No, Yes, Unknown };

    void push_node(int node) { push({Op::Node, node, 0}); }
    void push_size(int word) { push({Op::Size, word, 0}); }
    void push_constant(PyObject* number);
    void apply(const char* name, int operands);

    // After the last step. Whether it can be run: `expected` is True, False, or the type of the value.
    bool finish(PyObject* expected);

    // Whether the value is as expected. It is not where Python raises.
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
        int place;       // a node, or a word of the pass
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
    bool is_known_ = true;     // all steps are among the above
    bool compares_ = false;    // the last step compares; none may follow
    bool is_negated_ = false;  // what it says is the opposite
    bool wanted_ = true;       // what the step must find
};

}  // namespace smelt::guards
