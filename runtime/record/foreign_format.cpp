#include "runtime/record/foreign_format.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::record {
namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::string_view begins, what, mend;
  size_t at = 0;  // where in the file `begins` stands
};
constexpr std::string_view kFromParquet =
    "write its rows as JSON lines, in Python: pandas.read_parquet(\"NAME.parquet\").to_json(\"NAME.jsonl\", "
    "orient=\"records\", lines=True)";
constexpr std::string_view kFromArrow =
    "write its rows as JSON lines, in Python: datasets.load_from_disk(\"FOLDER\").to_json(\"NAME.jsonl\")";
constexpr std::string_view kPacked =
    "`shardrun data` reads NAME.jsonl.gz and .zst, and writes token files, which a job reads";
constexpr std::string_view kFromUtf16 = "write it in UTF-8: iconv -f UTF-16 -t UTF-8 NAME > NEW";
// An Arrow stream begins with its mark of a message, four bytes that no UTF-8 has. bzip2's level stands before its mark of a block.
constexpr std::array<Format, 10> kFormats{{{"PAR1"sv, "a Parquet file", kFromParquet},
                                           {"ARROW1"sv, "an Arrow file", kFromArrow},
                                           {"\xff\xff\xff\xff"sv, "an Arrow file", kFromArrow},
                                           {"\x1f\x8b"sv, "compressed by gzip", kPacked},
                                           {"\x28\xb5\x2f\xfd"sv, "compressed by zstd", kPacked},
                                           {"\xfd\x37zXZ\0"sv, "compressed by xz", kPacked},
                                           {"1AY&SY"sv, "compressed by bzip2", kPacked, 4},
                                           {"PK\x03\x04"sv, "a zip archive", kPacked},
                                           {"\xff\xfe"sv, "in UTF-16", kFromUtf16},
                                           {"\xfe\xff"sv, "in UTF-16", kFromUtf16}}};

}  // namespace

base::Result<void> refuse_foreign_format(std::span<const std::byte> bytes, const std::string& path,
                                         const std::string& key) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Format& format : kFormats) {
    if (text.substr(std::min(format.at, text.size())).starts_with(format.begins))
      return base::Error(base::Code::kInvalid, fmt::format("{}: {} is {}, which is no text; {}", key, path,
                                                           format.what, format.mend));
  }
  if (const size_t zero = text.substr(0, kFormatBytes).find('\0'); zero != text.npos)
    return base::Error(
        base::Code::kInvalid,
        fmt::format("{}: {} has a zero byte, at {}, which no text has; name text in UTF-8, or the "
                    "token files that `shardrun data` makes of it",
                    key, path, zero));
  return {};
}

}  // namespace shardrun::record
