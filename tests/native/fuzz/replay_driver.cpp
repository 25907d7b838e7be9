// Runs the fuzz target without a fuzzing engine: every file given, and seeded mutations of each.
//   replay_driver MUTATIONS DIRECTORY...
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::uint8_t> mutate(std::vector<std::uint8_t> bytes, std::mt19937& random) {
  const auto changes = static_cast<unsigned>(1 + random() % 4);
  for (unsigned i = 0; i < changes && !bytes.empty(); ++i) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] ^= static_cast<std::uint8_t>(1U << random() % 8);
        break;
      case 1:
        bytes[at] = static_cast<std::uint8_t>(random() % 2 == 0 ? 0xFF : 0);
        break;
      case 2:
        bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     static_cast<std::uint8_t>(random()));
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: replay_driver MUTATIONS DIRECTORY...\n");
    return 2;
  }
  const int mutations = std::atoi(argv[1]);
  std::mt19937 random(20261201);
  std::size_t inputs = 0;
  for (int i = 2; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.path().extension() != ".frame") {
        continue;
      }
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      for (int m = 0; m < mutations; ++m) {
        const auto mutated = mutate(bytes, random);
        LLVMFuzzerTestOneInput(mutated.data(), mutated.size());
      }
      inputs += 1 + static_cast<std::size_t>(mutations);
    }
  }
  std::printf("seed 20261201: %zu inputs, contract held\n", inputs);
  return inputs == 0 ? 1 : 0;
}
