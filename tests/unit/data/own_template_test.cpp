// Chat templates that checkpoints bring. What each expression gives was taken from Jinja 3.1.6 as transformers sets it up; whole
// templates are compared by tests/peers/chat_templates.py.
#include "runtime/trainer/data/own_template.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/base/counter_random.h"
#include "runtime/trainer/data/document_encoder.h"
#include "runtime/trainer/data/jinja/render.h"
#include "tests/support/folder.h"

using namespace shardrun;
using namespace shardrun::data;

namespace {

constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const std::string kSmolLm = SOURCE_DIR "/tests/unit/data/peers/bpe/smollm2/tokenizer.json";

OwnTemplate parsed(std::string_view source, OwnTemplate::Special special = {{"bos_token", "<s>"}}) {
  auto own = OwnTemplate::parse(source, std::move(special));
  REQUIRE_MESSAGE(own, own.error().to_string());
  return std::move(*own);
}

std::string said(std::string_view source, std::vector<Message> messages = {{"user", "hi"}}) {
  const auto rendered = parsed(source).render(messages, false);
  return rendered ? rendered->text : rendered.error().to_string();
}

std::string parse_error(std::string_view source) {
  const auto own = OwnTemplate::parse(source, {});
  return own ? "" : own.error().message();
}

Encoding with(OwnTemplate own) {
  Encoding encoding;
  encoding.own_template = std::move(own);
  return encoding;
}

}  // namespace

TEST_CASE("own template: each expression, statement and cut of white space gives what Jinja gives") {
  const struct {
    const char *source, *text;
  } kCases[] = {
      {"{{ 1 + 2 * 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 - 2 - 1 }} {{ 2 ~ 3 }}", "7 -4 2 4 23"},
      {"{{ not true or true and false }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ true == 1 }} {{ 'a' < 'b' }}",
       "False True False True True"},
      {"{{ 'b' in 'abc' }} {{ 'd' not in ['a', 'b'] }} {{ 'k' in {'k': 1} }} {{ 2 in [1, 2] }}",
       "True True True True"},
      {"{{ none }} {{ true }} [{{ absent }}] {{ absent is defined }} {{ none is none }} {{ absent | length "
       "}}",
       "None True [] False True 0"},
      {"{{ 'abcdef'[1:3] }} {{ 'abcdef'[-2:] }} {{ 'héllo'[1] }} {{ 'héllo' | length }} {{ [1, 2, 3][::-1] | "
       "join('-') }}",
       "bc ef é 5 3-2-1"},
      {"{{ ['a', 'b', 'c'][1:] | join(', ') }} {{ ['a'][5] is defined }} {{ [1, 2, 3][-1] }} {{ [1, 2][9:] | "
       "length }}",
       "b, c False 3 0"},
      {"{{ {'a': {'b': 'deep'}}.a.b }} {{ {'a': 1}['z'] is defined }} {{ {'items': 5}['items'] }}",
       "deep False 5"},
      {"[{{ ' \\u00a0\\u3000x \\u3000\\u00e9\\u3000\\u00a0\\n' | trim }}] [{{ 'xxaxx'.strip('x') }}] [{{ ' a "
       "'.lstrip() }}] [{{ ' a '.rstrip() }}]",
       "[x 　é] [a] [a ] [ a]"},
      {"{{ 'a,b,c'.split(',') | last }} {{ ' a  b '.split() | join('+') }} {{ 'abc'.startswith('ab') }} {{ "
       "'abc'.endswith('b') }}",
       "c a+b True False"},
      {"{{ 'a-b-c'.replace('-', '+') }} {{ 'Ab' | upper }} {{ 'Ab' | lower }} {{ 'aB cD' | capitalize }} {{ "
       "\"it's aB\".title() }}",
       "a+b+c AB ab Ab cd It'S Ab"},
      {"{{ 'q\"\\n/é\\x07' | tojson }} {{ [1, true, none, {'a': 'b'}] | tojson }} {{ [] | tojson }} {{ {} | "
       "tojson }}",
       "\"q\\\"\\n/é\\u0007\" [1, true, null, {\"a\": \"b\"}] [] {}"},
      {"{% for x in [3, 4] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length "
       "}}{{ loop.revindex }}{{ x }};{% endfor %}",
       "10TrueFalse223;21FalseTrue214;"},
      {"{% for x in ['a', 'b'] %}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}", "b;a;"},
      {"{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ x }}{{ loop.index }}{% else %}none{% endfor %}{% for x "
       "in [] %}{% else %}empty{% endfor %}",
       "2142empty"},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% for k in {'a': 1} %}{{ k "
       "}}{% endfor %}{% for c in 'hé' %}{{ c }}.{% endfor %}",
       "a=1;b=2;ah.é."},
      {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif "
       "%}{{ x }}{% endfor %}",
       "02"},
      {"{% set a = 1 %}{% for x in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}{% if true %}{% set a = 3 "
       "%}{% endif %}{{ a }}",
       "213"},
      {"{% for x in [1, 2] %}{{ y }}{% set y = x %}{% endfor %}[{{ y }}]", "[]"},
      {"{% set ns = namespace(n=0) %}{% for x in [1, 2, 3] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n "
       "}}{{ ns.m is defined }}",
       "6False"},
      {"{% set body %}a{{ 1 }}b{% endset %}{{ body | upper }}", "A1B"},
      {"{{ [{'r': 'u', 'c': 1}, {'r': 'a', 'c': 2}] | selectattr('r', 'equalto', 'a') | map(attribute='c') | "
       "list | join }}",
       "2"},
      {"{{ ['a', '', 'b'] | select | join }} {{ [1, 2, 3] | reject('odd') | list | first }} {{ absent | "
       "default('d') }} {{ '' | default('d', true) }}",
       "ab 2 d d"},
      {"{{ 3 is odd }} {{ 6 is divisibleby 3 }} {{ 'a' is string }} {{ [] is iterable }} {{ {} is mapping }} "
       "{{ true is boolean }} {{ 1 is number }} {{ 1 is not none }}",
       "True True True True True True True True"},
      {"a {{- ' b ' -}} c\n{%- if true -%}\n d \n{%- endif %}\ne", "a b cde"},
      {"x\n  {% if true %}\n  y\n  {% endif %}\nz\n", "x\n  y\nz"},
      {"x\n  {%+ if true %}  y{% endif +%}\nz{# note #}\nw\n\n", "x\n    y\nzw\n"},
      {"{% if true %}\n\n  {# c #}\n k{% endif %}  {{ 'v' }}\n", "\n k  v"},
      {"{{ 'a' 'b' }} {{ '\\u00e9\\t\\x41\\q' }} {{ \"it's\" }} {{ 'a\\'b' }}", "ab é	A\\q it's a'b"},
      {"{{ ('a' if 0 else 'b') }}{{ 'x' if false }}", "b"},
      {"{% if 0 %}a{% elif '' %}b{% elif [0] %}c{% else %}d{% endif %}", "c"},
      {"{{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1, 'b': 2}.keys() | list | join }} {{ "
       "{'a': 1} | items | list | length }}",
       "None 2 ab 1"},
      {"{{ {'b': {'c': '}}'}}.b.c }}{{ '%}' }}", "}}%}"},
      {"{% generation %}g{% endgeneration %}{{ bos_token }}", "g<s>"},
  };
  for (const auto& one : kCases) {
    CAPTURE(one.source);
    CHECK(said(one.source) == one.text);
  }
}

TEST_CASE("own template: what is not served is refused with its line, and at once where it is grammar") {
  CHECK(parse_error("a\n{% macro m() %}{% endmacro %}") ==
        "line 2: {% macro %} is not served; use a template without it, or one of --template's by name");
  CHECK(parse_error("{% for x in y recursive %}{% endfor %}")
            .starts_with("line 1: a recursive loop is not served"));
  CHECK(parse_error("{{ 1.5 }}").starts_with("line 1: a number is no plain integer"));
  CHECK(parse_error("{{ 2 ** 3 }}").starts_with("line 1: \"**\" is not served"));
  CHECK(parse_error("{{ (1, 2) }}").starts_with("line 1: a tuple is not served"));
  CHECK(parse_error("{% if x %}\n\n").starts_with("line 2: the end stands where {% endif %} is wanted"));
  CHECK(parse_error("{{ 'a }}").starts_with("line 1: a string has no end"));
  CHECK(parse_error("\n{{ a").starts_with("line 2: a tag has no end; write }}"));
  CHECK(parse_error("{# a").starts_with("line 1: a comment has no end"));
  CHECK(parse_error("{{ ; }}").starts_with("line 1: \";\" is no Jinja"));
  CHECK(parse_error("{% break %}").starts_with("line 1: %} stands where a loop around it is wanted"));
  // In a branch that no conversation reaches it does no harm.
  CHECK(said("{% if tools %}{{ tools | tojson(indent=4) }}{{ strange() }}{% endif %}ok") == "ok");
  CHECK(
      said("\n{{ strange() }}") ==
      "the chat template: line 2: the function strange() is not served; use a template without it, or one of "
      "--template's by name");
  CHECK(said("{{ 'a' | strange }}").find("the filter \"strange\" is not served") != std::string::npos);
  CHECK(said("{{ 'a' is strange }}").find("the test \"strange\" is not served") != std::string::npos);
  CHECK(said("{{ 'a'.strange() }}").find("the method .strange() with these arguments is not served") !=
        std::string::npos);
  CHECK(said("{{ messages }}").find("line 1: a print meets a list") != std::string::npos);
  CHECK(said("{{ absent.role }}").find("\"role\" meets absent, which is not defined") != std::string::npos);
  CHECK(said("{{ 'a' + 1 }}").find("\"+\" of a text meets a number") != std::string::npos);
  CHECK(said("{{ 1 // 0 }}").find("line 1: 1 / 0 is no number") != std::string::npos);
  CHECK(said("{% set a.b = 1 %}").find("a is no namespace") != std::string::npos);
  CHECK(said("a\n{{ raise_exception('no ' + messages[0].role) }}") ==
        "the chat template: line 2: the template refuses this: no user");
  CHECK(said("{{ strftime_now is defined }}") == "False");
}

TEST_CASE("own template: what a template does is bounded") {
  const std::clock_t started = std::clock();
  CHECK(said("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}")
            .find("the template does more than a conversation needs") != std::string::npos);
  CHECK(said("{% set n = namespace(t='x') %}{% for a in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}")
            .find("the template does more than a conversation needs") != std::string::npos);
  CHECK(said("{% set n = namespace(t=[]) %}{% for a in range(9999) %}{% set n.t = [n.t] %}{% endfor %}")
            .find("a list nests too deep") != std::string::npos);
  // Lists that hold one list twice, forty times over, have 2^40 elements in the end.
  for (const char* compares :
       {"n.l == n.l", "n.l != n.l", "n.l in [n.l]", "[n.l] | select('eq', n.l) | length"})
    CHECK(said("{% set n = namespace(l=[1]) %}{% for a in range(40) %}{% set n.l = [n.l, n.l] %}{% endfor "
               "%}{{ " +
               std::string(compares) + " }}")
              .find("the template does more than a conversation needs") != std::string::npos);
  // Half a million bytes that nearly begin at each of two million.
  const std::string long_texts =
      "{% set n = namespace(t='x') %}{% for a in range(21) %}{% set n.t = n.t + n.t %}{% endfor %}"
      "{% set p = n.t[:500000] + 'y' %}{{ ";
  CHECK(said(long_texts + "p in n.t }}") == "False");
  CHECK(said(long_texts + "n.t.replace(p, '') | length }}") == "2097152");
  CHECK(said(long_texts + "n.t.split(p) | length }}") == "1");
  CHECK(parse_error("{{ " + std::string(100000, '(') + " }}")
            .starts_with("line 1: it nests more than 64 deep"));
  CHECK(parse_error("{{ " + std::string(100000, '-') + " 1 }}")
            .starts_with("line 1: it nests more than 64 deep"));
  std::string chain = "{{ 1", blocks;
  for (int i = 0; i < 20000; ++i) {
    chain += "+1";
    blocks += "{% if 1 %}";
  }
  CHECK(parse_error(chain + " }}").starts_with("line 1: it chains more than 200 operations"));
  CHECK(parse_error(blocks).starts_with("line 1: it nests more than 64 deep"));
  CHECK(parse_error(std::string(300 << 10, 'a')).starts_with("line 1: it has 307200 bytes"));
  CHECK(std::clock() - started < 10 * CLOCKS_PER_SEC);
}

TEST_CASE("own template: written as the common one it gives the same tokens, and learns the same of them") {
  const auto tokenizer = open_tokenizer(kSmolLm);
  REQUIRE(tokenizer);
  const Encoding own = with(parsed(kChatMl));
  Encoding named;
  named.chat_template = ChatTemplate::kChatMl;
  const char* const kSaid[] = {
      "", " the b", "<|im_end|>", "two\nlines ", "é🙂", "<|im_start|>assistant\n"};
  for (uint64_t talk = 0; talk < 50; ++talk) {
    Document document;
    for (uint64_t i = 0; i < 2 + talk % 5; ++i)
      document.messages.push_back({i % 2 == 0 ? "user" : "assistant", kSaid[base::random_bits(talk, i) % 6]});
    std::vector<int32_t> ids, expected;
    REQUIRE(encode_document(**tokenizer, document, own, ids));
    REQUIRE(encode_document(**tokenizer, document, named, expected));
    CHECK(ids == expected);
    if (document.messages.back().role == "assistant") document.messages.pop_back();
    const auto question = encode_question(**tokenizer, document, own);
    const auto same = encode_question(**tokenizer, document, named);
    REQUIRE(question);
    REQUIRE(same);
    CHECK(question->ids == same->ids);
    CHECK(question->ends.back() == (*tokenizer)->control_token("<|im_end|>"));
  }
}

TEST_CASE("own template: an end that stands behind the last message alone is no part of earlier answers") {
  const auto own = parsed(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}");
  const std::vector<Message> talk{
      {"user", "q"}, {"assistant", " first "}, {"user", "r"}, {"assistant", "last"}};
  const auto rendered = own.render_to_learn(talk);
  REQUIRE_MESSAGE(rendered, rendered.error().to_string());
  REQUIRE(rendered->answers.size() == 2);
  const auto answer = [&](size_t i) {
    return rendered->text.substr(rendered->answers[i].begin,
                                 rendered->answers[i].end - rendered->answers[i].begin);
  };
  CHECK(answer(0).starts_with("first<|im_end|><|"));
  CHECK(answer(1) == "last<|im_end|><|endoftext|>");

  const auto rewrites = parsed(
      "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else '…' }}{% endfor %}{{ 'assistant:' "
      "if add_generation_prompt }}");
  const auto refused = rewrites.render_to_learn(talk);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message().starts_with(
      "the chat template writes answer 2 otherwise than behind its own prompt"));
  CHECK_FALSE(parsed(kChatMl).render(std::vector<Message>{{"a|>b", "c"}}, false));
}

TEST_CASE(
    "own template: marks of a SentencePiece model are its tokens, and a tokenizer without any is refused") {
  const auto tokenizer = open_tokenizer(SOURCE_DIR "/tests/unit/data/peers/tiny.model");
  REQUIRE(tokenizer);
  const int32_t begin = (*tokenizer)->facts().special.begin, end = (*tokenizer)->facts().special.end;
  const auto names = (*tokenizer)->control_names();
  CHECK(std::find(names.begin(), names.end(), "</s>") != names.end());
  for (const std::string& name : names) CHECK((*tokenizer)->control_token(name) >= 0);
  const Encoding own = with(parsed(
      "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' "
      "%}{{ '</s>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"));
  std::vector<int32_t> ids;
  REQUIRE(encode_document(**tokenizer, {"", {{"user", "the </s>"}, {"assistant", "one"}}}, own, ids));
  CHECK(ids.front() == ~begin);
  CHECK(ids.back() == end);
  CHECK(std::count(ids.begin(), ids.end(), end) == 1);
  CHECK(std::count(ids.begin(), ids.end(), ~end) == 0);  // what a user wrote is letters
  const auto question = encode_question(**tokenizer, {"", {{"user", "the"}}}, own);
  REQUIRE(question);
  CHECK(question->ids.front() == begin);
  CHECK(std::find(question->ends.begin(), question->ends.end(), end) != question->ends.end());

  const auto bytes = open_tokenizer("byte");
  const auto refused = encode_document(**bytes, {"", {{"user", "q"}, {"assistant", "a"}}}, own, ids);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message() ==
        "this tokenizer has no special tokens by name; choose another --template than own");
}

TEST_CASE("own template: it is found beside the tokenizer, in either of two files, with its special tokens") {
  const tests::Folder folder;
  const std::string tokenizer = folder.file("tokenizer.json", "{}");
  const auto absent = OwnTemplate::beside(tokenizer);
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code() == base::Code::kNotFound);
  folder.file("tokenizer_config.json",
              R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": [
                {"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}1{{ eos_token }}"}]})");
  const std::vector<Message> talk{{"user", "q"}};
  CHECK(OwnTemplate::beside(tokenizer)->render(talk, true)->text == "<b>1<e>");
  folder.file("chat_template.jinja", "{{ eos_token }}2");
  CHECK(OwnTemplate::beside(tokenizer)->render(talk, true)->text == "<e>2");
  folder.file("chat_template.jinja", "\n{% include 'x' %}");
  const auto refused = OwnTemplate::beside(tokenizer);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().to_string().find("chat_template.jinja: line 2: {% include %} is not served") !=
        std::string::npos);
}
