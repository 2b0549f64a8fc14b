// Generates 10⁵ specs with the shell's and sbatch's own language in every field. Each is refused with a line,
// or its script is rendered, looked at line by line and executed by bash. A value that was read as language
// touches the canary.
#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <fmt/format.h>

#include "launcher/submit/remote.h"
#include "launcher/submit/script.h"
#include "launcher/submit/slurm_options.h"
#include "runtime/base/command.h"
#include "runtime/base/io.h"
#include "runtime/spec/job_spec.h"
#include "runtime/spec/toml_text.h"

using namespace shardrun;
namespace fs = std::filesystem;

namespace {

constexpr int kSpecs = 100'000;
constexpr const char* kShardrun = "/opt/shardrun/bin/shardrun";

// A folder that nobody but the canary is in.
class Cage {
 public:
  Cage() {
    std::string name = (fs::temp_directory_path() / "shardrun-hostile-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Cage() { fs::remove_all(path_); }
  Cage(const Cage&) = delete;
  Cage& operator=(const Cage&) = delete;
  const std::string& path() const { return path_; }
  bool canary_lives() const {
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.path().filename().string().find("canary") != std::string::npos) return false;
    }
    return true;
  }

 private:
  std::string path_;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  std::string spec() {
    // Most fields are benign in most specs, or none would be accepted.
    std::string text = "name = " + field("job", 20) + "\n[resources]\nnodes = 2\n";
    for (const char* key : {"partition", "account", "constraint", "exclude"}) {
      if (one_in(2)) text += fmt::format("{} = {}\n", key, field("main", 40));
    }
    if (one_in(3)) text += "time_limit = " + field("01:00:00", 40) + "\n";
    text += "[program]\ncommand = [" + field("env", 2) + ", " + field("x", 1) + ", " + field("y", 2) + "]\n";
    if (one_in(3)) {
      text += "[slurm]\nqos = " + field("high", 20) + "\ndependency = " + field("afterok:1", 20) + "\n";
      text += "comment = " + field("x", 2) + "\noptions = { begin = " + field("now", 2) + " }\n";
    }
    if (one_in(4)) {
      text += "[container]\nimage = " + field("x.sif", 2) + "\nmounts = [" + field("/a:/b", 30) + "]\n";
      text += "arguments = [" + field("--nv", 2) + "]\n";
    }
    text += "[logging]\ndirectory = " + field("runs/a-1", 12) + "\n";
    text += "[precompile]\ncommand = [" + field("env", 2) + "]\ncache = " + field("cache", 2) + "\n";
    text += fmt::format("[environment]\n{} = {}\n", one_in(40) ? spec::toml_string(hostile()) : "A",
                        field("b", 1));
    text += "B = { from_file = " + field("/s", 2) + " }\n";
    if (one_in(40)) text += spec::toml_string(hostile()) + " = 1\n";
    return text;
  }

  std::string hostile() {
    static constexpr std::array kPieces = {"$(touch canary)",
                                           "`touch canary`",
                                           ";touch canary;",
                                           "|touch canary",
                                           "&& touch canary",
                                           "\ntouch canary\n",
                                           "\n#SBATCH --wrap=touch${IFS}canary\n",
                                           "'; touch canary; '",
                                           "\"; touch canary; \"",
                                           "'",
                                           "\"",
                                           "\\",
                                           "\\\n",
                                           "\r\n",
                                           "\r",
                                           "\t",
                                           " ",
                                           "%j",
                                           "%x/../",
                                           "\\\\",
                                           "${IFS}",
                                           "$HOME",
                                           "~",
                                           "*",
                                           "?",
                                           "{a,b}",
                                           "!!",
                                           "#",
                                           ">canary",
                                           "<(touch canary)",
                                           "<<EOF\ntouch canary\nEOF\n",
                                           "$'\\x27'",
                                           "-",
                                           "--wrap=touch canary",
                                           "=",
                                           ",",
                                           "\x1b[2J",
                                           "\x7f",
                                           "a",
                                           "job",
                                           "ü",
                                           "\xe2\x80\xa8",
                                           "(",
                                           ")",
                                           "[",
                                           "]",
                                           "&",
                                           "2>canary",
                                           ":",
                                           "/",
                                           "../",
                                           "."};
    std::string text;
    for (int i = pick(4) + 1; i > 0; --i) text += kPieces[static_cast<size_t>(pick(kPieces.size()))];
    return text;
  }

 private:
  int pick(size_t below) { return static_cast<int>(random_() % below); }
  bool one_in(size_t n) { return pick(n) == 0; }
  // Returns a TOML string: hostile in one of `n` cases, and seldom with the control bytes that no field takes.
  std::string field(const std::string& benign, size_t n) {
    if (!one_in(n)) return spec::toml_string(benign);
    std::string text = hostile();
    if (!one_in(16))
      std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    return spec::toml_string(text);
  }

  std::mt19937_64 random_;
};

// Returns a line without what stands in the one pair of quotation marks that a folder may have in it.
std::string without_folder(const std::string& line) {
  const size_t begin = line.find('"'), end = line.rfind('"');
  if (begin == std::string::npos) return line;
  const std::string folder = line.substr(begin + 1, end - begin - 1);
  REQUIRE_EQ(folder.find_first_of("\"\\%"), std::string::npos);
  return line.substr(0, begin) + line.substr(end + 1);
}

// Accepts nothing but a shebang, options without blanks, one comment and one exec.
void check_lines(const std::string& script) {
  std::istringstream lines(script);
  std::string line;
  std::getline(lines, line);
  REQUIRE_EQ(line, "#!/bin/bash");
  int execs = 0, options = 0;
  while (std::getline(lines, line)) {
    if (line.starts_with("#SBATCH --")) {
      REQUIRE_EQ(without_folder(line).find_first_of(" \t\r'\"\\`$;", 8), std::string::npos);
      ++options;
    } else if (line.starts_with("exec '")) {
      ++execs;
    } else {
      REQUIRE_EQ(line, "# What runs is written in job.toml and plan.json of the run directory.");
    }
  }
  REQUIRE_EQ(execs, 1);
  REQUIRE_GE(options, 8);
}

// Returns what bash makes of all scripts: the words of each exec, between zero bytes.
std::string words_of_execs(const Cage& cage, const std::string& scripts) {
  const std::string program = cage.path() + "/all.sh", out = cage.path() + "/words";
  std::ofstream(program, std::ios::binary)
      << "exec() { printf '%s\\0' \"$@\"; printf '\\n'; }\nSLURM_JOB_ID=7\n"
      << scripts;
  const std::string command = fmt::format("cd '{}' && bash '{}' >'{}'", cage.path(), program, out);
  REQUIRE_EQ(std::system(command.c_str()), 0);
  auto words = base::read_file(out, uint64_t{1} << 30);
  REQUIRE(words);
  return std::move(words).value();
}

struct Rendered {
  std::string script, runs_directory;
  std::vector<std::string> words;     // what [slurm] adds to sbatch's argument vector
  std::vector<std::string> expected;  // and what it should
};

// Returns the script of a spec as `submit` makes it; nullopt when it is refused with a line.
std::optional<Rendered> render(const std::string& text, const std::string& working_directory) {
  const auto refuse = [](const base::Error& error) {
    REQUIRE(error.code() == base::Code::kInvalid);
    REQUIRE_EQ(error.to_string().find('\n'), std::string::npos);
    return std::nullopt;
  };
  const auto spec = spec::parse_job_spec(text, "job.toml");
  if (!spec) return refuse(spec.error());
  const fs::path runs = fs::path(working_directory) / spec->logging.directory;
  Rendered rendered;
  rendered.runs_directory = runs.lexically_normal().string() + "/" + spec->name;
  auto script =
      launcher::sbatch_script(*spec, {kShardrun, rendered.runs_directory, working_directory, "", 0});
  if (!script) return refuse(script.error());
  rendered.script = std::move(script).value();
  rendered.words = launcher::slurm_options(*spec);
  for (const auto& [option, value] :
       {std::pair("qos", &spec->slurm.qos), std::pair("comment", &spec->slurm.comment)})
    if (!value->empty()) rendered.expected.push_back(fmt::format("--{}={}", option, *value));
  for (const auto& [option, value] : spec->slurm.options)
    rendered.expected.push_back(fmt::format("--{}={}", option, value));
  return rendered;
}

}  // namespace

TEST_CASE(
    "hostile specs: of 10^5, each is refused or its script says exactly what it should, and the canary "
    "lives") {
  const Cage cage;
  Generator generator(20260101);
  std::string scripts, expected;
  int accepted = 0, refused = 0;
  for (int i = 0; i < kSpecs; ++i) {
    const std::string text = generator.spec();
    CAPTURE(text);
    const auto rendered = render(text, "/work");
    if (!rendered) {
      ++refused;
      continue;
    }
    ++accepted;
    check_lines(rendered->script);
    REQUIRE(rendered->words == rendered->expected);
    scripts += rendered->script;
    for (const std::string& word : {std::string(kShardrun), std::string("run"), std::string("--quiet"),
                                    std::string("--run-directory"), rendered->runs_directory + "/7"})
      expected += word + '\0';
    expected += '\n';
  }
  CHECK_GT(accepted, 10'000);
  CHECK_GT(refused, 10'000);

  const std::string words = words_of_execs(cage, scripts);

  CHECK(words == expected);
  CHECK(cage.canary_lives());
  MESSAGE(fmt::format("{} scripts executed, {} specs refused", accepted, refused));
}

TEST_CASE("hostile specs: hostile folders are refused, or arrive as one word") {
  const Cage cage;
  Generator generator(7);
  std::string scripts, expected;
  int accepted = 0;
  spec::JobSpec spec;
  spec.name = "job";
  for (int i = 0; i < 20'000; ++i) {
    const std::string runs = "/runs/" + generator.hostile(), program = "/bin/" + generator.hostile();
    const auto script = launcher::sbatch_script(spec, {program, runs, "/work", "", 0});
    if (!script) continue;
    ++accepted;
    scripts += *script;
    for (const std::string& word :
         {program, std::string("run"), std::string("--quiet"), std::string("--run-directory"), runs + "/7"})
      expected += word + '\0';
    expected += '\n';
  }
  CHECK_GT(accepted, 20);
  CHECK(words_of_execs(cage, scripts) == expected);
  CHECK(cage.canary_lives());
}

TEST_CASE("hostile specs: words for another machine arrive there as they are") {
  const Cage cage;
  Generator generator(11);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::string> words = {"printf", "%s\\n"};
    std::string expected;
    for (int k = 0; k < 20; ++k) {
      words.push_back(generator.hostile());
      expected += words.back() + "\n";
    }
    const auto argv = launcher::ssh_command({"host"}, words);
    REQUIRE_EQ(argv[argv.size() - 2], "host");
    // sshd gives the line to the login shell, in the home folder.
    const auto answer =
        base::run_command({"sh", "-c", "cd \"$0\" && exec sh -c \"$1\"", cage.path(), argv.back()});
    REQUIRE(answer);
    REQUIRE_EQ(answer->out, expected);
  }
  CHECK(cage.canary_lives());
  for (const char* host : {"-oProxyCommand=touch canary", "", "a b", "a;b", "$(id)"})
    CHECK_FALSE(launcher::check_host({host}));
  CHECK(launcher::check_host({"user@login-1.cluster"}));
}

TEST_CASE("hostile specs: the canary dies when a value is read as language, so the test can fail") {
  const Cage cage;
  words_of_execs(cage, "exec a $(touch canary)\n");
  CHECK_FALSE(cage.canary_lives());
}
