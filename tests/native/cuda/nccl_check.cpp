// One rank of the transport contract over real NCCL. Started by bench/one_gpu.sh:
//   bench/one_gpu.sh 3 build/tests/tests/native/cuda/nccl_check MEETING_FILE
// Rank 0 leaves the unique id in MEETING_FILE, which must not exist before. Exit status 77: no GPU.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ciera/error.hpp"
#include "ciera/nccl.hpp"
#include "exec/cuda_check.hpp"

namespace ciera {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::uint64_t>;

constexpr int kSkipped = 77;
constexpr std::uint64_t kGap = 16;
constexpr std::byte kUntouched{0xEE};

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error("not so: " + what);
  }
}

// Bytes that differ between ranks, places and calls.
Bytes pattern(std::uint32_t rank, std::uint64_t count) {
  Bytes bytes(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + rank * 7 + count) % 251);
  }
  return bytes;
}

// GPU memory with the same bytes as a vector.
class DeviceBytes {
 public:
  explicit DeviceBytes(const Bytes& bytes) : size_(bytes.size()) {
    CIERA_CUDA_TRY(cudaMalloc(&memory_, size_ + 1));
    CIERA_CUDA_TRY(cudaMemcpy(memory_, bytes.data(), size_, cudaMemcpyHostToDevice));
    // The copy may still be on its way, and the stream under test does not wait for this one.
    CIERA_CUDA_TRY(cudaStreamSynchronize(nullptr));
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::span<std::byte> span() { return {static_cast<std::byte*>(memory_), size_}; }
  Bytes read() const {
    Bytes bytes(size_);
    CIERA_CUDA_TRY(cudaMemcpy(bytes.data(), memory_, size_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  std::size_t size_;
  void* memory_ = nullptr;
};

// Slots of all ranks with gaps between them, and what recv must hold before and after.
struct Layout {
  Layout(std::uint32_t world, std::uint32_t rank, std::uint64_t size, bool equal) {
    for (std::uint32_t r = 0; r < world; ++r) {
      counts.push_back(equal ? size : (r == 1 ? 0 : size + 7 * r));
      offsets.push_back(before.size());
      before.resize(before.size() + counts[r] + (equal ? 0 : kGap), kUntouched);
    }
    after = before;
    for (std::uint32_t r = 0; r < world; ++r) {
      const Bytes bytes = pattern(r, counts[r]);
      std::copy(bytes.begin(), bytes.end(),
                after.begin() + static_cast<std::ptrdiff_t>(offsets[r]));
    }
    own = pattern(rank, counts[rank]);
  }

  Counts counts;
  Counts offsets;
  Bytes before;
  Bytes after;
  Bytes own;
};

void gather(Transport& transport, std::span<const std::byte> send, std::span<std::byte> recv,
            const Layout& layout, bool equal) {
  if (equal) {
    transport.allgather(send, recv);
  } else {
    transport.allgatherv(send, recv, layout.counts, layout.offsets);
  }
}

void gather_on(Transport& transport, DeviceStream stream, std::span<const std::byte> send,
               std::span<std::byte> recv, const Layout& layout, bool equal) {
  if (equal) {
    transport.allgather_on(stream, send, recv);
  } else {
    transport.allgatherv_on(stream, send, recv, layout.counts, layout.offsets);
  }
  transport.wait_stream(stream);
}

// Host and device memory, apart and in place, equal sizes and counts with gaps.
void check_contract(Transport& transport, DeviceStream stream) {
  const std::uint32_t rank = value(transport.rank());
  const std::uint32_t world = value(transport.world_size());
  for (const std::uint64_t size : {0UL, 1UL, 32UL, 4099UL, 5'000'011UL}) {
    for (const bool equal : {true, false}) {
      const Layout layout(world, rank, size, equal);
      const std::string what = "size " + std::to_string(size) + (equal ? " equal" : " counts");
      Bytes recv = layout.before;
      gather(transport, layout.own, recv, layout, equal);
      require(recv == layout.after, what + ", host");
      Bytes in_place = layout.before;
      const auto slot = std::span(in_place).subspan(layout.offsets[rank], layout.own.size());
      std::copy(layout.own.begin(), layout.own.end(), slot.begin());
      DeviceBytes in_place_dev(in_place);
      gather(transport, slot, in_place, layout, equal);
      require(in_place == layout.after, what + ", host in place");

      DeviceBytes send_dev(layout.own);
      DeviceBytes recv_dev(layout.before);
      gather_on(transport, stream, send_dev.span(), recv_dev.span(), layout, equal);
      require(recv_dev.read() == layout.after, what + ", device");
      gather_on(transport, stream,
                in_place_dev.span().subspan(layout.offsets[rank], layout.own.size()),
                in_place_dev.span(), layout, equal);
      require(in_place_dev.read() == layout.after, what + ", device in place");
    }
  }
}

double row_exchange_us(Transport& transport) {
  constexpr int kRounds = 200;
  Bytes recv(32 * value(transport.world_size()));
  const Bytes send(32);
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    transport.allgather(send, recv);
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kRounds;
}

// Rank 0 calls alone: it must be told within its deadline, and again at once by the next call.
void check_missing_peer(Transport& transport) {
  Bytes recv(64 * value(transport.world_size()));
  const Bytes send(64);
  for (int calls = 0; calls < 2; ++calls) {
    try {
      transport.allgather(send, recv);
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kDeadline,
              std::string("a deadline, but: ") + error.what());
      continue;
    }
    require(false, "a call without peers throws");
  }
}

NcclUniqueId meet(const std::filesystem::path& file, std::uint32_t rank,
                  std::chrono::seconds timeout) {
  NcclUniqueId id{};
  if (rank == 0) {
    id = make_nccl_unique_id();
    const std::filesystem::path draft = file.string() + ".draft";
    std::ofstream(draft, std::ios::binary)
        .write(reinterpret_cast<const char*>(id.bytes.data()), std::ssize(id.bytes));
    std::filesystem::rename(draft, file);  // peers see a whole id or none
    return id;
  }
  const auto deadline = Clock::now() + timeout;
  while (!std::filesystem::exists(file)) {
    require(Clock::now() < deadline, "rank 0 leaves its id in " + file.string());
    std::this_thread::yield();
  }
  std::ifstream(file, std::ios::binary)
      .read(reinterpret_cast<char*>(id.bytes.data()), std::ssize(id.bytes));
  return id;
}

std::uint32_t number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  require(text != nullptr, std::string(name) + " is set; start this with bench/one_gpu.sh");
  return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

int run(const char* meeting_file) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("nccl_check: no GPU, nothing was checked");
    return kSkipped;
  }
  const std::uint32_t rank = number_from_environment("RANK");
  const std::uint32_t world = number_from_environment("WORLD_SIZE");
  const auto timeout = std::chrono::seconds(60);
  std::printf("%s\n", nccl_library().detail.c_str());
  const NcclUniqueId id = meet(meeting_file, rank, timeout);
  cudaStream_t stream = nullptr;
  CIERA_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    const auto transport = make_nccl(id, Rank{rank}, WorldSize{world}, 0, timeout);
    check_contract(*transport, {stream});
    std::printf("row exchange: %.1f us\n", row_exchange_us(*transport));
  }
  CIERA_CUDA_TRY(cudaStreamDestroy(stream));
  std::puts("contract kept");
  return 0;
}

// A communicator of its own, since it is broken afterwards.
int run_missing_peer(const char* meeting_file) {
  const std::uint32_t rank = number_from_environment("RANK");
  const std::uint32_t world = number_from_environment("WORLD_SIZE");
  const NcclUniqueId id = meet(meeting_file, rank, std::chrono::seconds(60));
  const auto transport = make_nccl(id, Rank{rank}, WorldSize{world}, 0,
                                   rank == 0 ? std::chrono::seconds(15) : std::chrono::seconds(60));
  Bytes recv(world);
  transport->allgather(Bytes(1), recv);
  const std::filesystem::path over = std::string(meeting_file) + ".over";
  if (rank == 0) {
    check_missing_peer(*transport);
    std::ofstream(over).put('\n');
    std::puts("deadline kept");
  }
  while (!std::filesystem::exists(over)) {
    std::this_thread::yield();  // present, but not calling
  }
  return 0;
}

}  // namespace
}  // namespace ciera

int main(int argc, char** argv) {
  try {
    if (argc != 2) {
      std::fputs("usage: nccl_check MEETING_FILE\n", stderr);
      return 2;
    }
    const int status = ciera::run(argv[1]);
    return status != 0 ? status : ciera::run_missing_peer((std::string(argv[1]) + ".2").c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_check: %s\n", error.what());
    return 1;
  }
}
