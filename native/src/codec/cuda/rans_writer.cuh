// The coder's lanes as the lanes of a warp (docs/wire-format.md, section 4).
#pragma once

#include "codec/cuda/block_ops.cuh"
#include "codec/cuda/table_kernels.cuh"

namespace ciera::codec::cuda {

// One step of 32 lanes: lanes whose state has reached entry.x write its low half, in lane order
// before `top`, and shift it out. Written in PTX so that store and shift are predicated and not
// branched to.
__device__ inline void emit_words(std::uint32_t& x, std::uint32_t& top, std::uint32_t limit,
                                  unsigned below, std::uint16_t* region) {
  asm volatile(
      "{\n"
      "  .reg .pred emits;\n"
      "  .reg .b32 mask, count;\n"
      "  .reg .b64 to;\n"
      "  setp.ge.u32 emits, %0, %2;\n"
      "  vote.sync.ballot.b32 mask, emits, 0xFFFFFFFF;\n"
      "  popc.b32 count, mask;\n"
      "  sub.u32 %1, %1, count;\n"
      "  and.b32 mask, mask, %3;\n"
      "  popc.b32 count, mask;\n"
      "  add.u32 count, count, %1;\n"
      "  mad.wide.u32 to, count, 2, %4;\n"
      "  @emits st.global.u16 [to], %0;\n"
      "  @emits shr.u32 %0, %0, 16;\n"
      "}"
      : "+r"(x), "+r"(top)
      : "r"(limit), "r"(below), "l"(region));
}

// Set in a count of words of which not all were kept.
inline constexpr std::uint32_t kSpilledBit = 0x80000000U;

// A segment that a warp codes, its words growing downwards from region[capacity]. Words that find
// no room are counted only.
class WarpWriter {
 public:
  __device__ WarpWriter(std::uint16_t* region, std::uint32_t capacity)
      : region_(region), capacity_(capacity), top_(capacity) {}

  // Before steps that emit up to `words` words.
  __device__ void make_room(std::uint32_t words) {
    if (top_ < words) {
      lost_ += capacity_ - top_;
      top_ = capacity_;
    }
  }
  __device__ void put(const uint4& entry, bool active) {
    emit_words(x_, top_, active ? entry.x : 0xFFFFFFFFU, below_, region_);
    const std::uint32_t quotient = __funnelshift_r(__umulhi(x_, entry.y), 0, entry.w);
    const std::uint32_t next = x_ + entry.z + quotient * (entry.w >> 5);
    x_ = active ? next : x_;
  }
  // The lowest `width` bits of `bits`, at most 15, the others zero; nothing when width is 0.
  __device__ void put_raw(std::uint32_t bits, std::uint32_t width) {
    emit_words(x_, top_, width == 0 ? 0xFFFFFFFFU : 1U << (31 - width), below_, region_);
    x_ = x_ << width | bits;
  }

  __device__ std::uint32_t state() const { return x_; }
  __device__ std::uint32_t words() const { return lost_ + capacity_ - top_; }
  __device__ bool spilled() const { return lost_ != 0; }

 private:
  std::uint16_t* region_;
  const std::uint32_t capacity_;
  const unsigned below_ = (1U << lane_id()) - 1;
  std::uint32_t top_;
  std::uint32_t lost_ = 0;
  std::uint32_t x_ = kRansLow;
};

}  // namespace ciera::codec::cuda
