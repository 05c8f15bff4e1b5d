#pragma once
// Where every byte of a stored zip archive lies, as PyTorch's writer would place it; and the bytes
// of its structures.
//
// Each record's data starts at a multiple of 64, reached by an "FB" extra field of 'Z's. The local
// header leaves CRC and sizes zero; a descriptor after the data (none for an empty record) and the
// directory hold them. Sizes and offsets of 4 GiB - 1 and more go into zip64 extra fields. A zip64
// end record is always there.
#include <tessera/base/bytes.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

class ZipLayout {
 public:
  struct Record {
    std::string name;  // with the top folder
    std::uint64_t size_bytes = 0;
    std::uint64_t header_offset = 0;
    std::uint64_t data_offset = 0;
    std::uint64_t end_offset = 0;  // after the descriptor: the next header
  };

  /// Places the next record; returns its index.
  std::size_t add(std::string name, std::uint64_t size_bytes);
  const std::vector<Record>& records() const { return records_; }
  std::uint64_t directory_offset() const;
  /// Size of the whole archive.
  std::uint64_t size_bytes() const;

  void append_header(std::size_t record, Bytes& out) const;
  void append_descriptor(std::size_t record, std::uint32_t crc, Bytes& out) const;
  /// Central directory and end records. `crc(record)`: CRC-32 of a record's bytes.
  void append_directory(const std::function<std::uint32_t(std::size_t record)>& crc,
                        Bytes& out) const;

 private:
  std::vector<Record> records_;
  std::uint64_t directory_bytes_ = 0;
};

}  // namespace tessera
