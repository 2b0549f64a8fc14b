#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "launcher/verbs/verbs.h"

namespace shardrun::launcher {

int data(const DataOptions& options, const CommonOptions& common) {
  const auto installation = find_installation();
  if (!installation) return fail(installation.error(), common);
  std::vector<std::string> arguments{installation->rank_program,
                                     "data",
                                     "--tokenizer=" + options.tokenizer,
                                     "--output=" + options.output,
                                     fmt::format("--validation={}", options.validation),
                                     fmt::format("--seed={}", options.seed)};
  if (!options.chat_template.empty()) arguments.push_back("--template=" + options.chat_template);
  if (options.split_on_blank_lines) arguments.emplace_back("--split-on-blank-lines");
  if (common.json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), options.files.begin(), options.files.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  return fail(base::errno_error(base::Code::kIo, "starting " + installation->rank_program, errno), common);
}

}  // namespace shardrun::launcher
