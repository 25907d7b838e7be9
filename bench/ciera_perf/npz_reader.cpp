#include "npz_reader.hpp"

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <regex>
#include <span>
#include <stdexcept>

namespace ciera_perf {
namespace {

using Bytes = std::span<const std::byte>;

// Sizes and signatures of the zip records that matter (APPNOTE 4.3.7, 4.3.12, 4.3.16).
constexpr std::uint32_t kLocalSignature = 0x04034b50;
constexpr std::uint32_t kCentralSignature = 0x02014b50;
constexpr std::uint32_t kEndSignature = 0x06054b50;
constexpr std::size_t kLocalBytes = 30;
constexpr std::size_t kCentralBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kDeflated = 8;

class NpzFile {
 public:
  explicit NpzFile(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      fail("cannot be opened");
    }
    const std::vector<char> raw{std::istreambuf_iterator<char>(file), {}};
    const Bytes view = std::as_bytes(std::span(raw));
    data_.assign(view.begin(), view.end());
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error(path_ + ": " + why);
  }

  // The content of the entry `name`; fails with the names there are when it is absent.
  std::vector<std::byte> entry(const std::string& name) const {
    const std::size_t end = end_record();
    std::size_t at = u32(end + 16);
    std::string names;
    for (std::size_t left = u16(end + 10); left > 0; --left) {
      if (u32(at) != kCentralSignature) {
        fail("damaged zip directory");
      }
      const std::size_t name_bytes = u16(at + 28);
      const Bytes raw_name = part(at + kCentralBytes, name_bytes);
      const std::string found(reinterpret_cast<const char*>(raw_name.data()), raw_name.size());
      if (found == name) {
        return content(at);
      }
      names += " " + found;
      at += kCentralBytes + name_bytes + u16(at + 30) + u16(at + 32);
    }
    fail("no entry " + name + "; it holds" + names);
  }

 private:
  Bytes part(std::size_t at, std::size_t bytes) const {
    if (at > data_.size() || bytes > data_.size() - at) {
      fail("truncated");
    }
    return Bytes(data_).subspan(at, bytes);
  }
  std::uint32_t little_endian(std::size_t at, std::size_t bytes) const {
    std::uint32_t value = 0;
    for (std::size_t i = bytes; i > 0; --i) {
      value = value << 8 | std::to_integer<std::uint32_t>(part(at, bytes)[i - 1]);
    }
    return value;
  }
  std::uint16_t u16(std::size_t at) const {
    return static_cast<std::uint16_t>(little_endian(at, 2));
  }
  std::uint32_t u32(std::size_t at) const { return little_endian(at, 4); }

  // The end record stands last, before a comment of up to 65535 bytes.
  std::size_t end_record() const {
    if (data_.size() < kEndBytes) {
      fail("not an .npz archive");
    }
    const std::size_t last = data_.size() - kEndBytes;
    for (std::size_t back = 0; back <= 65535 && back <= last; ++back) {
      if (u32(last - back) == kEndSignature) {
        return last - back;
      }
    }
    fail("not an .npz archive");
  }

  std::vector<std::byte> content(std::size_t central) const {
    const std::uint16_t flags = u16(central + 8);
    const std::uint16_t method = u16(central + 10);
    const std::uint32_t packed = u32(central + 20);
    const std::uint32_t unpacked = u32(central + 24);
    const std::size_t local = u32(central + 42);
    if (packed == UINT32_MAX || unpacked == UINT32_MAX || local == UINT32_MAX) {
      fail("an entry of 4 GiB or more is not supported");
    }
    if ((flags & 1U) != 0 || (method != kStored && method != kDeflated)) {
      fail("entries must be stored or deflated, and not encrypted");
    }
    if (u32(local) != kLocalSignature) {
      fail("damaged zip entry");
    }
    const Bytes source = part(local + kLocalBytes + u16(local + 26) + u16(local + 28), packed);
    std::vector<std::byte> bytes(unpacked);
    if (method == kStored && packed == unpacked) {
      bytes.assign(source.begin(), source.end());
    } else if (method == kStored || !inflate_all(source, bytes)) {
      fail("damaged zip entry");
    }
    const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    if (sum != u32(central + 16)) {
      fail("zip entry with a wrong checksum");
    }
    return bytes;
  }

  // Whether `source` inflates to exactly `to`.
  static bool inflate_all(Bytes source, std::span<std::byte> to) {
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {  // negative: no zlib header in a zip
      return false;
    }
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(source.data()));
    stream.avail_in = static_cast<uInt>(source.size());
    stream.next_out = reinterpret_cast<Bytef*>(to.data());
    stream.avail_out = static_cast<uInt>(to.size());
    const bool good = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
    inflateEnd(&stream);
    return good;
  }

  std::string path_;
  std::vector<std::byte> data_;
};

// The header of a .npy file: magic, version, length, a Python dictionary.
Matrix parse_npy(const NpzFile& file, const std::string& name, std::vector<std::byte> npy,
                 std::size_t word_bytes) {
  constexpr std::size_t kPreludeBytes = 10;
  const std::string text(reinterpret_cast<const char*>(npy.data()),
                         npy.size() < 4096 ? npy.size() : 4096);
  if (text.size() < kPreludeBytes || text.substr(0, 8) != std::string("\x93NUMPY\x01\x00", 8)) {
    file.fail(name + " is no .npy array of format 1.0");
  }
  const std::size_t header_bytes = static_cast<unsigned char>(text[8]) |
                                   static_cast<std::size_t>(static_cast<unsigned char>(text[9]))
                                       << 8;
  const std::size_t start = kPreludeBytes + header_bytes;
  static const std::regex kHeader(
      R"(\{'descr': '([^']*)', 'fortran_order': False, 'shape': \((\d{1,15}), (\d{1,15})\), \}\s*)");
  std::smatch fields;
  const std::string header = text.substr(kPreludeBytes, header_bytes);
  const std::string wanted = "<u" + std::to_string(word_bytes);
  if (start > text.size() || !std::regex_match(header, fields, kHeader) || fields[1] != wanted) {
    file.fail(name + " must be a C-ordered array " + wanted + " of shape (steps, values)");
  }
  Matrix matrix{std::stoull(fields[2]), std::stoull(fields[3])};
  const std::size_t words = (npy.size() - start) / word_bytes;
  if (matrix.rows == 0 || matrix.columns == 0 || words / matrix.rows != matrix.columns ||
      matrix.rows * matrix.columns * word_bytes != npy.size() - start) {
    file.fail(name + " is empty or has not the length its shape says");
  }
  npy.erase(npy.begin(), npy.begin() + static_cast<std::ptrdiff_t>(start));
  matrix.words = std::move(npy);
  return matrix;
}

}  // namespace

Matrix read_npz(const std::string& path, const std::string& name, std::size_t word_bytes) {
  const NpzFile file(path);
  return parse_npy(file, name, file.entry(name + ".npy"), word_bytes);
}

}  // namespace ciera_perf
