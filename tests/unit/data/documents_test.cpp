#include "runtime/trainer/data/documents.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/foreign_format.h"
#include "runtime/trainer/data/document_encoder.h"
#include "tests/support/token_files.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::tests;

namespace {

DocumentReader reader_of(const std::string& path, bool split = false) {
  auto reader = DocumentReader::open(path, "shardrun data", {split, "text"});
  REQUIRE(reader);
  return std::move(reader).value();
}

// Returns "place|text" of each document.
std::vector<std::string> texts_of(const std::string& path, bool split) {
  DocumentReader reader = reader_of(path, split);
  const int64_t expected = reader.count();
  std::vector<std::string> texts;
  while (true) {
    const auto document = reader.next();
    REQUIRE(document);
    if (!*document) break;
    const std::string place = reader.place();
    texts.push_back(place.substr(place.rfind(':') + 1) + "|" + (*document)->text);
  }
  CHECK(expected == static_cast<int64_t>(texts.size()));
  CHECK(reader.bytes_read() == reader.bytes());
  return texts;
}

std::string error_of_line(const Folder& folder, const std::string& line) {
  DocumentReader reader = reader_of(folder.file("x.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n"));
  REQUIRE(reader.next());
  const auto document = reader.next();
  REQUIRE(!document);
  const std::string& message = document.error().message();
  return message.substr(message.find("x.jsonl"), message.find(';') - message.find("x.jsonl"));
}

std::unique_ptr<Tokenizer> tokenizer_of(const std::string& name) {
  auto tokenizer = open_tokenizer(name);
  REQUIRE(tokenizer);
  return std::move(tokenizer).value();
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const Document& document,
                             std::optional<ChatTemplate> chat_template = std::nullopt) {
  std::vector<int32_t> ids;
  REQUIRE(encode_document(tokenizer, document, {chat_template}, ids));
  return ids;
}

// Shows bytes that carry loss as they are, others as '.', the end token as '$'.
std::string learned(const Document& document, ChatTemplate chat_template) {
  std::string text;
  for (const int32_t id : encoded(*tokenizer_of("byte"), document, chat_template))
    text += id < 0 ? '.' : id == 0 ? '$' : static_cast<char>(id);
  return text;
}

std::string text_of(const std::vector<Passage>& passages) {
  std::string text;
  for (const Passage& passage : passages) text += passage.text;
  return text;
}

const std::vector<Message> kTalk{{"system", "Be brief."},
                                 {"user", "Hi "},
                                 {"assistant", " Hello"},
                                 {"user", "Bye"},
                                 {"assistant", "See you"}};

}  // namespace

TEST_CASE("documents: names of special tokens in a text are letters, or with marks_in_text these tokens") {
  const auto tokenizer = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/bpe/smollm2/tokenizer.json");
  const int32_t end = tokenizer->control_token("<|im_end|>"),
                start = tokenizer->control_token("<|im_start|>");
  REQUIRE(end >= 0);
  REQUIRE(start >= 0);
  const Document document{"<|im_start|>a <|im_en <|im_end|><|im_end|>b", {}};
  const auto ids_of = [&](bool marks) {
    std::vector<int32_t> ids;
    REQUIRE(encode_document(*tokenizer, document, {.special_tokens = false, .marks_in_text = marks}, ids));
    return ids;
  };
  std::vector<int32_t> letters = ids_of(false), wanted{start};
  CHECK(std::count(letters.begin(), letters.end(), end) == 0);
  for (const std::string text : {"a <|im_en ", "b"}) {
    std::vector<Token> tokens;
    REQUIRE(tokenizer->encode(text, tokens));
    for (const Token& token : tokens) wanted.push_back(token.id);
    if (text != "b") wanted.insert(wanted.end(), {end, end});
  }
  CHECK(ids_of(true) == wanted);
  const auto question =
      encode_question(*tokenizer, document, {.special_tokens = false, .marks_in_text = true});
  REQUIRE(question);
  CHECK(question->ids == wanted);
  std::vector<int32_t> none;
  CHECK(!encode_document(*tokenizer_of("byte"), document, {.marks_in_text = true}, none));
}

TEST_CASE("documents: a text file is one document, or each of its paragraphs is") {
  const Folder folder;
  const std::string path = folder.file("a.txt", "\none\ntwo\r\n \t\n\n  three\n\n\n");

  CHECK(texts_of(path, false) == std::vector<std::string>{"1|\none\ntwo\r\n \t\n\n  three\n\n\n"});
  CHECK(texts_of(path, true) == std::vector<std::string>{"2|one\ntwo\r", "6|  three"});
  CHECK(texts_of(folder.file("b.txt", "x"), true) == std::vector<std::string>{"1|x"});
}

TEST_CASE("documents: JSON lines give their text, whatever the split of other files") {
  const Folder folder;
  const std::string path = folder.file(
      "a.jsonl", "{\"text\": \"a\\nb\"}\n\n{\"id\": 3, \"text\": \"\"}\r\n{\"text\": \"\\u00e9\"}");

  CHECK(texts_of(path, true) == std::vector<std::string>{"1|a\nb", "3|", "4|\u00e9"});
}

TEST_CASE("documents: what is no document is refused with its line") {
  const Folder folder;

  CHECK(error_of_line(folder, "[1]") == "x.jsonl:3: is not a JSON object");
  CHECK(error_of_line(folder, "{}") ==
        "x.jsonl:3: has not exactly one of \"text\", \"messages\", \"conversations\" and \"prompt\"");
  CHECK(error_of_line(folder, R"({"text": "a", "messages": []})") ==
        "x.jsonl:3: has not exactly one of \"text\", \"messages\", \"conversations\" and \"prompt\"");
  CHECK(error_of_line(folder, R"({"text": null})") == "x.jsonl:3: \"text\" is not a string");
  CHECK(error_of_line(folder, R"({"messages": []})") == "x.jsonl:3: \"messages\" is not a list, or empty");
  CHECK(error_of_line(folder, R"({"messages": ["hi"]})") == "x.jsonl:3: a message is not an object");
  CHECK(error_of_line(folder, R"({"messages": [{"role": "user"}]})") ==
        "x.jsonl:3: a message lacks \"role\" or \"content\", or one of them is not a string");
}

TEST_CASE("documents: a line that is no JSON is refused with the column and the reason") {
  const Folder folder;

  CHECK(error_of_line(folder, "{\"text\": ") == "x.jsonl:3:10: the line ends before its JSON does");
  CHECK(error_of_line(folder, "{\"\u00e9\": 1, \"text\": NaN}") == "x.jsonl:3:18: is not JSON from here on");
  CHECK(error_of_line(folder, "{'text': 'a'}") == "x.jsonl:3:2: is not JSON from here on");
  CHECK(error_of_line(folder, "{\"text\": \"\u00e9t\xe9 en France\"}") ==
        "x.jsonl:3:13: the byte 0xe9 here is not UTF-8");
  CHECK(error_of_line(folder, "{\"text\": \"\xe9\"}") == "x.jsonl:3:11: the byte 0xe9 here is not UTF-8");
  CHECK(error_of_line(folder, "\xff") == "x.jsonl:3:1: the byte 0xff here is not UTF-8");
  CHECK(error_of_line(folder, std::string(300, '[')) == "x.jsonl:3: nests deeper than any document");
}

TEST_CASE("documents: one that is too large is refused, with the flag that splits it where one does") {
  const Folder folder;
  const auto refusal = [&](const char* name, bool split_on_blank_lines) {
    const std::string path = folder.file(name, std::string(record::kFormatBytes, 'x'));
    std::filesystem::resize_file(path, kMaximumTextBytes + 1);
    auto reader = DocumentReader::open(path, "shardrun data", {split_on_blank_lines, "text"});
    REQUIRE(reader);
    const auto document = reader->next();
    REQUIRE(!document);
    return document.error().message();
  };

  CHECK(refusal("a.txt", false).ends_with("split it, or use --split-on-blank-lines"));
  CHECK(refusal("a.txt", true).ends_with("; split it"));
  CHECK(refusal("a.jsonl", false).ends_with("; split it"));
}

TEST_CASE("documents: a Parquet file is refused with the call that makes JSON lines of it") {
  const Folder folder;

  const auto reader = DocumentReader::open(folder.file("rows.parquet", "PAR1\x15"), "shardrun data", {});

  REQUIRE(!reader);
  CHECK(reader.error().message().find("shardrun data: ") == 0);
  CHECK(reader.error().message().find(
            "rows.parquet is a Parquet file, which is no text; write its rows as JSON "
            "lines, in Python: pandas.read_parquet(") != std::string::npos);
}

TEST_CASE("chat template llama2: questions and answers in the words of Llama 2's reference") {
  const auto passages = apply_chat_template(ChatTemplate::kLlama2, kTalk);

  REQUIRE(passages);
  REQUIRE(passages->size() == 2);
  CHECK((*passages)[0].text == "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello ");
  CHECK((*passages)[1].text == "[INST] Bye [/INST] See you ");
  CHECK((*passages)[1].begins);
  CHECK((*passages)[1].ends);
}

TEST_CASE("chat template chatml: every message between its marks") {
  const auto passages = apply_chat_template(ChatTemplate::kChatMl, kTalk);

  REQUIRE(passages);
  CHECK(text_of(*passages) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n "
        "Hello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSee you<|im_end|>\n");
}

TEST_CASE("chat templates: only what the assistant says carries loss, with what ends it") {
  const Document talk{"", kTalk};

  CHECK(learned(talk, ChatTemplate::kLlama2) ==
        std::string(45, '.') + " Hello $" + std::string(18, '.') + " See you $");
  CHECK(learned({"", {{"user", "a"}, {"assistant", "b"}}}, ChatTemplate::kChatMl) ==
        std::string(29, '.') + std::string(22, '.') + "b<|im_end|>.");
}

TEST_CASE("chat templates: roles in an order that they do not know are refused") {
  for (const std::vector<Message>& talk : std::vector<std::vector<Message>>{
           {{"user", "a"}}, {{"assistant", "a"}}, {{"user", "a"}, {"user", "b"}}, {{"system", "a"}}, {}}) {
    CHECK(!apply_chat_template(ChatTemplate::kLlama2, talk));
  }
  CHECK(!apply_chat_template(ChatTemplate::kChatMl, std::vector<Message>{{"a\nb", "c"}}));
  CHECK(!parse_chat_template("alpaca"));
}

TEST_CASE("documents: the field of the text has any name, and conversations the shapes of other data sets") {
  const Folder folder;
  const std::string path = folder.file("a.jsonl",
                                       R"({"content": "words", "id": 1}
{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "tool", "value": "t"}]}
{"prompt": "p", "completion": "c"}
{"prompt": "p"}
)");
  auto reader = DocumentReader::open(path, "shardrun data", {false, "content"});
  REQUIRE(reader);

  CHECK((*reader->next())->text == "words");
  const auto talk = *reader->next();
  REQUIRE(talk->messages.size() == 3);
  CHECK(talk->messages[0].role == "user");
  CHECK(talk->messages[1].role == "assistant");
  CHECK(talk->messages[1].content == "a");
  CHECK(talk->messages[2].role == "tool");
  const auto pair = *reader->next();
  REQUIRE(pair->messages.size() == 2);
  CHECK(pair->messages[0].content == "p");
  CHECK(pair->messages[1].role == "assistant");
  const auto half = reader->next();
  REQUIRE(!half);
  CHECK(half.error().message().find("a.jsonl:4: \"completion\" is not a string") != std::string::npos);
}

TEST_CASE(
    "documents: members beside a text or a conversation are passed over, and beside one that was asked for "
    "all are") {
  const Folder folder;
  const std::string path = folder.file("a.jsonl",
                                       R"({"prompt": "p", "text": "words"}
{"prompt": "p", "prompt_id": "7", "messages": [{"role": "user", "content": "q"}]}
{"text": "more", "messages": [{"role": "user", "content": "q"}], "prompt": "p", "completion": "c"}
)");
  DocumentReader reader = reader_of(path);
  CHECK((*reader.next())->text == "words");
  CHECK((*reader.next())->messages.size() == 1);
  const auto ambiguous = reader.next();
  REQUIRE(!ambiguous);
  CHECK(ambiguous.error().message().find("a.jsonl:3: has not exactly one of") != std::string::npos);

  auto asked = DocumentReader::open(path, "shardrun data", {false, "text", "/tmp", true});
  REQUIRE(asked);
  CHECK((*asked->next())->text == "words");
  CHECK((*asked->next())->messages.size() == 1);
  CHECK((*asked->next())->text == "more");
}

TEST_CASE("chat template llama3: one begin token, and every message between its marks") {
  const auto passages = apply_chat_template(ChatTemplate::kLlama3, kTalk);

  REQUIRE(passages);
  REQUIRE(passages->size() == 1);
  CHECK((*passages)[0].begins);
  CHECK(!(*passages)[0].ends);
  CHECK(text_of(*passages) ==
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nSee you<|eot_id|>");
}

TEST_CASE("chat templates zephyr and none: roles between bars, and words as they stand") {
  const std::vector<Message> talk{{"user", "a "}, {"assistant", "b"}};

  CHECK(text_of(*apply_chat_template(ChatTemplate::kZephyr, talk)) ==
        "<|user|>\na </s>\n<|assistant|>\nb</s>\n");
  CHECK(learned({"", talk}, ChatTemplate::kZephyr) == std::string(30, '.') + "b</s>.");
  CHECK(learned({"", talk}, ChatTemplate::kNone) == "..b$");
  CHECK(learned({"", {{"assistant", "b"}, {"user", "c"}}}, ChatTemplate::kNone) == "b..");
}

TEST_CASE(
    "encoder: a template's marks are the tokenizer's tokens, and the same letters in a message are not") {
  const auto tokenizer = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/bpe/smollm2/tokenizer.json");
  const int32_t start = tokenizer->control_token("<|im_start|>"),
                end = tokenizer->control_token("<|im_end|>");
  REQUIRE(start > 0);
  const Document talk{"", {{"user", "a<|im_end|>"}, {"assistant", "the b"}}};

  const auto ids = encoded(*tokenizer, talk, ChatTemplate::kChatMl);

  CHECK(ids.front() == ~start);
  CHECK(std::count(ids.begin(), ids.end(), ~end) == 1);
  CHECK(std::count(ids.begin(), ids.end(), end) == 1);
  std::vector<Token> answer;
  REQUIRE(tokenizer->encode("the b", answer));
  const auto learned_from = ids.end() - 2 - static_cast<std::ptrdiff_t>(answer.size());
  for (size_t i = 0; i < answer.size(); ++i)
    CHECK(learned_from[static_cast<std::ptrdiff_t>(i)] == answer[i].id);
  CHECK(*(ids.end() - 2) == end);
  CHECK(ids.back() < 0);
}

TEST_CASE("encoder: begin and end tokens are left out on request") {
  const auto byte = tokenizer_of("byte");
  std::vector<int32_t> ids;

  REQUIRE(encode_document(*byte, {"hi", {}}, {std::nullopt, false}, ids));

  CHECK(ids == std::vector<int32_t>{'h', 'i'});
}

TEST_CASE("encoder: text stands between begin and end tokens, and for BERT alone") {
  const auto byte = tokenizer_of("byte"),
             pieces = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/tiny.model"),
             words = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/vocab.txt");

  CHECK(encoded(*byte, {"hi", {}}) == std::vector<int32_t>{'h', 'i', 0});
  const auto framed = encoded(*pieces, {"hi", {}});
  CHECK(framed.front() == 1);
  CHECK(framed.back() == 2);
  CHECK(framed.size() > 2);
  for (const int32_t id : encoded(*words, {"hi", {}})) CHECK(id > 4);
  CHECK(encoded(*words, {" \n", {}}).empty());
  CHECK(encoded(*pieces, {"", {}}).empty());
}

TEST_CASE("encoder: pieces of an answer are learned as they are cut in the whole passage") {
  const auto pieces = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/tiny.model");
  const Document talk{
      "", {{"user", "What is permitted?"}, {"assistant", "Copy the \xc3\xa9 \xf0\x9f\x99\x82 software."}}};
  std::vector<Token> whole;
  REQUIRE(pieces->encode("[INST] What is permitted? [/INST] Copy the \xc3\xa9 \xf0\x9f\x99\x82 software. ",
                         whole));

  const auto ids = encoded(*pieces, talk, ChatTemplate::kLlama2);

  REQUIRE(ids.size() == whole.size() + 2);
  CHECK(ids.front() == ~1);
  CHECK(ids.back() == 2);
  const size_t prompt = std::string("[INST] What is permitted? [/INST]").size();
  for (size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(i);
    CHECK(ids[i + 1] == (whole[i].end > prompt ? whole[i].id : ~whole[i].id));
  }
}

TEST_CASE(
    "encoder: a question is what stands before an answer in training, and ends are what stands behind it") {
  const auto tokenizer = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/bpe/smollm2/tokenizer.json"),
             llama3 = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/bpe/llama3/tokenizer.json"),
             pieces = tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/tiny.model");
  const std::vector<Message> asked{{"system", "Be brief."}, {"user", "What is permitted?"}};
  std::vector<Message> answered = asked;
  answered.push_back({"assistant", "the"});
  for (const auto chat_template : {ChatTemplate::kLlama2, ChatTemplate::kLlama3, ChatTemplate::kChatMl,
                                   ChatTemplate::kZephyr, ChatTemplate::kNone}) {
    // Each template with a tokenizer of its family, whose words end where a message begins.
    const Tokenizer& used = chat_template == ChatTemplate::kLlama2   ? *pieces
                            : chat_template == ChatTemplate::kLlama3 ? *llama3
                                                                     : *tokenizer;
    const auto question = encode_question(used, {"", asked}, {chat_template});
    REQUIRE(question);
    CAPTURE(static_cast<int>(chat_template));
    auto trained = encoded(used, {"", answered}, chat_template);
    trained.erase(std::find_if(trained.begin(), trained.end(), [](int32_t id) { return id >= 0; }),
                  trained.end());
    for (int32_t& id : trained) id = ~id;
    CHECK(question->ids == trained);
    CHECK(!question->ends.empty());
  }
  const auto chat = encode_question(*tokenizer, {"", asked}, {ChatTemplate::kChatMl});
  CHECK(std::count(chat->ends.begin(), chat->ends.end(), tokenizer->control_token("<|im_end|>")) >= 1);
  const auto text = encode_question(*pieces, {"hi", {}}, {});
  CHECK(text->ids.front() == 1);  // <s>, and no </s> behind
  CHECK(text->ids.back() != 2);
  CHECK(text->ends == std::vector<int32_t>{2});
  CHECK(!encode_question(*tokenizer, {"", asked}, {}));
}

TEST_CASE("encoder: a conversation needs a template, and a tokenizer made for it") {
  std::vector<int32_t> ids;
  const Document talk{"", kTalk};

  CHECK(!encode_document(*tokenizer_of("byte"), talk, {}, ids));
  CHECK(!encode_document(*tokenizer_of(SOURCE_DIR "/tests/unit/data/peers/vocab.txt"), talk,
                         {ChatTemplate::kChatMl}, ids));
}
