#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/visible.h"
#include "runtime/trainer/data/jinja/lexer.h"
#include "runtime/trainer/data/jinja/syntax.h"

namespace shardrun::data::jinja {
namespace {

using Kind = Expression::Kind;
using Part = Result<Expression>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Template> run() {
    ASSIGN_OR_RETURN(auto statements, body({}));
    return Template{std::move(statements)};
  }

 private:
  // How deep the functions below call one another.
  class Level {
   public:
    explicit Level(int& depth) : depth_(++depth) {}
    Level(const Level&) = delete;
    ~Level() { --depth_; }

   private:
    int& depth_;
  };
  Result<void> check_depth() const {
    if (depth_ <= kDeepest) return {};
    return template_error(token().line, fmt::format("it nests more than {} deep", kDeepest),
                          "make it simpler");
  }

  const Token& token(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool is(Token::Kind kind, std::string_view text) const {
    return token().kind == kind && token().text == text;
  }
  bool is_sign(std::string_view text) const { return is(Token::Kind::kSign, text); }
  bool is_name(std::string_view text) const { return is(Token::Kind::kName, text); }
  bool take_sign(std::string_view text) {
    if (!is_sign(text)) return false;
    ++at_;
    return true;
  }
  bool take_name(std::string_view text) {
    if (!is_name(text)) return false;
    ++at_;
    return true;
  }
  base::Error unexpected(std::string_view wanted) const {
    const auto found = [&]() -> std::string {
      switch (token().kind) {
        case Token::Kind::kEnd:
          return "the end";
        case Token::Kind::kPrintBegin:
          return "{{";
        case Token::Kind::kPrintEnd:
          return "}}";
        case Token::Kind::kBlockBegin:
          return "{%";
        case Token::Kind::kBlockEnd:
          return "%}";
        default:
          return fmt::format("\"{}\"", base::visible(token().text));
      }
    };
    return template_error(token().line, fmt::format("{} stands where {} is wanted", found(), wanted),
                          "mend the template");
  }
  base::Error refused(std::string_view what) const {
    return template_error(token().line, fmt::format("{} is not served", what),
                          "use a template without it, or one of --template's by name");
  }
  Result<void> want_sign(std::string_view text) {
    if (take_sign(text)) return {};
    return unexpected(fmt::format("\"{}\"", text));
  }
  Result<std::string> want_name() {
    if (token().kind != Token::Kind::kName) return unexpected("a name");
    return tokens_[at_++].text;
  }
  Result<void> want_block_end() {
    if (token().kind != Token::Kind::kBlockEnd) return unexpected("%}");
    ++at_;
    return {};
  }

  // ---- statements ----

  // Statements up to a block that begins with one of `ends`, which is left at its name; without any, up to the end.
  Result<std::vector<Statement>> body(std::vector<std::string_view> ends) {
    const Level level(depth_);
    RETURN_IF_ERROR(check_depth());
    std::vector<Statement> statements;
    while (true) {
      const Token& now = token();
      if (now.kind == Token::Kind::kEnd) {
        if (ends.empty()) return statements;
        return unexpected(fmt::format("{{% {} %}}", ends.back()));
      }
      if (now.kind == Token::Kind::kBlockBegin &&
          std::find(ends.begin(), ends.end(), token(1).text) != ends.end()) {
        ++at_;
        return statements;
      }
      if (now.kind == Token::Kind::kText) {
        statements.push_back({.kind = Statement::Kind::kText, .line = now.line, .text = now.text});
        ++at_;
      } else if (now.kind == Token::Kind::kPrintBegin) {
        ++at_;
        ASSIGN_OR_RETURN(auto what, expression());
        if (token().kind != Token::Kind::kPrintEnd) return unexpected("}}");
        ++at_;
        Statement print{.kind = Statement::Kind::kPrint, .line = what.line};
        print.parts.push_back(std::move(what));
        statements.push_back(std::move(print));
      } else {
        ++at_;
        RETURN_IF_ERROR(block(statements));
      }
    }
  }

  Result<void> block(std::vector<Statement>& statements) {
    const int line = token().line;
    ASSIGN_OR_RETURN(const auto name, want_name());
    if (name == "if") return if_block(line, statements);
    if (name == "for") return for_block(line, statements);
    if (name == "set") return set_block(line, statements);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return unexpected("a loop around it");
      statements.push_back(
          {.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, .line = line});
      return want_block_end();
    }
    if (name == "generation") {  // transformers marks with it what the assistant says
      RETURN_IF_ERROR(want_block_end());
      ASSIGN_OR_RETURN(auto inside, body({"endgeneration"}));
      ++at_;
      std::move(inside.begin(), inside.end(), std::back_inserter(statements));
      return want_block_end();
    }
    --at_;
    return refused(fmt::format("{{% {} %}}", base::visible(name)));
  }

  Result<void> if_block(int line, std::vector<Statement>& statements) {
    Statement branch{.kind = Statement::Kind::kIf, .line = line};
    for (bool conditional = true; true;) {
      if (conditional) {
        ASSIGN_OR_RETURN(auto condition, expression());
        branch.parts.push_back(std::move(condition));
      }
      RETURN_IF_ERROR(want_block_end());
      ASSIGN_OR_RETURN(auto inside, conditional ? body({"elif", "else", "endif"}) : body({"endif"}));
      branch.bodies.push_back(std::move(inside));
      if (take_name("endif")) break;
      conditional = take_name("elif");
      if (!conditional) ++at_;  // else
    }
    statements.push_back(std::move(branch));
    return want_block_end();
  }

  Result<void> for_block(int line, std::vector<Statement>& statements) {
    Statement loop{.kind = Statement::Kind::kFor, .line = line};
    do {
      ASSIGN_OR_RETURN(auto name, want_name());
      loop.names.push_back(std::move(name));
    } while (take_sign(","));
    if (loop.names.size() > 2) return refused("a loop over more than two names");
    if (!take_name("in")) return unexpected("\"in\"");
    ASSIGN_OR_RETURN(auto over, either());  // an "if" behind it is the loop's
    loop.parts.push_back(std::move(over));
    if (take_name("if")) {
      ASSIGN_OR_RETURN(auto condition, expression());
      loop.parts.push_back(std::move(condition));
    }
    if (is_name("recursive")) return refused("a recursive loop");
    RETURN_IF_ERROR(want_block_end());
    ++loops_;
    ASSIGN_OR_RETURN(auto inside, body({"else", "endfor"}));
    --loops_;
    loop.bodies.push_back(std::move(inside));
    if (take_name("else")) {
      RETURN_IF_ERROR(want_block_end());
      ASSIGN_OR_RETURN(auto otherwise, body({"endfor"}));
      loop.bodies.push_back(std::move(otherwise));
    }
    ++at_;  // endfor
    statements.push_back(std::move(loop));
    return want_block_end();
  }

  Result<void> set_block(int line, std::vector<Statement>& statements) {
    Statement set{.kind = Statement::Kind::kSet, .line = line};
    ASSIGN_OR_RETURN(auto name, want_name());
    set.names.push_back(std::move(name));
    if (take_sign(".")) {
      ASSIGN_OR_RETURN(auto attribute, want_name());
      set.names.push_back(std::move(attribute));
    }
    if (is_sign(",")) return refused("{% set %} of several names");
    if (take_sign("=")) {
      ASSIGN_OR_RETURN(auto value, expression());
      set.parts.push_back(std::move(value));
      RETURN_IF_ERROR(want_block_end());
    } else {
      if (is_sign("|")) return refused("{% set %} through a filter");
      RETURN_IF_ERROR(want_block_end());
      ASSIGN_OR_RETURN(auto inside, body({"endset"}));
      set.bodies.push_back(std::move(inside));
      ++at_;
      RETURN_IF_ERROR(want_block_end());
    }
    statements.push_back(std::move(set));
    return {};
  }

  // ---- expressions, the loosest first ----

  // A long chain such as a + b + c nests, too, without any function calling itself.
  Part made(Kind kind, std::vector<Expression> parts, std::vector<std::string> names = {}) const {
    Expression whole{.kind = kind, .line = parts.front().line, .names = std::move(names)};
    for (const Expression& part : parts) whole.height = std::max(whole.height, part.height + 1);
    if (whole.height > kHighest)
      return template_error(whole.line, fmt::format("it chains more than {} operations", kHighest),
                            "make it simpler");
    whole.parts = std::move(parts);
    return whole;
  }
  template <typename... Parts>
  static std::vector<Expression> list_of(Parts... parts) {
    std::vector<Expression> all;
    (all.push_back(std::move(parts)), ...);
    return all;
  }

  Part expression() {
    const Level level(depth_);
    RETURN_IF_ERROR(check_depth());
    ASSIGN_OR_RETURN(auto value, either());
    while (take_name("if")) {
      ASSIGN_OR_RETURN(auto condition, either());
      auto parts = list_of(std::move(condition), std::move(value));
      if (take_name("else")) {
        ASSIGN_OR_RETURN(auto otherwise, expression());
        parts.push_back(std::move(otherwise));
      }
      ASSIGN_OR_RETURN(value, made(Kind::kChoose, std::move(parts)));
    }
    return value;
  }

  Part either() {
    ASSIGN_OR_RETURN(auto left, both());
    while (take_name("or")) {
      ASSIGN_OR_RETURN(auto right, both());
      ASSIGN_OR_RETURN(left, made(Kind::kOr, list_of(std::move(left), std::move(right))));
    }
    return left;
  }

  Part both() {
    ASSIGN_OR_RETURN(auto left, negation());
    while (take_name("and")) {
      ASSIGN_OR_RETURN(auto right, negation());
      ASSIGN_OR_RETURN(left, made(Kind::kAnd, list_of(std::move(left), std::move(right))));
    }
    return left;
  }

  Part negation() {
    const Level level(depth_);
    RETURN_IF_ERROR(check_depth());
    if (!take_name("not")) return comparison();
    ASSIGN_OR_RETURN(auto value, negation());
    return made(Kind::kNot, list_of(std::move(value)));
  }

  std::optional<std::string> take_comparison() {
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"})
      if (take_sign(sign)) return std::string(sign);
    if (take_name("in")) return "in";
    if (is_name("not") && token(1).kind == Token::Kind::kName && token(1).text == "in") {
      at_ += 2;
      return "not in";
    }
    return std::nullopt;
  }

  Part comparison() {
    ASSIGN_OR_RETURN(auto left, sum());
    auto parts = list_of(std::move(left));
    std::vector<std::string> signs;
    while (auto sign = take_comparison()) {
      ASSIGN_OR_RETURN(auto right, sum());
      signs.push_back(std::move(*sign));
      parts.push_back(std::move(right));
    }
    if (signs.empty()) return std::move(parts.front());
    return made(Kind::kCompare, std::move(parts), std::move(signs));
  }

  // Jinja has + and - outside of ~, and ~ outside of * and its like.
  Part sum() {
    return binary({"+", "-"}, [this] {
      return binary({"~"}, [this] {
        return binary({"*", "//", "%", "/", "**"}, [this] { return unary(true); });
      });
    });
  }

  template <typename Inner>
  Part binary(std::vector<std::string_view> signs, const Inner& inner) {
    ASSIGN_OR_RETURN(auto left, inner());
    while (true) {
      const auto sign = std::find_if(signs.begin(), signs.end(), [&](auto one) { return is_sign(one); });
      if (sign == signs.end()) return left;
      if (*sign == "/" || *sign == "**") return refused(fmt::format("\"{}\"", *sign));
      ++at_;
      ASSIGN_OR_RETURN(auto right, inner());
      ASSIGN_OR_RETURN(left,
                       made(Kind::kBinary, list_of(std::move(left), std::move(right)), {std::string(*sign)}));
    }
  }

  Part unary(bool with_filters) {
    const Level level(depth_);
    RETURN_IF_ERROR(check_depth());
    std::optional<Expression> value;
    if (take_sign("-")) {
      ASSIGN_OR_RETURN(auto inner, unary(false));
      ASSIGN_OR_RETURN(value, made(Kind::kNegate, list_of(std::move(inner))));
    } else {
      take_sign("+");
      ASSIGN_OR_RETURN(value, primary());
    }
    ASSIGN_OR_RETURN(value, postfix(std::move(*value)));
    if (!with_filters) return std::move(*value);
    return filters(std::move(*value));
  }

  Part primary() {
    const Token now = token();
    Expression value{.kind = Kind::kLiteral, .line = now.line};
    if (now.kind == Token::Kind::kString) {
      std::string said;
      for (; token().kind == Token::Kind::kString; ++at_) said += token().text;  // those side by side are one
      value.literal.of = Text::own(said);
      return value;
    }
    if (now.kind == Token::Kind::kNumber) {
      ++at_;
      value.literal.of = now.number;
      return value;
    }
    if (now.kind == Token::Kind::kName) {
      ++at_;
      if (now.text == "true" || now.text == "True" || now.text == "false" || now.text == "False") {
        value.literal.of = now.text == "true" || now.text == "True";
      } else if (now.text == "none" || now.text == "None") {
        value.literal.of = None();
      } else {
        value.kind = Kind::kName;
        value.names.push_back(now.text);
      }
      return value;
    }
    if (take_sign("(")) {
      ASSIGN_OR_RETURN(auto inner, expression());
      if (is_sign(",")) return refused("a tuple");
      RETURN_IF_ERROR(want_sign(")"));
      return inner;
    }
    if (take_sign("[")) return elements(std::move(value), Kind::kList, "]");
    if (take_sign("{")) return elements(std::move(value), Kind::kDict, "}");
    return unexpected("a value");
  }

  Part elements(Expression value, Kind kind, std::string_view end) {
    value.kind = kind;
    while (!take_sign(end)) {
      if (!value.parts.empty()) RETURN_IF_ERROR(want_sign(","));
      if (take_sign(end)) break;
      ASSIGN_OR_RETURN(auto one, expression());
      value.parts.push_back(std::move(one));
      if (kind == Kind::kList) continue;
      RETURN_IF_ERROR(want_sign(":"));
      ASSIGN_OR_RETURN(auto member, expression());
      value.parts.push_back(std::move(member));
    }
    return value;
  }

  Part postfix(Expression value) {
    while (true) {
      if (take_sign(".")) {
        ASSIGN_OR_RETURN(auto name, want_name());
        ASSIGN_OR_RETURN(value, made(Kind::kAttribute, list_of(std::move(value)), {std::move(name)}));
      } else if (take_sign("[")) {
        ASSIGN_OR_RETURN(value, subscript(std::move(value)));
      } else if (take_sign("(")) {
        ASSIGN_OR_RETURN(Expression call, made(Kind::kCall, list_of(std::move(value))));
        RETURN_IF_ERROR(arguments(call));
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  Part subscript(Expression value) {
    auto parts = list_of(std::move(value));
    bool slices = false;
    while (true) {
      Expression part{.kind = Kind::kLiteral, .line = token().line, .literal = {None()}};
      if (!is_sign(":") && !is_sign("]")) {
        ASSIGN_OR_RETURN(part, expression());
      } else if (!slices && is_sign("]")) {
        return unexpected("an index");
      }
      parts.push_back(std::move(part));
      if (take_sign("]")) break;
      if (parts.size() == 4) return unexpected("\"]\"");
      RETURN_IF_ERROR(want_sign(":"));
      slices = true;
    }
    while (slices && parts.size() < 4)
      parts.push_back({.kind = Kind::kLiteral, .line = token().line, .literal = {None()}});
    return made(slices ? Kind::kSlice : Kind::kItem, std::move(parts));
  }

  // Those of a call, behind its bracket.
  Result<void> arguments(Expression& call) {
    for (bool first = true; !take_sign(")"); first = false) {
      if (!first) RETURN_IF_ERROR(want_sign(","));
      if (take_sign(")")) break;
      if (is_sign("*") || is_sign("**")) return refused("an argument list of its own");
      std::string name;
      if (token().kind == Token::Kind::kName && token(1).kind == Token::Kind::kSign && token(1).text == "=") {
        name = token().text;
        at_ += 2;
      }
      ASSIGN_OR_RETURN(auto value, expression());
      call.names.push_back(std::move(name));
      call.parts.push_back(std::move(value));
    }
    return {};
  }

  Part filters(Expression value) {
    while (true) {
      if (take_sign("|")) {
        ASSIGN_OR_RETURN(auto name, want_name());
        ASSIGN_OR_RETURN(value, made(Kind::kFilter, list_of(std::move(value)), {std::move(name)}));
        if (take_sign("(")) RETURN_IF_ERROR(arguments(value));
      } else if (take_name("is")) {
        const bool negated = take_name("not");
        ASSIGN_OR_RETURN(auto name, want_name());
        ASSIGN_OR_RETURN(value, made(Kind::kTest, list_of(std::move(value)), {std::move(name)}));
        if (take_sign("(")) {
          RETURN_IF_ERROR(arguments(value));
        } else if (begins_argument()) {
          ASSIGN_OR_RETURN(auto argument, primary());
          ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
          value.names.emplace_back();
          value.parts.push_back(std::move(argument));
        }
        if (!negated) continue;
        ASSIGN_OR_RETURN(value, made(Kind::kNot, list_of(std::move(value))));
      } else {
        return value;
      }
    }
  }

  // Whether a test's only argument follows without brackets: "is divisibleby 3".
  bool begins_argument() const {
    if (token().kind == Token::Kind::kString || token().kind == Token::Kind::kNumber) return true;
    if (token().kind == Token::Kind::kSign) return token().text == "[" || token().text == "{";
    if (token().kind != Token::Kind::kName) return false;
    for (const std::string_view other : {"else", "or", "and", "is", "if", "in", "not"})
      if (token().text == other) return false;
    return true;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Result<Template> parse_template(std::string_view source) {
  if (source.size() > kLargestTemplate)
    return template_error(1, fmt::format("it has {} bytes", source.size()),
                          fmt::format("write at most {}", kLargestTemplate));
  ASSIGN_OR_RETURN(auto tokens, tokenize_template(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace shardrun::data::jinja
