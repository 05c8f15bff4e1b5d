#include "tools/hdf5_helper/chunks.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>

#include "tools/hdf5_helper/vfd.h"

namespace tessera::h5 {
namespace {

// Places a chunk could be at, looked up one by one: past this a dataset is refused.
constexpr std::uint64_t kMaxGrid = std::uint64_t{1} << 20;
// Or this many per chunk that is stored.
constexpr std::uint64_t kMaxSparsity = 4;
constexpr std::size_t kMaxFilters = 32;
constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{4} << 30;

/// Address space that may not be touched: the library is asked to read a chunk there, and the
/// watched driver does not.
class Untouchable {
 public:
  ~Untouchable() {
    if (at_) munmap(at_, bytes_);
  }
  void* need(std::uint64_t bytes) {
    if (bytes <= bytes_ && at_) return at_;
    if (at_) munmap(at_, bytes_);
    bytes_ = std::max<std::uint64_t>(bytes, 1 << 20);
    at_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at_ == MAP_FAILED) at_ = nullptr;
    return at_;
  }

 private:
  void* at_ = nullptr;
  std::uint64_t bytes_ = 0;
};

void write_filters(WireWriter& report, hid_t creation) {
  const int count = std::min<int>(std::max(0, H5Pget_nfilters(creation)), kMaxFilters);
  report.number(static_cast<std::uint8_t>(count));
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, values[32] = {}, config = 0;
    std::size_t value_count = 32;
    char name[64] = {};
    const H5Z_filter_t id = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &value_count,
                                           values, sizeof name - 1, name, &config);
    report.number(static_cast<std::uint32_t>(id));
    report.text(name);
    report.number(static_cast<std::uint8_t>(std::min<std::size_t>(value_count, 32)));
    for (std::size_t v = 0; v < std::min<std::size_t>(value_count, 32); ++v)
      report.number(static_cast<std::uint32_t>(values[v]));
  }
}

bool skips_filters_at_edges(hid_t creation) {
  unsigned options = 0;
  return H5Pget_chunk_opts(creation, &options) >= 0 &&
         (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
}

/// Number of chunk places; nullopt past `limit`.
std::optional<std::uint64_t> grid_of(const std::vector<hsize_t>& extents,
                                     const std::vector<hsize_t>& chunk, std::uint64_t limit,
                                     std::vector<hsize_t>& grid) {
  std::uint64_t places = 1;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    grid.push_back(extents[d] / chunk[d] + (extents[d] % chunk[d] != 0));
    if (grid[d] != 0 && places > limit / grid[d]) return std::nullopt;
    places *= grid[d];
  }
  return places;
}

class ChunkLister {
 public:
  ChunkLister(Channel& channel, WireWriter& report, hid_t dataset)
      : channel_(channel), report_(report), dataset_(dataset) {}

  /// Chunk number `number`, whose first element is at `origin`; nothing where none was written.
  /// False when it cannot be in this file.
  bool add(std::uint64_t number, const std::vector<hsize_t>& origin) {
    hsize_t bytes = 0;
    if (H5Dget_chunk_storage_size(dataset_, origin.data(), &bytes) < 0 || bytes == 0) return true;
    if (bytes > kMaxChunkBytes) return false;
    std::uint32_t skipped = 0;
    void* nowhere = buffer_.need(bytes);
    if (!nowhere) return false;
    // It fails for a chunk that was never written; whoever counts notices one that is damaged.
    if (H5Dread_chunk(dataset_, H5P_DEFAULT, origin.data(), &skipped, nowhere) < 0) {
      watch_.take();
      return true;
    }
    const std::optional<RawRead> place = watch_.take();
    if (!place || place->length != bytes || bytes > channel_.hello().file_bytes) return false;
    report_.number(number);
    report_.number(place->address);
    report_.number(place->length);
    report_.number(skipped);
    ++found_;
    return true;
  }
  std::uint64_t found() const { return found_; }

 private:
  Channel& channel_;
  WireWriter& report_;
  hid_t dataset_;
  Untouchable buffer_;
  RawReadWatch watch_;
  std::uint64_t found_ = 0;
};

constexpr std::uint64_t kNoMoreChunks = ~std::uint64_t{0};

bool write_selection(WireWriter& report, hid_t space) {
  const H5S_sel_type type = H5Sget_select_type(space);
  const int rank = type == H5S_SEL_HYPERSLABS ? H5Sget_simple_extent_ndims(space) : 0;
  if (rank < 0 || rank > H5S_MAX_RANK) return false;
  std::vector<hsize_t> v[4];
  for (auto& part : v) part.assign(static_cast<std::size_t>(rank), 1);
  const bool regular =
      rank > 0 && H5Sis_regular_hyperslab(space) > 0 &&
      H5Sget_regular_hyperslab(space, v[0].data(), v[1].data(), v[2].data(), v[3].data()) >= 0;
  // Of a whole dataset the extents are the dataset's own; the mapping need not know them.
  report.tag(type == H5S_SEL_ALL ? SelectionKind::kAll
             : regular           ? SelectionKind::kRegular
                                 : SelectionKind::kOther);
  report.number(static_cast<std::uint8_t>(regular ? rank : 0));
  for (std::size_t d = 0; regular && d < v[0].size(); ++d)
    for (const auto& part : v) report.number(std::uint64_t{part[d]});
  return true;
}

}  // namespace

bool write_chunked(Channel& channel, WireWriter& report, hid_t dataset, hid_t creation,
                   const std::vector<hsize_t>& extents, std::string& why) {
  std::vector<hsize_t> chunk(extents.size(), 1), grid;
  const int rank = static_cast<int>(extents.size());
  if (rank == 0 || H5Pget_chunk(creation, rank, chunk.data()) != rank ||
      std::ranges::find(chunk, hsize_t{0}) != chunk.end()) {
    why = "its chunk shape cannot be read";
    return false;
  }
  for (const hsize_t extent : chunk) report.number(std::uint64_t{extent});
  write_filters(report, creation);
  report.number(static_cast<std::uint8_t>(skips_filters_at_edges(creation)));
  const Handle space(H5Dget_space(dataset), H5Sclose);
  hsize_t stored = 0;
  if (H5Dget_num_chunks(dataset, space.get(), &stored) < 0) {
    why = "its chunks cannot be counted";
    return false;
  }
  const std::uint64_t limit = std::max<std::uint64_t>(kMaxGrid, kMaxSparsity * stored);
  const std::optional<std::uint64_t> places = grid_of(extents, chunk, limit, grid);
  if (!places && stored > 0)
    channel.fail(ErrorKind::kUnsupported, "a dataset has more than " + std::to_string(limit) +
                                              " places for chunks, and " + std::to_string(stored) +
                                              " of them hold one");
  ChunkLister lister(channel, report, dataset);
  std::vector<hsize_t> origin(extents.size(), 0);
  for (std::uint64_t number = 0; lister.found() < stored && number < *places; ++number) {
    std::uint64_t rest = number;
    for (std::size_t d = extents.size(); d-- > 0;) {
      origin[d] = rest % grid[d] * chunk[d];
      rest /= grid[d];
    }
    if (!lister.add(number, origin)) break;
  }
  if (lister.found() != stored) {
    why = "the places of its chunks cannot be read";
    return false;
  }
  report.number(kNoMoreChunks);
  return true;
}

bool write_virtual(WireWriter& report, hid_t creation, std::string& why) {
  std::size_t count = 0;
  if (H5Pget_virtual_count(creation, &count) < 0 || count > kMaxGrid) {
    why = "its mappings cannot be read";
    return false;
  }
  report.number(static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) {
    for (const auto get : {H5Pget_virtual_filename, H5Pget_virtual_dsetname}) {
      const ssize_t length = get(creation, i, nullptr, 0);
      if (length < 0 || length > 4096) {
        why = "a mapping names no source";
        return false;
      }
      std::string name(static_cast<std::size_t>(length) + 1, '\0');
      get(creation, i, name.data(), name.size());
      report.text({name.data(), static_cast<std::size_t>(length)});
    }
    const Handle target(H5Pget_virtual_vspace(creation, i), H5Sclose);
    const Handle source(H5Pget_virtual_srcspace(creation, i), H5Sclose);
    if (!target || !source || !write_selection(report, target.get()) ||
        !write_selection(report, source.get())) {
      why = "a mapping's selection cannot be read";
      return false;
    }
  }
  return true;
}

}  // namespace tessera::h5
