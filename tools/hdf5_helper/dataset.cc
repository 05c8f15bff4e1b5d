#include "tools/hdf5_helper/dataset.h"

#include <algorithm>
#include <vector>

#include "tools/hdf5_helper/chunks.h"
#include "tools/hdf5_helper/type.h"
#include "tools/hdf5_helper/value.h"
#include "tools/hdf5_helper/vfd.h"

namespace tessera::h5 {
namespace {

constexpr std::size_t kMaxCompactBytes = 64 << 10;
constexpr std::size_t kMaxElementBytes = 64 << 10;

void write_problem(WireWriter& report, const std::string& path, const std::string& why) {
  report.tag(Tag::kProblem);
  report.text(path);
  report.text("");
  report.text(why);
}

/// The element that stands where nothing was written, in the file's own type; "" = all zero. What
/// is never filled has no content: zero, as h5py makes of it. False, and why: no such time exists.
bool write_fill_value(WireWriter& report, hid_t creation, hid_t type, std::string& why) {
  H5D_fill_time_t time = H5D_FILL_TIME_ERROR;
  if (H5Pget_fill_time(creation, &time) < 0 ||
      (time != H5D_FILL_TIME_ALLOC && time != H5D_FILL_TIME_IFSET && time != H5D_FILL_TIME_NEVER)) {
    why = "when its fill value is written is not known";
    return false;
  }
  H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;
  std::string value;
  if (time != H5D_FILL_TIME_NEVER && H5Pfill_value_defined(creation, &defined) >= 0 &&
      defined == H5D_FILL_VALUE_USER_DEFINED) {
    value.resize(H5Tget_size(type));
    if (H5Pget_fill_value(creation, type, value.data()) < 0) value.clear();
  }
  report.text(value);
  return true;
}

bool write_contiguous(WireWriter& report, hid_t dataset, hid_t creation, hid_t type,
                      bool has_elements, std::string& why) {
  if (H5Pget_external_count(creation) > 0) {
    char name[512] = {};
    off_t offset = 0;
    hsize_t size = 0;
    H5Pget_external(creation, 0, sizeof name - 1, name, &offset, &size);
    report.tag(LayoutKind::kExternal);
    report.text(name);
    return true;
  }
  // An address is undefined for what was never written, and then not always all ones.
  H5D_space_status_t status = H5D_SPACE_STATUS_NOT_ALLOCATED;
  H5Dget_space_status(dataset, &status);
  const hsize_t stored = H5Dget_storage_size(dataset);
  const bool allocated = status != H5D_SPACE_STATUS_NOT_ALLOCATED && stored > 0;
  const haddr_t offset = allocated ? H5Dget_offset(dataset) : HADDR_UNDEF;
  if (allocated && offset == HADDR_UNDEF) {
    why = "its address cannot be read";
    return false;
  }
  // The library reads by the address and the extents, whatever size is stated.
  if (status != H5D_SPACE_STATUS_NOT_ALLOCATED && stored == 0 && has_elements) {
    why = "it has an address, and a size of 0 bytes";
    return false;
  }
  report.tag(LayoutKind::kContiguous);
  if (!write_fill_value(report, creation, type, why)) return false;
  report.number(std::uint64_t{allocated ? offset : 0});
  report.number(std::uint64_t{allocated ? stored : 0});
  return true;
}

bool write_compact(WireWriter& report, hid_t dataset, hid_t type, std::string& why) {
  const Handle space(H5Dget_space(dataset), H5Sclose);
  const hssize_t numel = H5Sget_simple_extent_npoints(space.get());
  const std::size_t size = H5Tget_size(type);
  if (numel < 0 || size == 0 || static_cast<std::size_t>(numel) > kMaxCompactBytes / size) {
    why = "more bytes than a compact dataset can hold";
    return false;
  }
  std::string bytes(size * static_cast<std::size_t>(numel), '\0');
  // Memory type = file type: nothing is converted.
  if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0) {
    why = "its bytes cannot be read";
    return false;
  }
  report.tag(LayoutKind::kCompact);
  report.text(bytes);
  return true;
}

bool write_layout(Channel& channel, WireWriter& report, hid_t dataset, hid_t creation, hid_t type,
                  const std::vector<hsize_t>& extents, std::string& why) {
  switch (H5Pget_layout(creation)) {
    case H5D_CONTIGUOUS:
      return write_contiguous(report, dataset, creation, type,
                              std::ranges::find(extents, hsize_t{0}) == extents.end(), why);
    case H5D_COMPACT:
      return write_compact(report, dataset, type, why);
    case H5D_CHUNKED:
      report.tag(LayoutKind::kChunked);
      return write_fill_value(report, creation, type, why) &&
             write_chunked(channel, report, dataset, creation, extents, why);
    case H5D_VIRTUAL:
      report.tag(LayoutKind::kVirtual);
      return write_fill_value(report, creation, type, why) && write_virtual(report, creation, why);
    default:
      why = "its layout is not known";
      return false;
  }
}

/// Texts whose bytes lie elsewhere are left out: no other file can be opened here.
bool lies_here(hid_t creation) {
  return H5Pget_layout(creation) != H5D_VIRTUAL && H5Pget_external_count(creation) <= 0;
}

void write_text(WireWriter& report, hid_t dataset, hid_t creation, const std::string& path) {
  WireWriter value;
  std::string why = "its text lies in another file, which is not followed";
  if (!lies_here(creation) || !write_text_value(value, dataset, why))
    return write_problem(report, path, why);
  report.tag(Tag::kText);
  report.text(path);
  report.bytes().insert(report.bytes().end(), value.bytes().begin(), value.bytes().end());
}

}  // namespace

void write_dataset(Channel& channel, WireWriter& report, hid_t dataset, const std::string& path) {
  const Handle type(H5Dget_type(dataset), H5Tclose);
  const Handle space(H5Dget_space(dataset), H5Sclose);
  const Handle creation(H5Dget_create_plist(dataset), H5Pclose);
  if (!type || !space || !creation) return write_problem(report, path, "it cannot be opened");
  if (is_text(type.get())) return write_text(report, dataset, creation.get(), path);
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
    report.tag(Tag::kText);
    report.text(path);
    report.tag(ValueTag::kNone);
    return;
  }
  const int rank = H5Sget_simple_extent_ndims(space.get());
  std::vector<hsize_t> extents(rank > 0 ? static_cast<std::size_t>(rank) : 0);
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  WireWriter record;
  record.tag(Tag::kDataset);
  record.text(path);
  write_type(record, type.get());
  record.number(static_cast<std::uint8_t>(extents.size()));
  for (const hsize_t extent : extents) record.number(std::uint64_t{extent});
  std::string why;
  if (H5Tget_size(type.get()) > kMaxElementBytes)
    channel.fail(ErrorKind::kUnsupported, "dataset \"" + path + "\": its elements are too large");
  if (!write_layout(channel, record, dataset, creation.get(), type.get(), extents, why))
    channel.fail(ErrorKind::kCorrupt, "dataset \"" + path + "\": " + why);
  report.bytes().insert(report.bytes().end(), record.bytes().begin(), record.bytes().end());
}

}  // namespace tessera::h5
