// Single frames, for tests and offline tools: no communicator, no state.
#include <cstring>
#include <optional>
#include <vector>

#include "bindings.hpp"
#include "codec/host/frame_codec.hpp"
#include "codec/host/rans.hpp"
#include "pipeline/engine.hpp"

namespace ciera::bindings {

namespace py = pybind11;
namespace host = codec::host;

namespace {

struct FrameArguments {
  std::string mode;
  std::string coder;
  std::string dtype;
  std::uint32_t block_size;
  ShardId shard_id;
  std::uint64_t base_epoch;
  std::uint64_t base_digest;
  std::string effort = "default";
  std::uint32_t segment_log2 = 16;
  bool words_held = false;

  codec::FrameParams params(std::uint64_t numel) const {
    return {.mode = parse_reuse_mode(mode),
            .coder = parse_coder(coder),
            .dtype = parse_dtype(dtype),
            .block_size = block_size,
            .numel = numel,
            .shard_key = pipeline::key_of(shard_id),
            .base_epoch = base_epoch,
            .base_digest = base_digest,
            .segment_log2 = segment_log2,
            .effort = parse_effort(effort),
            .words_held = words_held};
  }
};

std::span<const std::byte> view(const py::bytes& bytes) {
  const std::string_view text(bytes);
  return std::as_bytes(std::span(text.data(), text.size()));
}

py::bytes to_bytes(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

py::tuple encode_frame(const py::bytes& src, const FrameArguments& arguments,
                       const py::bytes& hashes, const py::bytes& reference,
                       const std::optional<py::bytes>& words) {
  const auto input = view(src);
  const std::size_t width = element_bytes(parse_dtype(arguments.dtype));
  if (input.size() % width != 0) {
    throw Error(ErrorCode::kArgument, "src is not a whole number of elements");
  }
  const auto params = arguments.params(input.size() / width);
  const std::uint64_t blocks = codec::block_count(params.numel, params.block_size);
  std::vector<codec::BlockHash> old_hashes(view(hashes).size() / sizeof(codec::BlockHash));
  if (!old_hashes.empty()) {
    std::memcpy(old_hashes.data(), view(hashes).data(),
                old_hashes.size() * sizeof(codec::BlockHash));
  }
  std::vector<codec::BlockHash> new_hashes(params.mode == ReuseMode::kExponentBlock ? blocks : 0);
  std::vector<std::byte> frame(codec::max_frame_bytes(params));
  std::vector<std::byte> scratch(host::encode_scratch_bytes(params));
  const host::OwnReference own_words{words ? view(*words) : std::span<const std::byte>{}};
  auto result = host::encode_same(params, input, own_words, frame, nullptr);
  if (result) {
    new_hashes = old_hashes;
  } else if (params.mode >= ReuseMode::kExponentDelta) {
    result =
        host::encode(params, input, host::OwnReference{view(reference)}, frame, scratch, nullptr);
  } else {
    result = host::encode(params, input, old_hashes, new_hashes, frame, scratch, nullptr);
  }
  return py::make_tuple(to_bytes(frame.data(), result->frame_bytes),
                        to_bytes(new_hashes.data(), new_hashes.size() * sizeof(codec::BlockHash)));
}

py::tuple decode_frame(const py::bytes& frame, const FrameArguments& arguments, std::uint64_t numel,
                       const py::bytes& exponents, const std::optional<py::bytes>& held) {
  const auto params = arguments.params(numel);
  const auto known = view(exponents);
  std::vector<std::byte> cache(known.begin(), known.end());
  cache.resize(numel * codec::reference_bytes(params.mode, params.dtype));
  std::vector<std::byte> words(numel * element_bytes(params.dtype));
  if (held) {
    const auto before = view(*held);
    words.assign(before.begin(), before.end());
    words.resize(numel * element_bytes(params.dtype));
  }
  codec::FrameInfo info;
  Verdict verdict = host::check(params, view(frame), &info, nullptr);
  if (verdict == Verdict::kOk) {
    std::vector<std::byte> scratch(host::decode_scratch_bytes(params));
    verdict = host::decode(params, view(frame), cache, words, scratch, nullptr);
  }
  if (verdict != Verdict::kOk) {
    words.clear();
    cache.clear();
  }
  return py::make_tuple(std::string(name(verdict)), to_bytes(words.data(), words.size()),
                        to_bytes(cache.data(), cache.size()));
}

}  // namespace

void bind_codec(py::module_& module) {
  module.def(
      "encode_frame",
      [](const py::bytes& src, const std::string& mode, const std::string& coder,
         const std::string& dtype, std::uint32_t block_size, const ShardId& shard_id,
         std::uint64_t base_epoch, std::uint64_t base_digest, const py::bytes& hashes,
         const py::bytes& reference, const std::string& effort, std::uint32_t segment_log2,
         const std::optional<py::bytes>& words) {
        return encode_frame(src,
                            {mode, coder, dtype, block_size, shard_id, base_epoch, base_digest,
                             effort, segment_log2, words.has_value()},
                            hashes, reference, words);
      },
      py::arg("src"), py::kw_only(), py::arg("mode"), py::arg("coder"), py::arg("dtype"),
      py::arg("block_size"), py::arg("shard_id"), py::arg("base_epoch"), py::arg("base_digest"),
      py::arg("hashes"), py::arg("reference") = py::bytes(), py::arg("effort") = "default",
      py::arg("segment_log2") = 16, py::arg("words") = py::none());
  module.def(
      "decode_frame",
      [](const py::bytes& frame, const std::string& mode, const std::string& dtype,
         std::uint32_t block_size, std::uint64_t numel, const ShardId& shard_id,
         std::uint64_t base_epoch, std::uint64_t base_digest, const py::bytes& exponents,
         const std::optional<py::bytes>& words) {
        return decode_frame(frame,
                            {mode, "rans", dtype, block_size, shard_id, base_epoch, base_digest,
                             "default", 16, words.has_value()},
                            numel, exponents, words);
      },
      py::arg("frame"), py::kw_only(), py::arg("mode"), py::arg("dtype"), py::arg("block_size"),
      py::arg("numel"), py::arg("shard_id"), py::arg("base_epoch"), py::arg("base_digest"),
      py::arg("exponents"), py::arg("words") = py::none());
  module.def("cpu_features", [] {
    std::vector<std::string> features;  // those that the codec uses
    const codec::host::Isa best = codec::host::best_isa();
    if (best >= codec::host::Isa::kAvx2) {
      features.emplace_back("avx2");
    }
    if (best >= codec::host::Isa::kAvx512) {
      features.emplace_back("avx512");
    }
    return features;
  });
}

}  // namespace ciera::bindings
