#include "options.hpp"

#include <getopt.h>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

namespace ciera_perf {
namespace {

// Values of flags that have no short form.
enum LongFlag {
  kReuse = 256,
  kCoder,
  kEffort,
  kBlockSize,
  kThreads,
  kPlainBelow,
  kTrace,
  kShard,
  kChangeRate,
  kSeed,
  kJson,
  kBackend,
  kDevice,
  kOneGpu,
  kTimeout,
};

constexpr char kShortFlags[] = ":b:e:f:i:n:w:g:c:d:h";
const option kLongFlags[] = {
    {"minbytes", required_argument, nullptr, 'b'},
    {"maxbytes", required_argument, nullptr, 'e'},
    {"stepfactor", required_argument, nullptr, 'f'},
    {"stepbytes", required_argument, nullptr, 'i'},
    {"iters", required_argument, nullptr, 'n'},
    {"warmup_iters", required_argument, nullptr, 'w'},
    {"ngpus", required_argument, nullptr, 'g'},
    {"check", required_argument, nullptr, 'c'},
    {"datatype", required_argument, nullptr, 'd'},
    {"help", no_argument, nullptr, 'h'},
    {"reuse", required_argument, nullptr, kReuse},
    {"coder", required_argument, nullptr, kCoder},
    {"effort", required_argument, nullptr, kEffort},
    {"block-size", required_argument, nullptr, kBlockSize},
    {"threads", required_argument, nullptr, kThreads},
    {"plain-below", required_argument, nullptr, kPlainBelow},
    {"trace", required_argument, nullptr, kTrace},
    {"shard", required_argument, nullptr, kShard},
    {"change-rate", required_argument, nullptr, kChangeRate},
    {"seed", required_argument, nullptr, kSeed},
    {"json", required_argument, nullptr, kJson},
    {"backend", required_argument, nullptr, kBackend},
    {"device", required_argument, nullptr, kDevice},
    {"one-gpu", no_argument, nullptr, kOneGpu},
    {"timeout", required_argument, nullptr, kTimeout},
    {nullptr, 0, nullptr, 0},
};

[[noreturn]] void refuse(const std::string& flag, const std::string& given,
                         const std::string& want) {
  throw UsageError(flag + " " + given + ": give " + want);
}

// A whole decimal number; `want` says which ones may be given.
std::uint64_t number(const std::string& flag, const std::string& text, const std::string& want,
                     std::uint64_t lowest,
                     std::uint64_t highest = std::numeric_limits<std::uint64_t>::max()) {
  char* end = nullptr;
  errno = 0;
  const std::uint64_t parsed = std::strtoull(text.c_str(), &end, 10);
  const bool digits = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0;
  if (!digits || *end != '\0' || errno != 0 || parsed < lowest || parsed > highest) {
    refuse(flag, text, want);
  }
  return parsed;
}

std::uint64_t byte_count(const std::string& flag, const std::string& text) {
  static const std::map<char, int> kShifts = {{'K', 10}, {'M', 20}, {'G', 30}};
  const std::string want = "bytes, as 4096, 64K, 32M or 1G";
  if (text.empty()) {
    refuse(flag, text, want);
  }
  const auto unit = kShifts.find(static_cast<char>(std::toupper(text.back())));
  if (unit == kShifts.end()) {
    return number(flag, text, want, 1);
  }
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() >> unit->second;
  return number(flag, text.substr(0, text.size() - 1), want, 1, most) << unit->second;
}

double real(const std::string& flag, const std::string& text, const std::string& want,
            double lowest, double highest) {
  char* end = nullptr;
  const double parsed = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(parsed >= lowest && parsed <= highest)) {
    refuse(flag, text, want);
  }
  return parsed;
}

// The value that `known` names.
template <typename T>
T word(const std::string& flag, const std::string& text, const std::map<std::string, T>& known) {
  const auto found = known.find(text);
  if (found == known.end()) {
    std::string want;
    for (const auto& [name, unused] : known) {
      want += (want.empty() ? "" : ", ") + name;
    }
    refuse(flag, text, "one of " + want);
  }
  return found->second;
}

const std::map<std::string, ciera::DType> kDtypes = {{"bfloat16", ciera::DType::kBf16},
                                                     {"half", ciera::DType::kFp16},
                                                     {"float", ciera::DType::kFp32}};

void take_nccl_flag(PerfOptions& options, int flag, const std::string& text) {
  const std::string name = std::string("-") + static_cast<char>(flag);
  switch (flag) {
    case 'b':
      options.min_bytes = byte_count(name, text);
      break;
    case 'e':
      options.max_bytes = byte_count(name, text);
      break;
    case 'f':
      options.step_factor = number(name, text, "a whole number of 1 or more", 1);
      break;
    case 'i':
      options.step_bytes = byte_count(name, text);
      break;
    case 'n':
      options.iterations = number(name, text, "1 iteration or more", 1);
      break;
    case 'w':
      options.warm_up = number(name, text, "a number of iterations", 0);
      break;
    case 'g':
      number(name, text, "1 (a process drives one GPU; start more processes with mpirun)", 1, 1);
      break;
    case 'c':
      options.check = number(name, text, "0 or 1", 0, 1) == 1;
      break;
    case 'd':
      options.dtype = word(name, text, kDtypes);
      break;
    default:
      options.help = true;
  }
}

void take_own_flag(PerfOptions& options, int flag, const std::string& name,
                   const std::string& text) {
  switch (flag) {
    case kReuse:
      if (const auto mode = ciera::reuse_mode_from_name(text)) {
        options.reuse = *mode;
        break;
      }
      refuse(name, text, "off, exponent-only, exponent-block, exponent-delta or word-delta");
    case kCoder:
      if (const auto coder = ciera::coder_from_name(text)) {
        options.coder = *coder;
        break;
      }
      refuse(name, text, "raw, rans or nvcomp-ans");
    case kEffort:
      if (const auto effort = ciera::effort_from_name(text)) {
        options.effort = *effort;
        break;
      }
      refuse(name, text, "default or high");
    case kBlockSize:
      options.block_size =
          static_cast<std::uint32_t>(number(name, text, "8 to 65536 values", 8, 65536));
      break;
    case kThreads:
      options.threads = number(name, text, "1 to 1024, or 0 for cores / ranks", 0, 1024);
      break;
    case kPlainBelow:
      options.plain_below = number(name, text, "bytes of a rank", 0);
      break;
    case kTrace:
      options.trace = text;
      break;
    case kShard:
      options.shard = text;
      break;
    case kChangeRate:
      options.change_rate = real(name, text, "a fraction from 0 to 1", 0, 1);
      break;
    case kSeed:
      options.seed = number(name, text, "a whole number", 0);
      break;
    case kJson:
      options.json = text;
      break;
    case kBackend:
      options.backend = word<ciera::Backend>(
          name, text, {{"host", ciera::Backend::kHost}, {"cuda", ciera::Backend::kCuda}});
      break;
    case kDevice:
      options.device = static_cast<int>(number(name, text, "a GPU's number", 0, 1023));
      break;
    case kOneGpu:
      options.one_gpu = true;
      break;
    default:
      options.timeout_s = real(name, text, "0.001 to 1000000 seconds", 0.001, 1e6);
  }
}

void check_together(const PerfOptions& options) {
  if (options.max_bytes < options.min_bytes) {
    throw UsageError("-e " + std::to_string(options.max_bytes) + ": give -b or more, which is " +
                     std::to_string(options.min_bytes));
  }
  if (options.block_size % 8 != 0) {
    refuse("--block-size", std::to_string(options.block_size), "a multiple of 8");
  }
}

}  // namespace

PerfOptions parse_options(int argc, char** argv) {
  PerfOptions options;
  opterr = 0;  // every rank parses, one speaks
  int index = 0;
  for (int flag = 0; (flag = getopt_long(argc, argv, kShortFlags, kLongFlags, &index)) != -1;) {
    const std::string given = argv[optind - 1];
    if (flag == '?' || flag == ':') {
      throw UsageError(given + (flag == '?' ? ": unknown flag" : ": needs a value") +
                       "; --help lists the flags");
    }
    const std::string text = optarg == nullptr ? "" : optarg;
    if (flag < kReuse) {
      take_nccl_flag(options, flag, text);
    } else {
      take_own_flag(options, flag, std::string("--") + kLongFlags[index].name, text);
    }
  }
  if (optind < argc) {
    throw UsageError(std::string(argv[optind]) + ": not a flag; --help lists the flags");
  }
  check_together(options);
  return options;
}

std::string help_text() {
  return R"(usage: mpirun -n RANKS ciera_perf [flags]
Times CIERA's all-gather against a plain one, in turn, on words that train.

Flags of nccl-tests
  -b, --minbytes N       smallest gathered buffer, K, M and G allowed (32M)
  -e, --maxbytes N       largest (32M)
  -f, --stepfactor N     factor from size to size (1: add -i instead)
  -i, --stepbytes N      bytes from size to size (1M)
  -n, --iters N          timed iterations a size (20)
  -w, --warmup_iters N   iterations before them; the first sends a key frame (5)
  -g, --ngpus 1          GPUs a process; 1 only
  -c, --check 0|1        compare every element of every iteration (1)
  -d, --datatype T       bfloat16, half or float (bfloat16)
CIERA
  --reuse MODE           off, exponent-only, exponent-block, exponent-delta or word-delta
                         (exponent-block)
  --coder C              raw, rans or, on a GPU, nvcomp-ans (rans)
  --effort E             of the delta modes: default, or high for slow links (default)
  --block-size N         values a block (512)
  --threads N            codec threads a rank (0: cores / ranks)
  --plain-below BYTES    a rank's bytes below which CIERA hands over to the plain call
                         (measured over NCCL, 0 elsewhere)
Data
  --trace FILE           .npz of XOR differences; without it synthetic words
  --shard NAME           which array of it (expert_ffn)
  --change-rate R        synthetic: fraction of words that move a step (0.05)
  --seed N               (1)
Run
  --json FILE            a JSON object a size; - for stdout instead of the table
  --backend host|cuda    memory and codec (host)
  --device N             GPU of every rank (default: the rank's number on its host)
  --one-gpu              all ranks on one GPU: NCCL is told they are hosts of their own
  --timeout S            deadline of a call in seconds (600)
  -h, --help             this text
)";
}

std::vector<std::uint64_t> sizes_of(const PerfOptions& options) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t size = options.min_bytes;
  for (;;) {
    sizes.push_back(size);
    const std::uint64_t left = options.max_bytes - size;
    if (options.step_factor > 1) {
      if (size > options.max_bytes / options.step_factor) {
        return sizes;
      }
      size *= options.step_factor;
    } else {
      if (options.step_bytes > left) {
        return sizes;
      }
      size += options.step_bytes;
    }
  }
}

std::string dtype_word(ciera::DType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) {
      return name;
    }
  }
  return "?";
}

}  // namespace ciera_perf
