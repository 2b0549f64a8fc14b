#include "runtime/trainer/data/jinja/render.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/trainer/data/jinja/lexer.h"
#include "runtime/trainer/data/jinja/operations.h"

namespace shardrun::data::jinja {
namespace {

using Kind = Expression::Kind;

class Renderer {
 public:
  explicit Renderer(const Dict& variables) : scopes_(1) {
    for (const auto& [name, value] : variables) scopes_.front().values[name] = value;
  }

  Result<Text> run(const Template& parsed) {
    RETURN_IF_ERROR(body(parsed.statements));
    return std::move(output_);
  }

 private:
  struct Scope {
    std::map<std::string, Value, std::less<>> values;
    std::map<std::string, std::map<std::string, Value>, std::less<>> spaces;  // those of namespace()
  };
  enum class Flow { kOn, kBreak, kContinue };

  std::map<std::string, Value>* space_of(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (scope->values.contains(name)) return nullptr;
      if (const auto found = scope->spaces.find(name); found != scope->spaces.end()) return &found->second;
    }
    return nullptr;
  }

  static const Expression* called(const Expression& expression, std::string_view name) {
    const bool is = expression.kind == Kind::kCall && expression.parts.front().kind == Kind::kName &&
                    expression.parts.front().names.front() == name;
    return is ? &expression : nullptr;
  }

  // ---- statements ----

  Result<Flow> body(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      ASSIGN_OR_RETURN(const Flow flow, execute(statement));
      if (flow != Flow::kOn) return flow;
    }
    return Flow::kOn;
  }

  Result<Flow> execute(const Statement& statement) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        RETURN_IF_ERROR(write(statement.line, Text::own(statement.text)));
        return Flow::kOn;
      case Statement::Kind::kPrint: {
        ASSIGN_OR_RETURN(const Value value, evaluate(statement.parts.front()));
        ASSIGN_OR_RETURN(const Text text, text_of(statement.line, value));
        RETURN_IF_ERROR(write(statement.line, text));
        return Flow::kOn;
      }
      case Statement::Kind::kSet:
        RETURN_IF_ERROR(set(statement));
        return Flow::kOn;
      case Statement::Kind::kIf:
        for (size_t i = 0; i < statement.parts.size(); ++i) {
          ASSIGN_OR_RETURN(const Value condition, evaluate(statement.parts[i]));
          if (is_true(condition)) return body(statement.bodies[i]);
        }
        if (statement.bodies.size() > statement.parts.size()) return body(statement.bodies.back());
        return Flow::kOn;
      case Statement::Kind::kFor:
        return loop(statement);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        break;
    }
    return Flow::kContinue;
  }

  Result<void> write(int line, const Text& text) {
    RETURN_IF_ERROR(budget_.take(line, 1, text.size()));
    output_.append(text);
    return {};
  }

  Result<void> set(const Statement& statement) {
    const std::string& name = statement.names.front();
    if (statement.names.size() == 2) {
      std::map<std::string, Value>* const space = space_of(name);
      if (space == nullptr)
        return template_error(statement.line, fmt::format("{} is no namespace", name),
                              fmt::format("write {{% set {} = namespace() %}} before it", name));
      ASSIGN_OR_RETURN(Value value, value_to_set(statement));
      (*space)[statement.names[1]] = std::move(value);
      return {};
    }
    if (!statement.parts.empty()) {
      if (const Expression* call = called(statement.parts.front(), "namespace"))
        return make_space(name, *call);
    }
    ASSIGN_OR_RETURN(Value value, value_to_set(statement));
    scopes_.back().spaces.erase(name);
    scopes_.back().values[name] = std::move(value);
    return {};
  }

  Result<Value> value_to_set(const Statement& statement) {
    if (!statement.parts.empty()) {
      // What a loop puts around itself again and again would nest without end.
      auto value = evaluate(statement.parts.front());
      if (value && height_of(*value) > kDeepest)
        return template_error(statement.line, "a list nests too deep", "mend the template");
      return value;
    }
    Text outside = std::exchange(output_, Text());
    const auto flow = body(statement.bodies.front());
    Text inside = std::exchange(output_, std::move(outside));
    RETURN_IF_ERROR(flow);
    return Value{std::move(inside)};
  }

  Result<void> make_space(const std::string& name, const Expression& call) {
    std::map<std::string, Value> space;
    for (size_t i = 0; i < call.names.size(); ++i) {
      if (call.names[i].empty())
        return template_error(call.line, "namespace() has an argument without a name", "write name=value");
      ASSIGN_OR_RETURN(space[call.names[i]], evaluate(call.parts[i + 1]));
    }
    scopes_.back().values.erase(name);
    scopes_.back().spaces[name] = std::move(space);
    return {};
  }

  // ---- loops ----

  Result<Flow> loop(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value over, evaluate(statement.parts.front()));
    ASSIGN_OR_RETURN(List elements, elements_of(statement.line, over, budget_));
    if (statement.parts.size() > 1) {
      ASSIGN_OR_RETURN(elements, wanted(statement, std::move(elements)));
    }
    Flow flow = Flow::kOn;
    for (size_t i = 0; i < elements.size() && flow != Flow::kBreak; ++i) {
      RETURN_IF_ERROR(budget_.take(statement.line, 1, 0));
      scopes_.emplace_back();
      auto entered = assign(statement, elements[i]);
      if (entered) {
        scopes_.back().values["loop"] = place_of(elements, i);
        auto ended = body(statement.bodies.front());
        if (ended) flow = *ended;
        if (!ended) entered = ended.error();
      }
      scopes_.pop_back();
      RETURN_IF_ERROR(entered);
    }
    if (elements.empty() && statement.bodies.size() > 1) return body(statement.bodies[1]);
    return Flow::kOn;
  }

  Result<List> wanted(const Statement& statement, List elements) {
    List kept;
    for (Value& element : elements) {
      scopes_.emplace_back();
      const auto entered = assign(statement, element);
      auto condition = entered ? evaluate(statement.parts[1]) : Result<Value>(entered.error());
      scopes_.pop_back();
      RETURN_IF_ERROR(condition);
      if (is_true(*condition)) kept.push_back(std::move(element));
    }
    return kept;
  }

  Result<void> assign(const Statement& statement, const Value& element) {
    auto& values = scopes_.back().values;
    if (statement.names.size() == 1) {
      values[statement.names.front()] = element;
      return {};
    }
    const List* pair = element.list();
    if (pair == nullptr || pair->size() != 2)
      return template_error(statement.line, "a loop over two names meets what is no pair",
                            "write .items() behind a dict");
    values[statement.names[0]] = pair->front();
    values[statement.names[1]] = pair->back();
    return {};
  }

  static Value place_of(const List& elements, size_t at) {
    const auto index = static_cast<int64_t>(at), length = static_cast<int64_t>(elements.size());
    const Value none{Undefined{"a neighbour in the loop"}};
    return value_of(Dict{{"index", {index + 1}},
                         {"index0", {index}},
                         {"revindex", {length - index}},
                         {"revindex0", {length - index - 1}},
                         {"first", {at == 0}},
                         {"last", {at + 1 == elements.size()}},
                         {"length", {length}},
                         {"previtem", at == 0 ? none : elements[at - 1]},
                         {"nextitem", at + 1 == elements.size() ? none : elements[at + 1]}});
  }

  // ---- expressions ----

  Result<Value> evaluate(const Expression& expression) {
    RETURN_IF_ERROR(budget_.take(expression.line, 1, 0));
    switch (expression.kind) {
      case Kind::kLiteral:
        return expression.literal;
      case Kind::kName:
        return variable(expression);
      case Kind::kList:
      case Kind::kDict:
        return collection(expression);
      case Kind::kAttribute:
        return attribute(expression);
      case Kind::kCall:
        return call(expression);
      case Kind::kFilter:
      case Kind::kTest:
        return use(expression);
      case Kind::kAnd:
      case Kind::kOr:
      case Kind::kChoose:
        return choice(expression);
      case Kind::kCompare:
        return comparison(expression);
      default:
        return operation(expression);
    }
  }

  Result<Value> variable(const Expression& expression) {
    const std::string& name = expression.names.front();
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->values.find(name); found != scope->values.end()) return found->second;
      if (scope->spaces.contains(name))
        return template_error(expression.line,
                              fmt::format("the namespace {} is used as a whole, which is not served", name),
                              "use its attributes");
    }
    return Value{Undefined{name}};
  }

  Result<Value> collection(const Expression& expression) {
    List values;
    for (const Expression& part : expression.parts) {
      ASSIGN_OR_RETURN(Value value, evaluate(part));
      values.push_back(std::move(value));
    }
    if (expression.kind == Kind::kList) return value_of(std::move(values));
    Dict dict;
    for (size_t i = 0; i < values.size(); i += 2) {
      const auto* key = values[i].as<Text>();
      if (key == nullptr)
        return template_error(expression.line,
                              fmt::format("{} is a key of a dict, which is not served", kind_of(values[i])),
                              "use a text");
      dict.emplace_back(key->bytes(), std::move(values[i + 1]));
    }
    return value_of(std::move(dict));
  }

  Result<Value> attribute(const Expression& expression) {
    const Expression& of = expression.parts.front();
    const std::string& name = expression.names.front();
    if (of.kind == Kind::kName) {
      if (const auto* space = space_of(of.names.front())) {
        const auto found = space->find(name);
        return found == space->end() ? Value{Undefined{name}} : found->second;
      }
    }
    ASSIGN_OR_RETURN(const Value value, evaluate(of));
    return item_of(expression.line, value, Value{Text::own(name)}, budget_);
  }

  Result<std::vector<Value>> arguments(const Expression& expression) {
    std::vector<Value> values;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      ASSIGN_OR_RETURN(Value value, evaluate(expression.parts[i]));
      values.push_back(std::move(value));
    }
    return values;
  }

  Result<Value> call(const Expression& expression) {
    const Expression& what = expression.parts.front();
    if (what.kind == Kind::kAttribute) {
      ASSIGN_OR_RETURN(const Value value, evaluate(what.parts.front()));
      ASSIGN_OR_RETURN(auto values, arguments(expression));
      return call_method(value,
                         {expression.line, what.names.front(), expression.names, std::move(values), budget_});
    }
    const std::string name = what.kind == Kind::kName ? what.names.front() : "this";
    ASSIGN_OR_RETURN(const auto values, arguments(expression));
    if (name == "raise_exception") {
      std::string words = "it does not say why";
      if (!values.empty()) {
        ASSIGN_OR_RETURN(const Text text, text_of(expression.line, values.front()));
        words = base::visible(text.bytes());
      }
      return base::Error(base::Code::kInvalid,
                         fmt::format("line {}: the template refuses this: {}", expression.line, words));
    }
    if (name == "range") return range(expression.line, values);
    return template_error(expression.line,
                          fmt::format("the function {}() is not served", base::visible(name)),
                          "use a template without it, or one of --template's by name");
  }

  Result<Value> range(int line, const std::vector<Value>& values) {
    int64_t bounds[] = {0, 0, 1};
    for (size_t i = 0; i < values.size(); ++i) {
      const auto* number = values[i].as<int64_t>();
      if (number == nullptr || values.size() > 2)
        return template_error(line, "range() has other arguments than one or two numbers", "write these");
      bounds[values.size() == 1 ? 1 : i] = *number;
    }
    List numbers;
    for (int64_t at = bounds[0]; at < bounds[1]; ++at) {
      RETURN_IF_ERROR(budget_.take(line, 1, 0));
      numbers.push_back({at});
    }
    return value_of(std::move(numbers));
  }

  Result<Value> use(const Expression& expression) {
    const std::string& name = expression.names.front();
    const auto names = std::span(expression.names).subspan(1);
    if (expression.kind == Kind::kTest && expression.parts.front().kind == Kind::kName &&
        space_of(expression.parts.front().names.front()) != nullptr &&
        (name == "defined" || name == "undefined"))
      return Value{name == "defined"};
    ASSIGN_OR_RETURN(const Value value, evaluate(expression.parts.front()));
    ASSIGN_OR_RETURN(auto values, arguments(expression));
    const Use one{expression.line, name, names, std::move(values), budget_};
    if (expression.kind == Kind::kFilter) return apply_filter(value, one);
    ASSIGN_OR_RETURN(const bool passed, apply_test(value, one));
    return Value{passed};
  }

  Result<Value> choice(const Expression& expression) {
    ASSIGN_OR_RETURN(Value first, evaluate(expression.parts.front()));
    const bool truth = is_true(first);
    if (expression.kind == Kind::kAnd) return truth ? evaluate(expression.parts[1]) : std::move(first);
    if (expression.kind == Kind::kOr) return truth ? std::move(first) : evaluate(expression.parts[1]);
    if (truth) return evaluate(expression.parts[1]);
    if (expression.parts.size() > 2) return evaluate(expression.parts[2]);
    return Value{Undefined{"the other value of an \"if\" without \"else\""}};
  }

  Result<Value> comparison(const Expression& expression) {
    ASSIGN_OR_RETURN(Value left, evaluate(expression.parts.front()));
    for (size_t i = 0; i < expression.names.size(); ++i) {
      ASSIGN_OR_RETURN(Value right, evaluate(expression.parts[i + 1]));
      ASSIGN_OR_RETURN(const bool holds,
                       apply_comparison(expression.line, expression.names[i], left, right, budget_));
      if (!holds) return Value{false};
      left = std::move(right);
    }
    return Value{true};
  }

  Result<Value> operation(const Expression& expression) {
    std::vector<Value> values;
    for (const Expression& part : expression.parts) {
      ASSIGN_OR_RETURN(Value value, evaluate(part));
      values.push_back(std::move(value));
    }
    const int line = expression.line;
    switch (expression.kind) {
      case Kind::kNot:
        return Value{!is_true(values[0])};
      case Kind::kNegate:
        return apply_binary(line, "-", Value{int64_t{0}}, values[0], budget_);
      case Kind::kItem:
        return item_of(line, values[0], values[1], budget_);
      case Kind::kSlice:
        return slice_of(line, values[0], values[1], values[2], values[3], budget_);
      default:
        return apply_binary(line, expression.names.front(), values[0], values[1], budget_);
    }
  }

  std::vector<Scope> scopes_;
  Text output_;
  Budget budget_{kMostSteps, kMostBytes};
};

}  // namespace

Result<Text> render(const Template& parsed, const Dict& variables) {
  return Renderer(variables).run(parsed);
}

}  // namespace shardrun::data::jinja
