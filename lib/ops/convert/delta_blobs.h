#pragma once
// The blobs of weight deltas, made of the tensors of two checkpoints: bytes of one xor bytes of the
// other, as one frame of zstd.
//
//   plan   every pair is read once: is there a difference, how large is the blob, which checksum has
//          the tensor. Small blobs are kept, up to a limit for all of them
//   write  DeltaBlobs is the source's folder with a file more for each blob. One that was not kept is
//          made again as it is read, a few MiB at a time
//
// Memory is bounded whatever the sizes of tensors and blobs: kept blobs, a piece of both tensors for
// each thread that plans, and of blobs that are made again a window of each of the last few.
#include <tessera/format/safetensors.h>
#include <tessera/ops/open.h>
#include <tessera/reshard/tensor_reader.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

/// A tensor and the one that it differs from.
struct DeltaPair {
  std::string name;
  std::uint32_t tensor = 0;  // in the manifest that is written
  std::uint32_t base = 0;    // in the base's
};
struct DeltaBlob {
  DeltaPair pair;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;  // of the blob
  std::string sum;          // xxh3-128 of the tensor's bytes
  bool changed = false;     // else there is no blob
  bool is_kept = false;
  Bytes kept;
};

/// What both sides are read with; the manifests are located, outlive it and stay as they are.
struct DeltaReaders {
  DeltaReaders(const Manifest& of_tensors, const Directory& directory,
               const OpenedCheckpoint& of_base, const TransferOptions& options)
      : manifest(of_tensors),
        tensors(of_tensors, directory, options),
        base(of_base.manifest, *of_base.directory, options) {}

  const Manifest& manifest;
  TensorReader tensors;
  TensorReader base;
};

class DeltaBlobs final : public Directory {
 public:
  /// One per pair, in their order, whatever the number of threads.
  static std::vector<DeltaBlob> plan(const DeltaReaders& readers,
                                     const std::vector<DeltaPair>& pairs,
                                     const TransferOptions& options);
  /// `files`: by path; only changed ones.
  DeltaBlobs(std::unique_ptr<Directory> source, std::unique_ptr<DeltaReaders> readers,
             std::map<std::string, DeltaBlob> files);
  ~DeltaBlobs() override;

  const std::string& path() const override { return source_->path(); }
  std::unique_ptr<ReadFile> open(std::string_view relative, IoMode mode) const override;
  std::optional<FileInfo> stat(std::string_view relative) const override;
  std::vector<FileInfo> list(std::string_view relative) const override {
    return source_->list(relative);
  }

 private:
  class BlobFile;
  class BlobMaker;
  class Window;
  void read(const DeltaBlob& blob, std::uint64_t offset, MutableBytes out) const;

  std::unique_ptr<Directory> source_;
  std::unique_ptr<DeltaReaders> readers_;
  std::map<std::string, DeltaBlob> files_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::list<std::unique_ptr<Window>> recent_;
};

}  // namespace tessera
