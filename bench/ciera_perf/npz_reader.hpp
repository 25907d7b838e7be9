// Reads one 2-D array out of an .npz archive (zip of .npy files, stored or deflated).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ciera_perf {

// Little-endian unsigned words, row-major.
struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::byte> words{};
};

// The array `name` of words of `word_bytes` bytes. Throws std::runtime_error, one line naming the
// file, when it is missing, damaged, encrypted, beyond 4 GiB, or the array is absent or of another
// type or shape.
Matrix read_npz(const std::string& path, const std::string& name, std::size_t word_bytes);

}  // namespace ciera_perf
