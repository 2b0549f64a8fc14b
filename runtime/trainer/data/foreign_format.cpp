#include "runtime/trainer/data/foreign_format.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace shardrun::data {
namespace {

using std::string_view_literals::operator""sv;

struct Format {
  std::string_view begins, what, mend;
};
constexpr std::string_view kFromParquet =
    "write its rows as JSON lines, in Python: pandas.read_parquet(\"NAME.parquet\").to_json(\"NAME.jsonl\", "
    "orient=\"records\", lines=True)";
constexpr std::string_view kFromArrow =
    "write its rows as JSON lines, in Python: datasets.load_from_disk(\"FOLDER\").to_json(\"NAME.jsonl\")";
constexpr std::string_view kPacked =
    "`shardrun data` reads NAME.jsonl.gz and .zst, and writes token files, which a job reads";
// An Arrow stream begins with its mark of a message, four bytes that no UTF-8 has.
constexpr std::array<Format, 7> kFormats{{{"PAR1"sv, "a Parquet file", kFromParquet},
                                          {"ARROW1"sv, "an Arrow file", kFromArrow},
                                          {"\xff\xff\xff\xff"sv, "an Arrow file", kFromArrow},
                                          {"\x1f\x8b"sv, "compressed by gzip", kPacked},
                                          {"\x28\xb5\x2f\xfd"sv, "compressed by zstd", kPacked},
                                          {"\xfd\x37zXZ\0"sv, "compressed by xz", kPacked},
                                          {"PK\x03\x04"sv, "a zip archive", kPacked}}};

}  // namespace

base::Result<void> refuse_foreign_format(std::span<const std::byte> bytes, const std::string& path,
                                         const std::string& key) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Format& format : kFormats) {
    if (text.starts_with(format.begins))
      return base::Error(base::Code::kInvalid, fmt::format("{}: {} is {}, which is no text; {}", key, path,
                                                           format.what, format.mend));
  }
  return {};
}

}  // namespace shardrun::data
