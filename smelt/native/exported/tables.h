// The tables of an exported program (smelt/exported/program_file.py declares them), read from values and checked.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "plan/elf_linker.h"
#include "shapes/size_program.h"
#include "values/value.h"

namespace smelt::exported {

constexpr uint32_t kFormatVersion = 4, kOldestFormat = 3;  // that are read

// A path in the arguments of a call, as an index into Method::places.
using Path = size_t;

// A step from the object at `base` into it. The first step of a path has itself as its base, and begins in "args", "kwargs" or
// "state".
struct Place {
    Path base;
    std::string kind;
    values::Value key;
};

// A tree of operations on the numbers at `paths`.
struct NumberOf {
    values::Value tree;
    std::vector<Path> paths;
};

struct SizeRule {
    std::string symbol;
    std::variant<Path, NumberOf> of;
    std::string text, name;
    int64_t dim, divisor;
    std::optional<int64_t> over;
    bool is_remainder;
    int64_t low, high;
};

struct TensorRule {
    Path path;
    std::string text;
    c10::ScalarType dtype;
    c10::Device device;
    c10::Layout layout;
    std::vector<std::optional<size_t>> shape, stride;  // slots of Method::program
    int64_t least;
    std::vector<std::string> notes;  // on the expected sizes, for messages
};

struct Rule {
    std::string kind;
    std::vector<Path> paths;
    values::Value value;
    std::string text, line;
};

struct Parameter {
    std::string name;
    int64_t kind;  // Python's: 0 positional only, 1 either, 2 *args, 3 keyword only, 4 **kwargs
    bool has_default, is_stored;
    values::Value default_value;
};

struct ResultNode {
    std::string kind;
    std::variant<size_t, NumberOf, values::Value> value = size_t{0};
    bool is_path = false;  // of an input: `value` is a path, not the number of an input of the graph
    std::vector<size_t> parts;
};

using Input = std::variant<std::string, Path, NumberOf>;  // of the graph; a text names a tensor of the state

// Sizes and strides as slots of Method::program.
struct SizedLayout {
    std::vector<size_t> shape, stride;
    c10::ScalarType dtype;
};

// A value that a backward reads (autograd/node_spec.h).
struct SavedValue {
    std::string kind;
    size_t index;
    std::vector<size_t> readers;
    std::optional<SizedLayout> layout;
    bool is_recomputed_from;
    std::string data;
};

// The backward for the tangents `defined`.
struct BackwardData {
    int64_t graph;
    std::vector<size_t> defined;
    size_t reach;
};

struct Gradients {
    size_t n_outputs;
    std::vector<std::pair<size_t, SizedLayout>> tangents;
    std::vector<size_t> inputs;
    size_t leaves;
    std::vector<size_t> through;
    struct Group {
        std::vector<size_t> tangents;
        bool whole, ends_at_last;
    };
    std::vector<Group> groups;
    std::vector<std::vector<size_t>> contributors, direct, conflicts;
    std::vector<SavedValue> saved;
    std::vector<BackwardData> backwards;
};

// The fields of a named tuple or dataclass, in order.
using Fields = std::vector<std::string>;

struct Method {
    std::string name;
    int64_t graph;
    std::vector<Parameter> signature;
    size_t n_args;
    std::vector<std::string> keywords;
    std::vector<std::variant<TensorRule, Rule>> rules;  // in the order of their checks
    std::vector<SizeRule> sizes;
    std::vector<Input> inputs;
    std::vector<std::pair<std::string, size_t>> stores;
    std::vector<ResultNode> result;
    std::vector<size_t> differentiated;  // inputs that may require grad
    std::optional<Gradients> gradients;
    std::vector<Place> places;
    std::map<Path, Fields> classes;            // places of named tuples and dataclasses
    std::vector<shapes::Instruction> program;  // of sizes; the first slots are the symbols
};

struct Target {
    int64_t graph;
    std::string triple;
    std::vector<std::string> needs;  // features of the processor, as Linux names them
    std::string torch, code;
    std::vector<std::string> plans;
    std::vector<std::vector<std::string>> constants;  // of each plan
};

struct Tables {
    std::vector<Method> methods;
    std::vector<Target> targets;
};

struct Weight {
    std::string name;
    size_t storage;
    c10::ScalarType dtype;
    std::vector<int64_t> shape, stride;
    int64_t offset;
    bool requires_grad;
};

struct StateTable {
    std::vector<Weight> weights;
    struct Span {
        size_t offset = 0, bytes = 0;
        std::string external;  // in another file: the name there
        c10::Device device = c10::kCPU;
    };
    std::vector<Span> spans;  // of each storage
};

// All throw FormatError for data that are none.
Tables read_tables(std::string_view section);
StateTable read_state(std::string_view section);

// A library of a program: object files for the processor, or the images of a GPU's kernel, best first.
struct Library {
    plan::Library on_host;
    std::vector<std::string> images;
};
std::vector<Library> read_libraries(const std::string& section);  // unpacked

// A function of a library. Of a GPU's kernel also the threads and the bytes of shared memory of a block, and the maximum of
// launches in a batched launch.
struct KernelData {
    size_t library;
    std::string name;
    unsigned threads = 0, shared = 0, parts = 0;
};

// Of a plan: its kernels, its spec, and its sizes, or none for fixed sizes.
struct PlanData {
    std::vector<KernelData> kernels;
    values::Value spec, sizes;
};
PlanData read_plan(const std::string& section);  // unpacked

}  // namespace smelt::exported
