#include "ciera/types.hpp"

#include <array>
#include <utility>

namespace ciera {
namespace {

constexpr std::array kDtypes = {
    std::pair{DType::kBf16, "bf16"},         std::pair{DType::kFp16, "fp16"},
    std::pair{DType::kFp32, "fp32"},         std::pair{DType::kOpaque8, "opaque8"},
    std::pair{DType::kOpaque16, "opaque16"}, std::pair{DType::kOpaque32, "opaque32"},
    std::pair{DType::kOpaque64, "opaque64"}, std::pair{DType::kOpaque128, "opaque128"},
};
constexpr std::array kModes = {
    std::pair{ReuseMode::kOff, "off"},
    std::pair{ReuseMode::kExponentOnly, "exponent-only"},
    std::pair{ReuseMode::kExponentBlock, "exponent-block"},
    std::pair{ReuseMode::kExponentDelta, "exponent-delta"},
    std::pair{ReuseMode::kWordDelta, "word-delta"},
};
constexpr std::array kCoders = {
    std::pair{Coder::kRaw, "raw"},
    std::pair{Coder::kRans, "rans"},
    std::pair{Coder::kNvcompAns, "nvcomp-ans"},
};
constexpr std::array kEfforts = {std::pair{Effort::kDefault, "default"},
                                 std::pair{Effort::kHigh, "high"}};
constexpr std::array kVerdicts = {
    std::pair{Verdict::kOk, "ok"},
    std::pair{Verdict::kTruncated, "truncated"},
    std::pair{Verdict::kBadMagic, "bad_magic"},
    std::pair{Verdict::kBadVersion, "bad_version"},
    std::pair{Verdict::kBadFlags, "bad_flags"},
    std::pair{Verdict::kBadKind, "bad_kind"},
    std::pair{Verdict::kBadMode, "bad_mode"},
    std::pair{Verdict::kBadDtype, "bad_dtype"},
    std::pair{Verdict::kBadBlockSize, "bad_block_size"},
    std::pair{Verdict::kBadSections, "bad_sections"},
    std::pair{Verdict::kBadSizes, "bad_sizes"},
    std::pair{Verdict::kBadPadding, "bad_padding"},
    std::pair{Verdict::kBadChecksum, "bad_checksum"},
    std::pair{Verdict::kWrongShard, "wrong_shard"},
    std::pair{Verdict::kWrongNumel, "wrong_numel"},
    std::pair{Verdict::kWrongBase, "wrong_base"},
    std::pair{Verdict::kBadBitmap, "bad_bitmap"},
    std::pair{Verdict::kBadTable, "bad_table"},
    std::pair{Verdict::kBadStream, "bad_stream"},
};

template <class Table, class Value>
std::string_view name_in(const Table& table, Value wanted) {
  for (const auto& [entry, text] : table) {
    if (entry == wanted) {
      return text;
    }
  }
  return "unknown";
}

template <class Table>
auto value_in(const Table& table, std::string_view wanted)
    -> std::optional<typename Table::value_type::first_type> {
  for (const auto& [entry, text] : table) {
    if (wanted == text) {
      return entry;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(DType dtype) { return name_in(kDtypes, dtype); }
std::string_view name(ReuseMode mode) { return name_in(kModes, mode); }
std::string_view name(Coder coder) { return name_in(kCoders, coder); }
std::string_view name(Effort effort) { return name_in(kEfforts, effort); }
std::string_view name(Verdict verdict) { return name_in(kVerdicts, verdict); }

std::optional<ReuseMode> reuse_mode_from_name(std::string_view text) {
  return value_in(kModes, text);
}
std::optional<Coder> coder_from_name(std::string_view text) { return value_in(kCoders, text); }
std::optional<Effort> effort_from_name(std::string_view text) { return value_in(kEfforts, text); }
std::optional<DType> dtype_from_name(std::string_view text) { return value_in(kDtypes, text); }

}  // namespace ciera
