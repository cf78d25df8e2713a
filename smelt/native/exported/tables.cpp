#include "exported/tables.h"

#include <algorithm>
#include <map>

#include "values/decode.h"

namespace smelt::exported {
namespace {

using values::FormatError;
using values::Items;
using values::Kind;
using values::Node;
using values::Value;

// The records of program_file.py: their numbers, and the numbers of their fields. Graphs (3 to 5, 13) are not read here.
enum Record : uint64_t {
    kParameter = 1,
    kMethod = 2,
    kTarget = 6,
    kWeight = 7,
    kTables = 8,
    kTensorRule = 9,
    kRule = 10,
    kSizeRule = 11,
    kResultNode = 12,
    kNumberOf = 14,
    kLayout = 15,
    kSavedValue = 16,
    kBackward = 17,
    kGradients = 18
};
constexpr size_t kMostOutputs = 1 << 24, kReaches = 3;

const std::map<uint64_t, size_t>& fields() {
    static const std::map<uint64_t, size_t> made{
        {kParameter, 5},   {kMethod, 13},    {kTarget, 7},    {kWeight, 7},     {kTables, 3},
        {kTensorRule, 10}, {kRule, 5},       {kSizeRule, 10}, {kResultNode, 3}, {kNumberOf, 2},
        {kLayout, 3},      {kSavedValue, 6}, {kBackward, 4},  {kGradients, 11}};
    return made;
}

size_t fields_of(uint64_t kind) {
    const auto found = fields().find(kind);
    if (found == fields().end()) throw FormatError("an unknown kind of record, " + std::to_string(kind));
    return found->second;
}

const Items& record(const Value& value, uint64_t kind) {
    return values::record(value, kind, fields_of(kind));
}

// Sizes of rules as an integer program (shapes/size_program.h) over the symbols of the method.
class SizeProgram {
  public:
    void add_symbol(const std::string& name) {
        if (!symbols_.emplace(name, symbols_.size()).second) throw FormatError("a symbol is defined twice");
    }

    size_t slot(const Value& size) {
        if (const auto* number = size.get<int64_t>()) return add(shapes::Operation::constant, *number, 0);
        const auto& node = values::as<Node>(size, "a size");
        switch (node.kind) {
            case Kind::symbol:
                return symbol(values::text(node.items.at(0)));
            case Kind::floor_divide:
            case Kind::modulo: {
                const auto a = static_cast<int64_t>(slot(node.items.at(0)));
                const auto b = static_cast<int64_t>(slot(node.items.at(1)));
                const bool divides = node.kind == Kind::floor_divide;
                return add(divides ? shapes::Operation::floor_divide : shapes::Operation::modulo, a, b);
            }
            case Kind::sum:
                return sum(node.items);
            default:
                throw FormatError("a size is expected");
        }
    }

    std::vector<shapes::Instruction> instructions;

  private:
    size_t symbol(const std::string& name) const {
        const auto found = symbols_.find(name);
        if (found == symbols_.end()) throw FormatError("a size with an unknown symbol");
        return found->second;
    }

    size_t sum(const Items& items) {
        auto total = static_cast<int64_t>(slot(items.at(0)));
        for (size_t i = 1; i < items.size(); ++i) {
            const Items& factors = values::tuple(items[i]);
            auto term = static_cast<int64_t>(slot(factors.at(0)));
            for (size_t k = 1; k < factors.size(); ++k)
                term = static_cast<int64_t>(
                    add(shapes::Operation::multiply, term, static_cast<int64_t>(slot(factors[k]))));
            total = static_cast<int64_t>(add(shapes::Operation::add, total, term));
        }
        return static_cast<size_t>(total);
    }

    size_t add(shapes::Operation operation, int64_t a, int64_t b) {
        instructions.push_back({operation, a, b});
        return symbols_.size() + instructions.size() - 1;
    }

    std::map<std::string, size_t> symbols_;
};

class MethodReader {
  public:
    Method read(const Value& value) {
        const Items& f = record(value, kMethod);
        m_.name = values::text(f[0]);
        m_.graph = values::integer(f[1]);
        m_.signature = values::each(f[2], parameter);
        m_.n_args = values::index(f[3], 1 << 20);
        m_.keywords = values::texts(f[4]);
        m_.sizes = values::each(f[6], [this](const Value& v) { return size_rule(v); });
        for (const SizeRule& rule : m_.sizes) program_.add_symbol(rule.symbol);
        for (const Value& v : values::tuple(f[5])) rule(v);
        for (const Value& v : values::tuple(f[8])) m_.inputs.push_back(input(v));
        for (const Value& v : values::tuple(f[9])) {
            const Items& store = values::tuple(v, 2);
            m_.stores.emplace_back(values::text(store[0]), values::index(store[1], kMostOutputs));
        }
        for (const Value& v : values::tuple(f[10])) m_.result.push_back(result_node(v));
        if (m_.result.empty()) throw FormatError("a method without a result");
        m_.differentiated = indices(f[11], m_.inputs.size());
        if (!f[12].is_none()) m_.gradients = gradients(f[12]);
        m_.program = std::move(program_.instructions);
        return std::move(m_);
    }

  private:
    static Parameter parameter(const Value& value) {
        const Items& f = record(value, kParameter);
        return {values::text(f[0]), static_cast<int64_t>(values::index(f[1], 5)), values::boolean(f[2]),
                values::boolean(f[3]), f[4]};
    }

    Path path(const Value& value) {
        Path at = 0;
        bool is_first = true;
        for (const Value& item : values::tuple(value)) {
            const Items& step = values::tuple(item, 2);
            at = place(is_first ? SIZE_MAX : at, values::text(step[0]), step[1]);
            is_first = false;
        }
        if (is_first) throw FormatError("an empty path");
        return at;
    }

    // The index of a place, which is added if it is new. `base`: SIZE_MAX for a root.
    Path place(Path base, const std::string& kind, const Value& key) {
        if (base == SIZE_MAX && kind != "args" && kind != "kwargs" && kind != "state")
            throw FormatError("a path that begins nowhere");
        for (size_t i = 0; i < m_.places.size(); ++i) {
            const Place& p = m_.places[i];
            if (p.base == (base == SIZE_MAX ? i : base) && p.kind == kind && same_key(p.key, key)) return i;
        }
        const size_t made = m_.places.size();
        m_.places.push_back({base == SIZE_MAX ? made : base, kind, key});
        return made;
    }

    static bool same_key(const Value& a, const Value& b) {
        if (a.index() != b.index()) return false;
        if (const auto* x = a.get<std::string>()) return *x == *b.get<std::string>();
        if (const auto* x = a.get<int64_t>()) return *x == *b.get<int64_t>();
        return a.is_none();
    }

    std::vector<Path> paths(const Value& value) {
        return values::each(value, [this](const Value& v) { return path(v); });
    }

    NumberOf number_of(const Value& value) {
        const Items& f = record(value, kNumberOf);
        NumberOf made{f[0], paths(f[1])};
        check_tree(made.tree, made.paths.size());
        return made;
    }

    // Leaves are within the paths.
    static void check_tree(const Value& tree, size_t leaves) {
        const Node* node = tree.get<Node>();
        if (!node) return;
        const Items& items = values::tuple(tree);
        if (items.empty()) throw FormatError("an operation without a name");
        if (values::text(items[0]) == "leaf") {
            values::index(items.size() == 2 ? items[1] : Value(), leaves);
            return;
        }
        for (size_t i = 1; i < items.size(); ++i) check_tree(items[i], leaves);
    }

    static bool is_number_of(const Value& value) {
        const Node* node = value.get<Node>();
        return node && node->kind == Kind::record;
    }

    SizeRule size_rule(const Value& value) {
        const Items& f = record(value, kSizeRule);
        const auto& symbol = values::as<Node>(f[0], "a symbol");
        if (symbol.kind != Kind::symbol) throw FormatError("a symbol is expected");
        SizeRule rule{values::text(symbol.items.at(0)),
                      Path{0},
                      values::text(f[2]),
                      values::text(f[3]),
                      values::integer(f[4]),
                      values::integer(f[5]),
                      {},
                      values::boolean(f[7]),
                      values::integer(f[8]),
                      values::integer(f[9])};
        if (is_number_of(f[1]))
            rule.of = number_of(f[1]);
        else
            rule.of = path(f[1]);
        if (!f[6].is_none()) rule.over = values::integer(f[6]);
        if (rule.divisor < 1) throw FormatError("a divisor is at least 1");
        return rule;
    }

    void rule(const Value& value) {
        const auto& node = values::as<Node>(value, "a rule");
        if (node.kind == Kind::record && node.number == kTensorRule)
            m_.rules.emplace_back(tensor_rule(value));
        else
            add_rule(any_rule(value));
    }

    void add_rule(Rule rule) {
        if (rule.kind == "fields")  // what arguments may be instead of an instance
            m_.classes[rule.paths.at(0)] = values::texts(rule.value);
        else
            m_.rules.emplace_back(std::move(rule));
    }

    std::vector<std::optional<size_t>> slots(const Value& value) {
        std::vector<std::optional<size_t>> made;
        for (const Value& size : values::tuple(value)) {
            if (size.is_none())
                made.emplace_back();
            else
                made.emplace_back(program_.slot(size));
        }
        return made;
    }

    TensorRule tensor_rule(const Value& value) {
        const Items& f = record(value, kTensorRule);
        TensorRule rule{path(f[0]),
                        values::text(f[1]),
                        values::as<c10::ScalarType>(f[2], "a dtype"),
                        values::as<c10::Device>(f[3], "a device"),
                        values::as<c10::Layout>(f[4], "a layout"),
                        slots(f[5]),
                        slots(f[6]),
                        values::integer(f[7]),
                        values::texts(f[9])};
        values::boolean(f[8]);  // whether it is a Parameter, of which C++ has none
        if (rule.shape.size() != rule.stride.size() || rule.shape.size() != rule.notes.size())
            throw FormatError("a tensor with as many strides as sizes is expected");
        return rule;
    }

    Rule any_rule(const Value& value) {
        const Items& f = record(value, kRule);
        Rule rule{values::text(f[0]), paths(f[1]), f[2], values::text(f[3]), values::text(f[4])};
        if (rule.kind == "expression")
            check_tree(values::tuple(rule.value, 2)[0], rule.paths.size());
        else if (rule.kind == "no_overlap")
            for (const Value& flags : values::tuple(rule.value, rule.paths.size())) {
                values::boolean(values::tuple(flags, 2)[0]);
                values::boolean(values::tuple(flags, 2)[1]);
            }
        else if (rule.kind == "alias" && rule.paths.size() != 2)
            throw FormatError("an alias of two objects is expected");
        else if (rule.paths.empty())
            throw FormatError("a rule without a path");
        return rule;
    }

    Input input(const Value& value) {
        if (const auto* name = value.get<std::string>()) return *name;
        if (is_number_of(value)) return number_of(value);
        return Input(std::in_place_index<1>, path(value));
    }

    ResultNode result_node(const Value& value) {
        const Items& f = record(value, kResultNode);
        const size_t known = m_.result.size();
        ResultNode node{values::text(f[0]), size_t{0}, false,
                        values::each(f[2], [&](const Value& v) { return values::index(v, known); })};
        if (node.kind == "tensor") {
            node.value = values::index(f[1], kMostOutputs);
        } else if (node.kind == "input") {  // the number of an input, or a path
            node.is_path = !f[1].get<int64_t>();
            node.value = node.is_path ? path(f[1]) : values::index(f[1], m_.inputs.size());
        } else if (node.kind == "number") {
            node.value = number_of(f[1]);
        } else {
            check_container(node.kind, f[1], node.parts.size());
            node.value = f[1];
        }
        return node;
    }

    static void check_container(const std::string& kind, const Value& value, size_t parts) {
        if (kind == "dict") {
            values::tuple(value, parts);
        } else if (kind == "fields") {
            const Items& f = values::tuple(value, 3);
            values::text(f[0]);
            values::text(f[1]);
            if (values::texts(f[2]).size() != parts) throw FormatError("an object with other fields");
        } else if (kind != "tuple" && kind != "size" && kind != "list" && kind != "constant") {
            throw FormatError("an unknown kind of result, " + kind);
        }
    }

    static std::vector<size_t> indices(const Value& value, size_t end) {
        return values::each(value, [end](const Value& v) { return values::index(v, end); });
    }

    // Lists of tangents, `count` of them.
    static std::vector<std::vector<size_t>> lists(const Value& value, size_t count, size_t tangents) {
        auto made = values::each(value, [=](const Value& v) { return indices(v, tangents); });
        if (made.size() != count) throw FormatError("a list for each gradient or tangent is expected");
        return made;
    }

    SizedLayout layout(const Value& value) {
        const Items& f = record(value, kLayout);
        const auto slot = [this](const Value& v) { return program_.slot(v); };
        SizedLayout made{values::each(f[0], slot), values::each(f[1], slot),
                         values::as<c10::ScalarType>(f[2], "a dtype")};
        if (made.shape.size() != made.stride.size())
            throw FormatError("a tensor with as many strides as sizes is expected");
        return made;
    }

    SavedValue saved_value(const Value& value, const Gradients& g) {
        const Items& f = record(value, kSavedValue);
        const std::string& kind = values::text(f[0]);
        const bool is_input = kind == "primal" || kind == "alias";
        if (!is_input && kind != "output" && kind != "temporary")
            throw FormatError("an unknown kind of saved value, " + kind);
        const size_t end = is_input ? m_.inputs.size() : kind == "output" ? g.n_outputs : kMostOutputs;
        SavedValue made{kind, values::index(f[1], end), indices(f[2], g.tangents.size()),
                        {},   values::boolean(f[4]),    values::text(f[5])};
        if (!f[3].is_none()) made.layout = layout(f[3]);
        if (made.data != "old" && made.data != "new" && made.data != "mixed")
            throw FormatError("an unknown kind of data, " + made.data);
        return made;
    }

    Gradients gradients(const Value& value) {
        const Items& f = record(value, kGradients);
        Gradients g;
        g.n_outputs = values::index(f[0], kMostOutputs);
        for (const Value& v : values::tuple(f[1])) {
            const Items& tangent = values::tuple(v, 2);
            g.tangents.emplace_back(values::index(tangent[0], g.n_outputs), layout(tangent[1]));
        }
        const size_t n = g.tangents.size();
        g.inputs = indices(f[2], m_.inputs.size());
        g.leaves = values::index(f[3], g.inputs.size() + 1);
        g.through = indices(f[4], g.n_outputs);
        const size_t n_gradients = g.inputs.size() + g.through.size();
        std::vector<bool> is_in_group(n);
        for (const Value& v : values::tuple(f[5])) {
            const Items& group = values::tuple(v, 3);
            g.groups.push_back({indices(group[0], n), values::boolean(group[1]), values::boolean(group[2])});
            if (g.groups.back().tangents.empty()) throw FormatError("a group without tangents");
            for (const size_t k : g.groups.back().tangents) {
                if (is_in_group[k]) throw FormatError("a tangent in two groups");
                is_in_group[k] = true;
            }
        }
        for (size_t i = 0; i + 1 < g.groups.size(); ++i)
            if (g.groups[i].tangents.size() != 1)
                throw FormatError("a group of several tangents before another");
        g.contributors = lists(f[6], n_gradients, n);
        g.direct = lists(f[7], n_gradients, n);
        g.conflicts = lists(f[8], n, n);
        g.saved = values::each(f[9], [&](const Value& v) { return saved_value(v, g); });
        for (const Value& v : values::tuple(f[10])) {
            const Items& b = record(v, kBackward);
            g.backwards.push_back({values::integer(b[0]), indices(b[1], n), values::index(b[2], kReaches)});
            indices(b[3], g.saved.size() + n);
        }
        for (const size_t i : g.inputs)
            if (std::find(m_.differentiated.begin(), m_.differentiated.end(), i) == m_.differentiated.end())
                throw FormatError("the gradient of an input that must not require grad");
        return g;
    }

    Method m_;
    SizeProgram program_;
};

Target target(const Value& value) {
    const Items& f = record(value, kTarget);
    Target made{values::integer(f[0]),
                values::text(f[1]),
                values::texts(f[2]),
                values::text(f[3]),
                values::text(f[4]),
                values::texts(f[5]),
                values::each(f[6], values::texts)};
    if (made.plans.empty() || made.plans.size() != made.constants.size())
        throw FormatError("plans and their constants do not match");
    return made;
}

}  // namespace

Tables read_tables(std::string_view section) {
    const Value value = values::decode(section, fields_of);
    const Items& f = record(value, kTables);
    return {values::each(f[1], [](const Value& v) { return MethodReader().read(v); }),
            values::each(f[2], target)};
}

namespace {

StateTable state_table(const Value& value) {
    const Items& parts = values::tuple(value, 2);
    StateTable table;
    for (const Value& item : values::tuple(parts[0])) {
        const Items& f = record(item, kWeight);
        table.weights.push_back({values::text(f[0]), values::index(f[1], SIZE_MAX),
                                 values::as<c10::ScalarType>(f[2], "a dtype"), values::integers(f[3]),
                                 values::integers(f[4]), values::integer(f[5]), values::boolean(f[6])});
    }
    for (const Value& item : values::tuple(parts[1])) {
        const Items& parts_of = values::tuple(item);
        StateTable::Span span;
        const auto* name = parts_of.empty() ? nullptr : parts_of[0].get<std::string>();
        const size_t placed = name ? 1 : 2;  // the parts that say where the bytes are
        if (parts_of.size() != placed && parts_of.size() != placed + 1)
            throw FormatError("a name, or offset and bytes, and a device are expected");
        if (name) {
            if (name->empty()) throw FormatError("a name is expected");
            span.external = *name;
        } else {
            span.offset = values::index(parts_of[0], SIZE_MAX);
            span.bytes = values::index(parts_of[1], SIZE_MAX);
        }
        if (parts_of.size() > placed) span.device = values::as<c10::Device>(parts_of[placed], "a device");
        table.spans.push_back(std::move(span));
    }
    return table;
}

}  // namespace

StateTable read_state(std::string_view section) {
    try {
        return state_table(values::decode(section, fields_of));
    } catch (const FormatError& error) {
        throw FormatError(std::string("a weight that cannot be: ") + error.what());
    }
}

std::vector<Library> read_libraries(const std::string& section) {
    return values::each(values::decode(section, fields_of), [](const Value& value) {
        const Items& f = values::tuple(value, 3);
        std::vector<std::string> objects = values::each(f[0], values::bytes);
        if (f[2].is_none()) {
            if (objects.empty()) throw FormatError("a kernel without code");
            return Library{{}, std::move(objects)};
        }
        plan::Library made{std::move(objects), values::texts(f[1]), {}};
        for (const Value& item : values::tuple(f[2])) {
            const Items& import = values::tuple(item, 2);
            made.imports.emplace_back(values::text(import[0]), values::index(import[1], SIZE_MAX));
        }
        return Library{std::move(made), {}};
    });
}

PlanData read_plan(const std::string& section) {
    const Value value = values::decode(section, fields_of);
    const Items& f = values::tuple(value, 3);
    PlanData made{{}, f[1], f[2]};
    for (const Value& item : values::tuple(f[0])) {
        const Items& kernel = values::tuple(item);
        if (kernel.size() != 2 && kernel.size() != 5) throw FormatError("a kernel with other fields");
        KernelData k{values::index(kernel[0], SIZE_MAX), values::text(kernel[1])};
        if (kernel.size() == 5) {
            constexpr size_t kMost = size_t{1} << 24;
            k.threads = static_cast<unsigned>(values::index(kernel[2], kMost));
            k.shared = static_cast<unsigned>(values::index(kernel[3], kMost));
            k.parts = static_cast<unsigned>(values::index(kernel[4], kMost));
        }
        made.kernels.push_back(std::move(k));
    }
    return made;
}

}  // namespace smelt::exported
