#pragma once
// The other direction: an OutputPlan of several torch.save files, whose storages are put together
// from pieces of source tensors and zeros (flat parameters, ZeRO partitions, padded shards).
//
//   storage bytes = piece | piece | zeros ...      each piece one kTensor segment, zeros a literal
//
// A record's CRC is combined from its segments' (crc32_combine); nothing is read or written here.
#include <tessera/encoding/torch_archive_writer.h>
#include <tessera/state/output_plan.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// A run of a storage: a chunk of a source tensor (dense row-major in its box or flat range),
/// zeros, or bytes of the writer's own (a mesh's ranks, a counter).
struct StoragePiece {
  static constexpr std::uint32_t kZeros = 0xffffffffu;
  static constexpr std::uint32_t kBytes = 0xfffffffeu;
  std::uint32_t tensor = kZeros;  // in the source manifest
  Chunk chunk;                    // of that tensor
  std::uint64_t zero_bytes = 0;   // kZeros
  std::string bytes = {};         // kBytes: few of them, they stay in memory
};

/// One archive: `root` refers to `tensors` by Value::tensor(i), each to `storages` by its number.
struct ArchiveFile {
  std::string path;    // in the output folder; "" for a one-file result
  std::string prefix;  // of its records: the stem of its name, as torch.save does
  Value root;
  std::vector<ArchiveWriteTensor> tensors;
  std::vector<std::vector<StoragePiece>> storages;
};

class ArchivePlanBuilder {
 public:
  explicit ArchivePlanBuilder(const Manifest& source);
  ~ArchivePlanBuilder();
  void add(ArchiveFile file);
  /// A file whose bytes are known now: `latest`, a JSON index.
  void add_literal(std::string path, std::string text);
  std::vector<Note>& notes();
  std::vector<LeftOut>& left_out();        // OutputPlan::left_out
  std::vector<std::uint32_t>& restated();  // OutputPlan::restated
  OutputPlan finish(std::string format);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace tessera
