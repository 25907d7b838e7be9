// One all-gather from PLAN to SETTLE. Each stage is a method; `run` is the state machine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/control_rows.hpp"
#include "pipeline/engine.hpp"
#include "pipeline/output_map.hpp"
#include "policy/segment_plan.hpp"

namespace ciera::pipeline {

class GatherCall {
 public:
  // `rejection`: the caller's binding found an error; the call only tells the peers.
  GatherCall(Engine& engine, GatherRequest request, std::optional<std::string> rejection = {});

  // Throws the call's Error. On return all outputs are complete.
  void run();
  // The caller's memory is needed no more.
  void let_go() { request_.owner.reset(); }
  const std::vector<std::span<std::byte>>& outputs() const { return outputs_; }

 private:
  struct Part {  // one segment of this rank's payload
    policy::SegmentPlan plan;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    codec::EncodeResult encoded;
  };

  struct Held {  // a segment's buffer, where the library owns one
    const cache::GatheredBuffer* buffer = nullptr;
    bool is_out = false;    // the segment's place in the outputs is the buffer
    bool in_place = false;  // src is this rank's part of the buffer
  };

  void run_stages();
  void validate_request();
  void lease();
  void learn_layout();
  void require_buffer_of(std::size_t segment, const std::vector<std::uint64_t>& numels);
  void map_outputs();
  void plan();
  void note_own_writes();
  void hold_buffers();
  void refuse_overlaps();
  void check_guards(std::size_t segment);
  void make_room(std::size_t segment);
  std::uint16_t held_words() const;
  void encode();
  std::vector<codec::EncodeJob> encode_jobs();
  bool claims_unchanged(std::size_t segment) const;
  void check_versions();
  void pack(const std::vector<codec::EncodeJob>& jobs);
  std::vector<SizeRow> agree(RowPhase phase, std::uint64_t payload_bytes);
  [[noreturn]] void throw_failed(const std::vector<SizeRow>& rows);
  [[noreturn]] void throw_disagreement();
  void exchange(const std::vector<SizeRow>& rows);
  void transfer(policy::ExchangeForm form, std::span<const std::byte> send,
                std::span<std::byte> recv, std::span<const std::uint64_t> counts,
                std::span<const std::uint64_t> offsets);
  void wait_exchange();
  VerdictRow decode();
  VerdictRow decode_timed();
  VerdictRow split_payloads();
  VerdictRow split_bare(std::size_t rank);
  void move_words_into_buffers();
  std::vector<codec::DecodeJob> decode_jobs();
  VerdictRow run_decode(std::vector<codec::DecodeJob>& jobs);
  void copy_bare_and_own();
  void copy_held(std::size_t segment);
  void settle(const VerdictRow& own_verdict);
  void commit();
  bool keep_own_words(std::size_t segment);
  void renew_guards(std::size_t segment);
  void count();
  void undo_new_shards();
  void fail(ErrorCode code, const std::string& text, std::size_t segment = 0);

  codec::FrameParams params(std::size_t segment, std::size_t rank) const;
  std::uint64_t call_digest() const;
  std::string describe_segment(std::size_t segment) const;
  std::span<const std::byte> src_part(std::size_t segment) const;
  std::span<const std::byte> own_reference(std::size_t segment) const;
  bool all_bare() const;

  Engine& engine_;
  std::shared_ptr<codec::CodecBackend> backend_;  // `owned_` is its memory, whoever goes first
  GatherRequest request_;
  ControlPlane control_;
  std::optional<Error> local_error_;
  bool rejected_ = false;  // by the caller's binding: what it would have gathered is not known
  std::vector<std::uint64_t> keys_;         // shard keys, one a segment
  std::vector<cache::ShardState*> states_;  // one a segment, once the layout is known
  std::vector<ShardId> new_shards_;         // added by this call, taken back if it is not agreed
  std::vector<std::uint64_t> src_offsets_;  // of each segment in src, and the end
  std::vector<Part> parts_;
  std::vector<Held> held_;         // one a segment
  std::uint16_t held_by_all_ = 0;  // held_words() of all ranks
  std::span<const std::byte> payload_;
  // What arrived: parts_of_[rank][segment], into recv_arena or (all bare, flat) into the output
  // itself.
  std::vector<std::vector<std::span<const std::byte>>> parts_of_;
  std::vector<std::span<const std::byte>> payload_of_;
  std::vector<std::vector<std::uint64_t>> digests_;  // [segment][rank], of the frames under way
  std::optional<OutputMap> output_map_;
  std::vector<Buffer> owned_;
  std::vector<std::span<std::byte>> outputs_;
  bool received_in_place_ = false;
  std::uint64_t sent_bytes_ = 0;     // of the exchange: the payload and what pads it
  bool exchange_on_stream_ = false;  // enqueued: only wait_exchange tells whether it succeeded
  std::shared_ptr<void> ready_;      // what the caller's stream held when the call was made
  std::uint64_t encode_ns_ = 0;
  std::uint64_t exchange_ns_ = 0;
  std::uint64_t decode_ns_ = 0;
};

}  // namespace ciera::pipeline
