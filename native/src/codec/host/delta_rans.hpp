// The phases of one segment of a coded changes section (docs/wire-format.md, section 11): symbols
// with contexts, raw bytes, values. The encoder goes through them in reverse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/delta_model.hpp"
#include "codec/host/rans.hpp"
#include "codec/host/rans_kernels.hpp"

namespace ciera::codec::host {

// Words grow downwards from the end of a region that has kEncodeSlackWords to spare.
struct RansWriter {
  alignas(32) std::uint32_t states[kRansLanes];
  std::uint16_t* top;

  explicit RansWriter(std::uint16_t* region_end) : top(region_end) {
    for (std::uint32_t& state : states) {
      state = kRansLow;
    }
  }
};

struct RansReader {
  alignas(32) std::uint32_t states[kRansLanes];
  const std::byte* next;
  const std::byte* end;
};

// A table of 256 symbols for each context, one after the other.
struct ContextEncoder {
  const RansEncodeSymbol* symbols;
  std::uint32_t prob_bits;
};
// A table of 2^prob_bits slots for each context.
struct ContextDecoder {
  const std::uint32_t* slots;
  std::uint32_t prob_bits;
};

void encode_symbols(const ContextEncoder& table, const std::uint8_t* contexts,
                    const std::uint8_t* symbols, std::size_t count, RansWriter& writer,
                    Isa isa = best_isa());
void encode_raw_bytes(const std::uint8_t* bytes, std::size_t count, RansWriter& writer);
// `symbols` are those of the values `u`, which are `word_bits` wide.
void encode_values(const ContextEncoder& table, const std::uint8_t* contexts,
                   const std::uint8_t* symbols, const std::byte* u, std::uint32_t word_bits,
                   std::size_t count, RansWriter& writer, Isa isa = best_isa());

// False when a word is missing.
bool decode_symbols(const ContextDecoder& table, const std::uint8_t* contexts, std::size_t count,
                    std::uint8_t* symbols, RansReader& reader, Isa isa = best_isa());
bool decode_raw_bytes(std::size_t count, std::uint8_t* bytes, RansReader& reader);
bool decode_values(const ContextDecoder& table, const std::uint8_t* contexts,
                   std::uint32_t word_bits, std::size_t count, std::byte* u, RansReader& reader,
                   Isa isa = best_isa());
// Whether no word is left over and every state is back where the encoder began.
bool finished(const RansReader& reader);

}  // namespace ciera::codec::host
