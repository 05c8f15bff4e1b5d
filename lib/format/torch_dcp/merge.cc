// Rank-local saves (use_collectives=False): every rank wrote its own metadata of its own items.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>

#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/format/torch_dcp/metadata.h"
#include "lib/format/torch_dcp/names.h"

namespace tessera::dcp {
namespace {

class Merger {
 public:
  void add(DcpMetadata part, std::uint32_t writer) {
    const std::vector<std::uint32_t> entries = add_entries(part, writer);
    std::vector<std::uint32_t> files;
    for (std::string& file : part.files) files.push_back(file_number(std::move(file)));
    std::vector<std::uint32_t> codecs;
    for (auto& chain : part.codecs) codecs.push_back(codec_number(std::move(chain)));
    for (DcpStorage item : part.storage) {
      const auto origin = part.origin(item);
      item.first_coordinate = out_.coordinates.size();
      out_.coordinates.insert(out_.coordinates.end(), origin.begin(), origin.end());
      if (item.entry != DcpStorage::kNoEntry) item.entry = entries[item.entry];
      item.file = files[item.file];
      if (item.codecs != 0) item.codecs = codecs[item.codecs - 1];
      item.writer = writer;
      out_.storage.push_back(item);
    }
    std::move(part.orphans.begin(), part.orphans.end(), std::back_inserter(out_.orphans));
    std::move(part.notes.begin(), part.notes.end(), std::back_inserter(out_.notes));
    std::move(part.globals.begin(), part.globals.end(), std::back_inserter(out_.globals));
    out_.provenance.merge(part.provenance);
    out_.has_planner_data |= part.has_planner_data;
    if (out_.dialect.empty()) out_.dialect = std::move(part.dialect);
  }

  /// Chunks of one tensor come from several ranks; they are packed once all are known.
  DcpMetadata finish() {
    for (std::size_t e = 0; e < out_.entries.size(); ++e) {
      DcpEntry& entry = out_.entries[e];
      entry.first_coordinate = out_.coordinates.size();
      entry.chunk_count = 0;
      if (!entry.is_tensor) continue;
      for (const auto& box : chunks_[e]) {
        out_.coordinates.insert(out_.coordinates.end(), box.begin(), box.end());
        ++entry.chunk_count;
      }
    }
    if (replicas_ > 0) {
      out_.notes.push_back({Finding::kReplicas, Severity::kInfo,
                            fmt::format("{} chunks were stored by more than one rank; the lowest "
                                        "rank's are used",
                                        replicas_),
                            "", ""});
    }
    out_.dialect += ", rank-local metadata";
    return std::move(out_);
  }

 private:
  using ChunkBox = std::vector<std::int64_t>;  // origin, then sizes

  std::vector<std::uint32_t> add_entries(DcpMetadata& part, std::uint32_t writer) {
    std::vector<std::uint32_t> numbers;
    for (DcpEntry& entry : part.entries) {
      const auto [found, fresh] =
          index_.emplace(entry.name, static_cast<std::uint32_t>(out_.entries.size()));
      numbers.push_back(found->second);
      if (fresh) {
        out_.entries.push_back(entry);
        chunks_.emplace_back();
        seen_.emplace_back();
      }
      require_same(out_.entries[found->second], entry, writer);
      for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
        add_chunk(found->second, part.origin(entry, i), part.sizes(entry, i));
      }
    }
    return numbers;
  }

  static void require_same(const DcpEntry& a, const DcpEntry& b, std::uint32_t writer) {
    if (a.is_tensor == b.is_tensor && a.spec == b.spec) return;
    const auto what = [](const DcpEntry& e) {
      return e.is_tensor ? e.spec.to_string() : std::string("a value");
    };
    in_tensor(a.name, [&] {
      fail(Code::kCorrupt, fmt::format("ranks disagree: {} and, in metadata file {}, {}", what(a),
                                       writer + 1, what(b)));
    });
  }

  void add_chunk(std::uint32_t entry, std::span<const std::int64_t> origin,
                 std::span<const std::int64_t> sizes) {
    ChunkBox box(origin.begin(), origin.end());
    box.insert(box.end(), sizes.begin(), sizes.end());
    if (seen_[entry].insert(box).second) {
      chunks_[entry].push_back(std::move(box));
    } else {
      ++replicas_;
    }
  }

  std::uint32_t file_number(std::string file) {
    const auto [found, fresh] = files_.emplace(file, static_cast<std::uint32_t>(out_.files.size()));
    if (fresh) out_.files.push_back(std::move(file));
    return found->second;
  }

  std::uint32_t codec_number(std::vector<std::string> chain) {
    for (std::size_t i = 0; i < out_.codecs.size(); ++i) {
      if (out_.codecs[i] == chain) return static_cast<std::uint32_t>(i + 1);
    }
    out_.codecs.push_back(std::move(chain));
    return static_cast<std::uint32_t>(out_.codecs.size());
  }

  DcpMetadata out_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::unordered_map<std::string, std::uint32_t> files_;
  std::vector<std::vector<ChunkBox>> chunks_;  // per entry
  std::vector<std::set<ChunkBox>> seen_;       // per entry
  std::uint64_t replicas_ = 0;
};

}  // namespace

DcpMetadata merge_rank_local(std::vector<DcpMetadata> ranks) {
  Merger merger;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    merger.add(std::move(ranks[i]), static_cast<std::uint32_t>(i));
  }
  return merger.finish();
}

}  // namespace tessera::dcp
