// tessera-hdf5: describes one HDF5 file to the toolkit, and is the only program here that links
// libhdf5. Not for people: the toolkit starts it with a socket as descriptor 0, over which the
// file's bytes come and the description goes (lib/format/hdf5/wire.h). Before the first byte
// arrives it has given up every other descriptor, all system calls but a few, and most memory and
// time; a crash or a lie of it can harm nothing but the answer, which the toolkit does not trust.
//
// Order: a preorder walk, links by name; each object once, under the first name met, as
// H5Ovisit and h5py's visititems do.
#include <hdf5.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "tools/hdf5_helper/channel.h"
#include "tools/hdf5_helper/confine.h"
#include "tools/hdf5_helper/dataset.h"
#include "tools/hdf5_helper/value.h"
#include "tools/hdf5_helper/vfd.h"

namespace tessera::h5 {
namespace {

constexpr int kMaxDepth = 256;
constexpr std::size_t kMaxPathBytes = 16 << 10;
constexpr std::size_t kSendBytes = 256 << 10;

struct Link {
  std::string name;
  H5L_type_t type;
};

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* links) try {
  static_cast<std::vector<Link>*>(links)->push_back({name, info->type});
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}

herr_t collect_attribute(hid_t, const char* name, const H5A_info_t*, void* names) try {
  static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
} catch (const std::bad_alloc&) {
  return -1;
}

herr_t innermost(unsigned, const H5E_error2_t* error, void* text) {
  if (error->desc) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

/// What the library says about its last failure: the innermost message names the cause.
std::string library_error() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, innermost, &text);
  return text.empty() ? "the library gives no reason" : text;
}

/// A version number that this libhdf5 does not know is no damage.
ErrorKind kind_of(const std::string& library_error) {
  return library_error.find("version") != std::string::npos ? ErrorKind::kUnsupported
                                                            : ErrorKind::kCorrupt;
}

class Walker {
 public:
  Walker(Channel& channel, hid_t file) : channel_(channel), file_(file) {}

  void run() {
    H5O_info_t info;
    if (H5Oget_info(file_, &info) < 0) damaged("", "the root group");
    visited_.emplace(info.addr, "");
    group(file_, "", 0);
    channel_.send(report_);
  }

 private:
  [[noreturn]] void damaged(const std::string& path, const char* what) {
    const std::string why = library_error();
    channel_.fail(kind_of(why), std::string(what) + " \"/" + path + "\" cannot be read: " + why);
  }

  void attributes(hid_t object, const std::string& path) {
    std::vector<std::string> names;
    hsize_t position = 0;
    if (H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &position, collect_attribute, &names) < 0)
      damaged(path, "the list of attributes of");
    for (const std::string& name : names) {
      const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
      if (!attribute) damaged(path + "@" + name, "the attribute");
      WireWriter value;
      std::string why;
      const bool has = write_attribute_value(value, attribute.get(), why);
      report_.tag(has ? Tag::kAttribute : Tag::kProblem);
      report_.text(path);
      report_.text(name);
      if (!has) report_.text(why);
      report_.bytes().insert(report_.bytes().end(), value.bytes().begin(),
                             has ? value.bytes().end() : value.bytes().begin());
    }
  }

  void group(hid_t id, const std::string& path, int depth) {
    if (depth > kMaxDepth || path.size() > kMaxPathBytes)
      channel_.fail(ErrorKind::kCorrupt, "groups are nested too deeply");
    std::vector<Link> links;
    hsize_t position = 0;
    if (H5Literate(id, H5_INDEX_NAME, H5_ITER_INC, &position, collect_link, &links) < 0)
      damaged(path, "the list of links of");
    report_.tag(Tag::kGroup);
    report_.text(path);
    report_.number(static_cast<std::uint8_t>(links.empty()));
    attributes(id, path);
    for (const Link& link : links) {
      if (report_.bytes().size() > kSendBytes) channel_.send(report_);
      follow(id, path.empty() ? link.name : path + "/" + link.name, link, depth);
    }
  }

  void link_record(LinkKind kind, const std::string& path, const std::string& target) {
    report_.tag(Tag::kLink);
    report_.tag(kind);
    report_.text(path);
    report_.text(target);
  }

  void follow(hid_t parent, const std::string& path, const Link& link, int depth) {
    if (link.type != H5L_TYPE_HARD) return describe(parent, path, link);
    H5O_info_t info;
    if (H5Oget_info_by_name(parent, link.name.c_str(), &info, H5P_DEFAULT) < 0)
      damaged(path, "the object");
    const auto [known, is_new] = visited_.emplace(info.addr, path);
    if (!is_new) return link_record(LinkKind::kAlias, path, known->second);
    const Handle object(H5Oopen(parent, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object) damaged(path, "the object");
    if (info.type == H5O_TYPE_GROUP) return group(object.get(), path, depth + 1);
    if (info.type != H5O_TYPE_DATASET && info.type != H5O_TYPE_NAMED_DATATYPE)
      damaged(path, "the object");
    if (info.type == H5O_TYPE_DATASET) write_dataset(channel_, report_, object.get(), path);
    attributes(object.get(), path);
  }

  /// Links that are reported and not followed.
  void describe(hid_t parent, const std::string& path, const Link& link) {
    H5L_info_t info;
    if (H5Lget_info(parent, link.name.c_str(), &info, H5P_DEFAULT) < 0) damaged(path, "the link");
    std::vector<char> value(std::min<std::size_t>(info.u.val_size, 64 << 10) + 1);
    if (info.u.val_size >= value.size() ||
        H5Lget_val(parent, link.name.c_str(), value.data(), value.size(), H5P_DEFAULT) < 0)
      damaged(path, "the link");
    if (link.type == H5L_TYPE_SOFT) return link_record(LinkKind::kSoft, path, value.data());
    if (link.type != H5L_TYPE_EXTERNAL) return link_record(LinkKind::kOther, path, "");
    unsigned flags = 0;
    const char *file = "", *object = "";
    H5Lunpack_elink_val(value.data(), info.u.val_size, &flags, &file, &object);
    link_record(LinkKind::kExternal, path, std::string(file) + ":" + object);
  }

  Channel& channel_;
  hid_t file_;
  WireWriter report_;
  std::map<haddr_t, std::string> visited_;
};

int compare(const void* a, const void* b) {
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}

/// The C library looks at the machine when some functions run first: how much memory there is
/// (qsort), which time zone (mktime). Later they would be killed for it.
void warm_up() {
  setenv("TZ", "UTC0", 1);
  tzset();
  std::vector<int> numbers(1024);
  std::qsort(numbers.data(), numbers.size(), sizeof(int), compare);
}

int run() {
  // The library's own start comes before the filter: it looks at its environment and loads nothing
  // later.
  warm_up();
  setenv("HDF5_PLUGIN_PRELOAD", "::", 1);
  H5open();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
  Channel channel;
  if (!confine(channel.hello().cpu_seconds))
    channel.fail(ErrorKind::kUnsupported, "this system cannot confine tessera-hdf5 (seccomp)");
  try {
    const hid_t file = open_file(channel);
    if (file < 0) {
      const std::string why = library_error();
      channel.fail(kind_of(why), "it cannot be opened: " + why);
    }
    Walker(channel, file).run();
    channel.finish();
  } catch (const std::bad_alloc&) {
    channel.fail(ErrorKind::kExhausted, "describing it takes more memory than is allowed");
  }
}

}  // namespace
}  // namespace tessera::h5

int main(int argc, char**) {
  if (argc > 1 || isatty(0)) {
    static constexpr char kText[] =
        "tessera-hdf5 is a part of the ckpt commands, which start it; it does nothing by itself\n";
    return write(2, kText, sizeof kText - 1) < 0 ? 70 : 2;
  }
  return tessera::h5::run();
}
