#include "codec/host/delta_rans.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"
#include "codec/host/delta_avx512.hpp"
#include "codec/host/delta_values.hpp"
#include "codec/host/rans_vectors.hpp"

namespace ciera::codec::host {
namespace {

void put_symbol(const RansEncodeSymbol& entry, std::uint32_t prob_bits, std::uint32_t& state,
                std::uint16_t*& top) {
  std::uint32_t x = state;
  const std::uint32_t rest = entry.packed >> 12 & 0x1FFF;
  const std::uint32_t frequency = (1U << prob_bits) - rest;
  if (x >= static_cast<std::uint64_t>(frequency) << (31 - prob_bits)) {
    *--top = static_cast<std::uint16_t>(x);
    x >>= 16;
  }
  const auto quotient = static_cast<std::uint32_t>(
      static_cast<std::uint64_t>(x) * entry.reciprocal >> (31 + (entry.packed >> 25)));
  state = x + (entry.packed & 0xFFF) + quotient * rest;
}

void put_raw(std::uint32_t bits, std::uint32_t width, std::uint32_t& x, std::uint16_t*& top) {
  if (x >= 1U << (31 - width)) {
    *--top = static_cast<std::uint16_t>(x);
    x >>= 16;
  }
  x = x << width | bits;
}

bool refill(std::uint32_t& x, RansReader& reader) {
  if (x < kRansLow) {
    if (reader.end - reader.next < 2) {
      return false;
    }
    x = x << 16 | base::load_le<std::uint16_t>(reader.next);
    reader.next += 2;
  }
  return true;
}

bool take_symbol(const ContextDecoder& table, std::uint8_t context, std::uint32_t lane,
                 RansReader& reader, std::uint8_t& symbol) {
  std::uint32_t& x = reader.states[lane];
  const std::uint32_t at = x & ((1U << table.prob_bits) - 1);
  const std::uint32_t slot =
      table.slots[(static_cast<std::uint32_t>(context) << table.prob_bits) + at];
  symbol = static_cast<std::uint8_t>(slot);
  x = ((slot >> 8 & 0xFFF) + 1) * (x >> table.prob_bits) + (slot >> 20);
  return refill(x, reader);
}

bool take_raw(std::uint32_t width, std::uint32_t lane, RansReader& reader, std::uint32_t& bits) {
  std::uint32_t& x = reader.states[lane];
  bits = x & ((1U << width) - 1);
  x >>= width;
  return refill(x, reader);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) __m256i load_states(const std::uint32_t* states) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(states));
}
__attribute__((target("avx2"))) void store_states(std::uint32_t* states, __m256i x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(states), x);
}

// `count` whole steps of 32 symbols.
__attribute__((target("avx2"))) void encode_steps_avx2(const ContextEncoder& table,
                                                       const std::uint8_t* contexts,
                                                       const std::uint8_t* symbols,
                                                       std::size_t steps, RansWriter& writer) {
  __m256i x[4];
  for (std::size_t v = 0; v < 4; ++v) {
    x[v] = load_states(writer.states + 8 * v);
  }
  std::uint16_t* top = writer.top;
  for (std::size_t i = 32 * steps; i > 0; i -= 32) {
    for (std::size_t v = 4; v-- > 0;) {
      const std::size_t at = i - 32 + 8 * v;
      const __m256i index = _mm256_or_si256(_mm256_slli_epi32(load_bytes(contexts + at), 8),
                                            load_bytes(symbols + at));
      x[v] = encode_vector(table.symbols, table.prob_bits, index, x[v], top);
    }
  }
  writer.top = top;
  for (std::size_t v = 0; v < 4; ++v) {
    store_states(writer.states + 8 * v, x[v]);
  }
}

// Whole steps of 32 symbols, as long as no step can run out of words; returns how many symbols.
__attribute__((target("avx2"))) std::size_t decode_steps_avx2(const ContextDecoder& table,
                                                              const std::uint8_t* contexts,
                                                              std::size_t count,
                                                              std::uint8_t* symbols,
                                                              RansReader& reader) {
  constexpr std::ptrdiff_t kReach = 2 * (kRansLanes + 8);
  const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(table.prob_bits));
  __m256i x[4];
  for (std::size_t v = 0; v < 4; ++v) {
    x[v] = load_states(reader.states + 8 * v);
  }
  const std::byte* next = reader.next;
  std::size_t done = 0;
  for (; count - done >= kRansLanes && reader.end - next >= kReach; done += kRansLanes) {
    __m256i slots[4];
    for (std::size_t v = 0; v < 4; ++v) {
      const __m256i base = _mm256_sll_epi32(load_bytes(contexts + done + 8 * v), bits);
      slots[v] = decode_vector(table.slots, table.prob_bits, base, next, x[v]);
    }
    store_symbols(symbols + done, slots[0], slots[1], slots[2], slots[3]);
  }
  reader.next = next;
  for (std::size_t v = 0; v < 4; ++v) {
    store_states(reader.states + 8 * v, x[v]);
  }
  return done;
}

#else

void encode_steps_avx2(const ContextEncoder&, const std::uint8_t*, const std::uint8_t*, std::size_t,
                       RansWriter&) {}
std::size_t decode_steps_avx2(const ContextDecoder&, const std::uint8_t*, std::size_t,
                              std::uint8_t*, RansReader&) {
  return 0;
}

#endif

// The lanes, of at most 32, whose symbols have extra bits.
std::uint32_t lanes_with_extra(const std::uint8_t* symbols, std::size_t lanes) {
  std::uint32_t mask = 0;
  for (std::size_t from = 0; from < lanes; from += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, symbols + from, std::min<std::size_t>(8, lanes - from));
    eight |= eight >> 1;
    eight = (eight >> 4 | eight >> 6) & 0x0101010101010101ULL;  // any of a byte's high four bits
    mask |= static_cast<std::uint32_t>(eight * 0x0102040810204080ULL >> 56) << from;
  }
  return mask;
}

// Symbols as words, which they are where there are no extra bits.
void store_symbols(const std::uint8_t* symbols, std::size_t count, std::byte* words,
                   std::uint32_t word_bits) {
  if (word_bits == 16) {  // most often; a loop that vectorises
    for (std::size_t i = 0; i < count; ++i) {
      base::store_le(words + 2 * i, std::uint16_t{symbols[i]});
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    store_word(words, word_bits, i, symbols[i]);
  }
}

bool take_extra(std::uint8_t symbol, std::uint32_t lane, std::uint32_t step, RansReader& reader,
                std::uint64_t& extra) {
  std::uint32_t bits = 0;
  const bool fine = take_raw(raw_step_bits(extra_bits_of(symbol), step), lane, reader, bits);
  extra |= std::uint64_t{bits} << (kRawBits * step);
  return fine;
}

}  // namespace

void encode_symbols(const ContextEncoder& table, const std::uint8_t* contexts,
                    const std::uint8_t* symbols, std::size_t count, RansWriter& writer, Isa isa) {
  const bool vectors = has_vectors(isa);
  const std::size_t whole = vectors ? count / kRansLanes * kRansLanes : 0;
  for (std::size_t i = count; i-- > whole;) {
    put_symbol(table.symbols[static_cast<std::size_t>(contexts[i]) << 8 | symbols[i]],
               table.prob_bits, writer.states[i % kRansLanes], writer.top);
  }
  if (isa == Isa::kAvx512) {
    encode_steps_avx512(table, contexts, symbols, whole / kRansLanes, writer);
  } else if (vectors) {
    encode_steps_avx2(table, contexts, symbols, whole / kRansLanes, writer);
  }
}

void encode_raw_bytes(const std::uint8_t* bytes, std::size_t count, RansWriter& writer) {
  for (std::size_t i = count; i-- > 0;) {
    put_raw(bytes[i], 8, writer.states[i % kRansLanes], writer.top);
  }
}

void encode_values(const ContextEncoder& table, const std::uint8_t* contexts,
                   const std::uint8_t* symbols, const std::byte* u, std::uint32_t word_bits,
                   std::size_t count, RansWriter& writer, Isa isa) {
  for (std::size_t step = (count + kRansLanes - 1) / kRansLanes; step-- > 0;) {
    const std::size_t from = step * kRansLanes;
    const std::size_t lanes = std::min<std::size_t>(kRansLanes, count - from);
    const std::uint32_t with_extra = lanes_with_extra(symbols + from, lanes);
    for (std::uint32_t raw = with_extra == 0 ? 0 : raw_steps(word_bits); raw-- > 0;) {
      for (std::uint32_t rest = with_extra; rest != 0;) {
        const std::uint32_t lane = bit_width(rest) - 1;
        rest ^= 1U << lane;
        const std::uint32_t width = raw_step_bits(extra_bits_of(symbols[from + lane]), raw);
        if (width != 0) {
          const std::uint64_t bits = load_word(u, word_bits, from + lane) >> (kRawBits * raw);
          put_raw(static_cast<std::uint32_t>(bits & ((1U << width) - 1)), width,
                  writer.states[lane], writer.top);
        }
      }
    }
    encode_symbols(table, contexts + from, symbols + from, lanes, writer, isa);
  }
}

bool decode_symbols(const ContextDecoder& table, const std::uint8_t* contexts, std::size_t count,
                    std::uint8_t* symbols, RansReader& reader, Isa isa) {
  std::size_t i = isa == Isa::kAvx512 ? decode_steps_avx512(table, contexts, count, symbols, reader)
                  : isa == Isa::kAvx2 ? decode_steps_avx2(table, contexts, count, symbols, reader)
                                      : 0;
  for (; i < count; ++i) {
    if (!take_symbol(table, contexts[i], i % kRansLanes, reader, symbols[i])) {
      return false;
    }
  }
  return true;
}

bool decode_raw_bytes(std::size_t count, std::uint8_t* bytes, RansReader& reader) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    if (!take_raw(8, i % kRansLanes, reader, bits)) {
      return false;
    }
    bytes[i] = static_cast<std::uint8_t>(bits);
  }
  return true;
}

bool decode_values(const ContextDecoder& table, const std::uint8_t* contexts,
                   std::uint32_t word_bits, std::size_t count, std::byte* u, RansReader& reader,
                   Isa isa) {
  for (std::size_t from = 0; from < count; from += kRansLanes) {
    const auto lanes = static_cast<std::uint32_t>(std::min<std::size_t>(kRansLanes, count - from));
    std::uint8_t symbols[kRansLanes];
    if (!decode_symbols(table, contexts + from, lanes, symbols, reader, isa)) {
      return false;
    }
    const std::uint32_t with_extra = lanes_with_extra(symbols, lanes);
    store_symbols(symbols, lanes, u + from * (word_bits / 8), word_bits);
    if (with_extra == 0) {
      continue;
    }
    std::uint64_t extra[kRansLanes] = {};
    bool fine = true;
    for (std::uint32_t raw = 0; raw < raw_steps(word_bits); ++raw) {
      for (std::uint32_t rest = with_extra; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
        fine = fine && take_extra(symbols[lane], lane, raw, reader, extra[lane]);
      }
    }
    for (std::uint32_t rest = with_extra; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
      store_word(u, word_bits, from + lane, value_of(symbols[lane], extra[lane]));
    }
    if (!fine) {
      return false;
    }
  }
  return true;
}

bool finished(const RansReader& reader) {
  return reader.next == reader.end &&
         std::ranges::all_of(reader.states, [](std::uint32_t x) { return x == kRansLow; });
}

}  // namespace ciera::codec::host
