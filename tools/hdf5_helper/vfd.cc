#include "tools/hdf5_helper/vfd.h"

#include <cstring>
#include <new>

namespace tessera::h5 {
namespace {

// Absolute, so that the library does not ask for the working directory.
constexpr const char* kFileName = "/checkpoint";

// The library calls back without a context of ours, and there is one file in the process' life.
struct State {
  Channel* channel = nullptr;
  bool opened = false;
  bool watching = false;
  int reads = 0;
  RawRead last;
};
State& state() {
  static State the_one;
  return the_one;
}

struct File {
  H5FD_t base;  // first: the library sees only this
  haddr_t eoa = 0;
};

H5FD_t* open_callback(const char* name, unsigned flags, hid_t, haddr_t) {
  if (std::strcmp(name, kFileName) != 0 || state().opened || (flags & H5F_ACC_RDWR) != 0)
    return nullptr;
  auto* file = new (std::nothrow) File{};
  state().opened = file != nullptr;
  return file ? &file->base : nullptr;
}
herr_t close_callback(H5FD_t* file) {
  delete reinterpret_cast<File*>(file);
  return 0;
}
herr_t query_callback(const H5FD_t*, unsigned long* flags) {
  if (flags) *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA_READ;
  return 0;
}
haddr_t get_eoa_callback(const H5FD_t* file, H5FD_mem_t) {
  return reinterpret_cast<const File*>(file)->eoa;
}
herr_t set_eoa_callback(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  reinterpret_cast<File*>(file)->eoa = address;
  return 0;
}
haddr_t get_eof_callback(const H5FD_t*, H5FD_mem_t) { return state().channel->hello().file_bytes; }

herr_t read_callback(H5FD_t*, H5FD_mem_t type, hid_t, haddr_t address, size_t length, void* out) {
  State& s = state();
  if (s.watching && type == H5FD_MEM_DRAW) {
    ++s.reads;
    s.last = {address, length};
    return 0;
  }
  return s.channel->read(address, length, out) ? 0 : -1;
}
herr_t write_callback(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

const H5FD_class_t& driver_class() {
  static const H5FD_class_t the_class = [] {
    H5FD_class_t c{};
#if H5_VERSION_GE(1, 13, 2)
    c.version = H5FD_CLASS_VERSION;
    c.value = static_cast<H5FD_class_value_t>(700);  // of the range left to users
#endif
    c.name = "tessera";
    c.maxaddr = (haddr_t{1} << 62) - 1;
    c.fc_degree = H5F_CLOSE_WEAK;
    c.open = open_callback;
    c.close = close_callback;
    c.query = query_callback;
    c.get_eoa = get_eoa_callback;
    c.set_eoa = set_eoa_callback;
    c.get_eof = get_eof_callback;
    c.read = read_callback;
    c.write = write_callback;
    const H5FD_mem_t map[] = H5FD_FLMAP_SINGLE;
    std::memcpy(c.fl_map, map, sizeof map);
    return c;
  }();
  return the_class;
}

}  // namespace

hid_t open_file(Channel& channel) {
  state().channel = &channel;
  const hid_t driver = H5FDregister(&driver_class());
  // Kept until the process ends: closing it would clear the library's account of a failure.
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (driver < 0 || access < 0 || H5Pset_driver(access, driver, nullptr) < 0) return -1;
  return H5Fopen(kFileName, H5F_ACC_RDONLY, access);
}

RawReadWatch::RawReadWatch() {
  state().watching = true;
  state().reads = 0;
}
RawReadWatch::~RawReadWatch() { state().watching = false; }

std::optional<RawRead> RawReadWatch::take() {
  State& s = state();
  const int reads = s.reads;
  s.reads = 0;
  if (reads != 1) return std::nullopt;
  return s.last;
}

}  // namespace tessera::h5
