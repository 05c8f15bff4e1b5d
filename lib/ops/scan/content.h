#pragma once
// One file's content, looked into as deep as it goes (ops/scan.h). Containers are recognised by
// their bytes; a name only says what a file that breaks its rules was meant to be.
#include <tessera/encoding/byte_window.h>
#include <tessera/ops/scan.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/encoding/safety/bounded_inflate.h"
#include "lib/encoding/safety/pickle_scan.h"
#include "lib/encoding/safety/zip_members.h"

namespace tessera {

/// A part of a file that is one thing by itself, such as an item of a .distcp file.
struct FilePiece {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  auto operator<=>(const FilePiece&) const = default;
};

class ContentScanner {
 public:
  /// Adds to `out`; `packed_limit_bytes` bounds each thing that is decompressed.
  ContentScanner(ScannedFile& out, std::uint64_t packed_limit_bytes)
      : out_(out), packed_limit_bytes_(packed_limit_bytes) {}

  /// All of a file. `pieces`: of a DCP file, where its items are; those alone are looked at, and
  /// whatever lies between them.
  void scan_file(const ByteWindow& file, std::string_view name,
                 const std::vector<FilePiece>* pieces);
  void add(Safety safety, std::string message, const std::string& inside = "");
  /// Sorts the findings, and sets the verdict.
  void finish();

 private:
  struct Place {
    std::string name;    // the file's, or the member's
    std::string inside;  // members from the outermost on, "" the file itself
    int depth = 0;
    bool is_record = false;  // of a torch archive: raw bytes, unless they prove to be more
    bool is_item = false;    // of DCP: there may be a million, and PyTorch wrote them
  };

  void scan(const ByteWindow& window, const Place& place);
  bool scan_container(const ByteWindow& window, const Place& place, std::string_view head);
  void scan_pickles(const ByteWindow& window, const Place& place, bool is_known);
  void scan_pickled(const ByteWindow& window, const Place& place, const PickledBytes& archive);
  void add_uses(const PickleScan& pickle, const Place& place);
  bool scan_text(const ByteWindow& window, const Place& place, std::string_view head);
  bool scan_json(const ByteWindow& window, const Place& place, std::string_view head);
  void scan_hdf5(const ByteWindow& window, const Place& place);
  void scan_safetensors(const ByteWindow& window, const Place& place);
  // archives.cc
  void scan_zip(const ByteWindow& window, const Place& place);
  void scan_headers(const ByteWindow& window, const Place& place);
  void scan_members(const ByteWindow& window, const Place& place,
                    const std::vector<ZipMember>& members);
  void scan_member(const ByteWindow& bytes, const ZipMember& member, const Place& place);
  void scan_deflated(const ByteWindow& bytes, const Place& place, DeflateForm form);
  void scan_zstd(const ByteWindow& window, const Place& place);
  void scan_tar(const ByteWindow& window, const Place& place);
  void scan_npy(const ByteWindow& window, const Place& place);
  void scan_pieces(const ByteWindow& file, const Place& place,
                   const std::vector<FilePiece>& pieces);

  /// What the file is, and so that it is judged; of members nothing but the latter.
  void is_kind(std::string_view kind, const Place& place);
  static Place member_of(const Place& place, std::string_view name);

  ScannedFile& out_;
  std::uint64_t packed_limit_bytes_;
  std::set<std::string> known_;  // messages: each once a file
};

/// Whether a name says that its file is a pickle, or an archive of torch.save.
bool is_named_as_pickle(std::string_view name);
/// A header of a tar archive: its sum is right.
bool is_tar_header(std::string_view block);
/// Whether a header of a .npy file says that the array holds Python objects.
bool has_objects(std::string_view npy_header);

/// What a Keras model's configuration would run: Lambda layers, and functions of other modules.
/// `text`: JSON. Messages with their severity.
std::vector<std::pair<Safety, std::string>> judge_keras_config(std::string_view text);

}  // namespace tessera
