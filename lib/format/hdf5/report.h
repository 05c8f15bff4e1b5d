#pragma once
// What tessera-hdf5 says about one HDF5 file, parsed. The text comes from a process that read
// hostile bytes: every count is bounded by the bytes that are there, every number is only a claim.
// Pure.
#include <tessera/base/bytes.h>
#include <tessera/state/value.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/format/hdf5/wire.h"

namespace tessera::h5 {

/// A datatype. For floats and complex numbers of them: where the fields lie, in bits.
struct TypeInfo {
  TypeClass type_class = TypeClass::kOther;
  std::uint32_t size = 0;  // bytes per element
  bool big_endian = false;
  std::uint32_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0,
                bias = 0;
  bool fills_its_bytes = true;
  std::string description;  // kOther
};

struct Filter {
  std::uint32_t id = 0;
  std::string name;
  std::vector<std::uint32_t> parameters;
};

struct StoredChunk {
  std::uint64_t number = 0;  // in the row-major grid of chunks
  std::uint64_t offset = 0;  // bytes in the file
  std::uint64_t length = 0;
  std::uint32_t skipped_filters = 0;  // bit i: filter i was not applied
};

/// start, stride, count, block per dimension: what H5Sselect_hyperslab takes.
struct Hyperslab {
  std::uint64_t start = 0, stride = 1, count = 1, block = 1;
};

struct Selection {
  SelectionKind kind = SelectionKind::kOther;
  std::vector<Hyperslab> dims;
};

struct Mapping {
  std::string file;     // "." = the same file
  std::string dataset;  // path in it
  Selection target;
  Selection source;
};

struct Dataset {
  std::string path;  // without the leading '/'
  TypeInfo type;
  std::vector<std::int64_t> extents;
  LayoutKind layout = LayoutKind::kContiguous;
  std::string fill;          // one element in the file's own type; "" = zeros
  std::uint64_t offset = 0;  // kContiguous; length 0: never written
  std::uint64_t length = 0;
  std::vector<std::int64_t> chunk;  // kChunked: extents of one chunk
  std::vector<Filter> filters;
  bool edges_unfiltered = false;    // chunks that cross the border are stored as they are
  std::vector<StoredChunk> chunks;  // ascending numbers
  std::string bytes;                // kCompact
  std::vector<Mapping> mappings;    // kVirtual
  std::string external_file;        // kExternal
};

/// An attribute (owner and name), or a dataset of texts (`is_attribute` false, name "").
struct NamedValue {
  std::string owner;
  std::string name;
  Value value;
  bool is_attribute = true;
};

struct LinkInfo {
  LinkKind kind = LinkKind::kOther;
  std::string path;
  std::string target;
};

struct Problem {
  std::string owner;
  std::string name;  // of the attribute, "" = the dataset itself
  std::string why;
};

/// Groups, datasets and values share one order: the file's.
struct Item {
  enum class Kind : std::uint8_t { kGroup, kDataset, kValue } kind = Kind::kGroup;
  std::uint32_t index = 0;  // in groups, datasets, values
};

struct Group {
  std::string path;
  bool empty = false;  // has no links
};

struct Report {
  std::vector<Item> items;
  std::vector<Group> groups;
  std::vector<Dataset> datasets;
  std::vector<NamedValue> values;
  std::vector<LinkInfo> links;
  std::vector<Problem> problems;

  const Dataset* find_dataset(const std::string& path) const;  // aliases are followed; linear
};

/// Throws kCorrupt for what is no report.
Report parse_report(ByteView bytes);

}  // namespace tessera::h5
