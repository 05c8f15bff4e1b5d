// What holds other files: zip, tar, compressed files, DCP's items; and NumPy's object arrays.
#include <fmt/format.h>
#include <tessera/base/error.h>
#include <tessera/base/text.h>
#include <tessera/encoding/codec.h>

#include <algorithm>
#include <charconv>

#include "lib/encoding/memory_file.h"
#include "lib/ops/scan/content.h"

namespace tessera {
namespace {

constexpr std::uint64_t kBlock = 512;  // of tar
constexpr std::uint64_t kFirstBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kMostHeaderBytes = std::uint64_t{1} << 20;

bool is_torch_zip(const std::vector<ZipMember>& members) {
  return std::ranges::any_of(members, [](const ZipMember& m) {
    return m.name == "data.pkl" || m.name.ends_with("/data.pkl");
  });
}

bool is_script(const std::vector<ZipMember>& members) {
  return std::ranges::any_of(members, [](const ZipMember& m) {
    return m.name == "constants.pkl" || m.name.ends_with("/constants.pkl");
  });
}

std::string_view kind_of_zip(const std::vector<ZipMember>& members) {
  if (is_script(members)) return "TorchScript archive";
  if (is_torch_zip(members)) return "torch archive";
  const bool is_npz =
      std::ranges::all_of(members, [](const ZipMember& m) { return m.name.ends_with(".npy"); });
  if (is_npz && !members.empty()) return "NumPy archive";
  const bool is_keras =
      std::ranges::any_of(members, [](const ZipMember& m) { return m.name == "config.json"; });
  return is_keras ? "Keras archive" : "zip archive";
}

/// An octal number, or, where the first bit says so, a binary one.
std::optional<std::uint64_t> tar_number(std::string_view field) {
  std::uint64_t out = 0;
  if (!field.empty() && (field[0] & 0x80)) {
    for (const char c : field.substr(field.size() - 8))
      out = out << 8 | static_cast<std::uint8_t>(c);
    return out;
  }
  bool any = false;
  for (const char c : field) {
    if (c >= '0' && c <= '7')
      out = out * 8 + static_cast<std::uint64_t>(c - '0'), any = true;
    else if (any || (c != ' ' && c != '\0'))
      break;
  }
  return any ? std::optional(out) : std::nullopt;
}

std::string until_nul(std::string_view field) {
  return std::string(field.substr(0, field.find('\0')));
}

/// Relative, and never above where it starts.
bool stays_below(std::string_view path) {
  if (path.starts_with('/')) return false;
  int depth = 0;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (part == "..")
      --depth;
    else if (!part.empty() && part != ".")
      ++depth;
    if (depth < 0) return false;
  }
  return true;
}

/// "path" or "size" of a pax header: lines "LENGTH key=value\n".
std::string pax_value(std::string_view text, std::string_view key) {
  std::string found;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view pair = line.substr(space + 1);
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with('='))
      found = pair.substr(key.size() + 1);
  }
  return found;
}

}  // namespace

void ContentScanner::scan_zip(const ByteWindow& window, const Place& place) {
  constexpr std::uint64_t kItemTail = 4096;
  std::vector<ZipMember> members =
      list_zip_members(window, place.is_item ? kItemTail : kZipTailBytes);
  if (members.empty()) {
    is_kind("zip archive", place);
    const Bytes head = window.read(0, std::min<std::uint64_t>(4, window.length));
    if (as_text(head) != "PK\x05\x06")
      add(Safety::kUnknown, "a zip archive whose directory cannot be read", place.inside);
    return scan_headers(window, place);
  }
  is_kind(kind_of_zip(members), place);
  if (is_script(members))
    add(Safety::kUnknown, "TorchScript code, which runs when the model is called", place.inside);
  std::ranges::sort(members, {}, &ZipMember::header_offset);
  std::vector<ZipMember> placed;
  for (ZipMember& member : members) {
    if (place_member(window, member))
      placed.push_back(std::move(member));
    else
      add(Safety::kUnknown,
          fmt::format("member {} is not where the directory says", printable(member.name)),
          place.inside);
  }
  scan_members(window, place, placed);
  // Archives in a row, of which the directory is the last one's.
  const bool more = !placed.empty() && placed.front().header_offset > 0;
  if (more && as_text(window.read(0, 4)) == "PK\x03\x04")
    scan_headers(window.sub(0, placed.front().header_offset), place);
}

/// By the headers of members wherever they stand, and by the look of what else is there.
void ContentScanner::scan_headers(const ByteWindow& window, const Place& place) {
  is_kind("archives in a row", place);
  scan_members(window, place, find_zip_members(window));
  PickleScan names;
  search_names(window, 0, names);
  std::erase_if(names.uses, [](const PickleUse& use) { return use.safety != Safety::kDangerous; });
  add_uses(names, place);
  if (window.length == 0) return;
  const Bytes head = window.read(0, std::min<std::uint64_t>(2, window.length));
  if (!as_text(head).starts_with("PK")) scan_pickles(window, place, false);
}

void ContentScanner::scan_members(const ByteWindow& window, const Place& place,
                                  const std::vector<ZipMember>& members) {
  const bool is_torch = is_torch_zip(members);
  const bool script = is_script(members);
  for (const ZipMember& member : members) {
    if (script && member.name.ends_with(".py")) continue;  // said once
    Place inside = member_of(place, member.name);
    inside.is_record = is_torch && !member.name.ends_with(".pkl");
    try {
      scan_member(window.sub(member.data_offset, member.length), member, inside);
    } catch (const Error& error) {
      if (error.code() == Code::kCancelled || error.code() == Code::kInternal) throw;
      add(Safety::kUnknown, "it cannot be looked into: " + error.status().message, inside.inside);
    }
  }
}

void ContentScanner::scan_member(const ByteWindow& bytes, const ZipMember& member,
                                 const Place& place) {
  if (member.method == 8) return scan_deflated(bytes, place, DeflateForm::kRaw);
  // A directory that calls its members packed does not keep PyTorch from reading what is there.
  if (member.method != 0)
    add(Safety::kUnknown,
        fmt::format("a member is packed by method {}, which is not opened here", member.method),
        place.inside);
  scan(bytes, place);
}

void ContentScanner::scan_deflated(const ByteWindow& bytes, const Place& place, DeflateForm form) {
  Inflated data = inflate_bounded(bytes, form, std::min(kFirstBytes, packed_limit_bytes_));
  const std::string_view head = as_text(data.bytes);
  const bool is_bulk = head.starts_with("\x93NUMPY") && !has_objects(head.substr(0, 4096));
  if (!data.whole && !is_bulk) data = inflate_bounded(bytes, form, packed_limit_bytes_);
  const MemoryFile file(data.bytes, bytes.file->path());
  scan(ByteWindow::whole(file), place);
  if (data.whole || is_bulk) return;
  add(Safety::kUnknown,
      data.bytes.size() >= packed_limit_bytes_
          ? fmt::format("packed bytes of which the first {} were looked at (--mem-limit)",
                        data.bytes.size())
          : "packed bytes that are damaged",
      place.inside);
}

void ContentScanner::scan_zstd(const ByteWindow& window, const Place& place) {
  is_kind("compressed file", place);
  if (window.length > packed_limit_bytes_)
    return add(Safety::kUnknown, "packed bytes beyond --mem-limit", place.inside);
  const Bytes data = decode("stream.zstd", window.read(0, window.length), packed_limit_bytes_);
  const MemoryFile file(data, window.file->path());
  scan(ByteWindow::whole(file), member_of(place, "(inside)"));
}

bool is_tar_header(std::string_view block) {
  if (block.size() < kBlock) return false;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<std::uint8_t>(block[i]);
  return block[0] != '\0' && tar_number(block.substr(148, 8)) == sum;
}

void ContentScanner::scan_tar(const ByteWindow& window, const Place& place) {
  is_kind("tar archive", place);
  std::string long_name;
  std::optional<std::uint64_t> long_size;
  for (std::uint64_t at = 0; window.length - at >= kBlock;) {
    const Bytes bytes = window.read(at, kBlock);
    const std::string_view header = as_text(bytes);
    if (header.find_first_not_of('\0') == std::string_view::npos) return;
    if (!is_tar_header(header))
      return add(Safety::kUnknown, "a tar archive that breaks off", place.inside);
    const char type = header[156];
    std::string name = until_nul(header.substr(0, 100));
    if (header.substr(257, 5) == "ustar" && header[345] != '\0' &&
        header.substr(257, 8) != "ustar  ")
      name = until_nul(header.substr(345, 155)) + "/" + name;
    std::uint64_t size = tar_number(header.substr(124, 12)).value_or(0);
    at += kBlock;
    const bool describes = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    if (!describes) {
      if (!long_name.empty()) name = long_name;
      if (long_size) size = *long_size;
      long_name.clear(), long_size.reset();
    }
    size = std::min(size, window.length - at);
    if (describes && size <= kMostHeaderBytes) {
      const Bytes text = window.read(at, size);
      if (type == 'L') long_name = until_nul(as_text(text));
      if (type == 'x') {
        long_name = pax_value(as_text(text), "path");
        const std::string digits = pax_value(as_text(text), "size");
        std::uint64_t number = 0;
        if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec == std::errc())
          long_size = number;
      }
    } else if (type == '1' || type == '2') {
      const std::string target = until_nul(header.substr(157, 100));
      const std::string folder = name.substr(0, name.rfind('/') + 1);
      if (!stays_below(target) && (target.starts_with('/') || !stays_below(folder + target)))
        add(Safety::kUnknown,
            fmt::format("a link out of the archive: {} -> {}", printable(name), printable(target)),
            place.inside);
      size = 0;
    } else if (!describes) {
      if (!stays_below(name))
        add(Safety::kUnknown, fmt::format("a member that unpacks elsewhere: {}", printable(name)),
            place.inside);
      if (type == '0' || type == '\0' || type == '7')
        scan(window.sub(at, size), member_of(place, name));
    }
    const std::uint64_t padded = size + (kBlock - size % kBlock) % kBlock;
    at += std::min(padded, window.length - at);
  }
}

bool has_objects(std::string_view npy_header) {
  for (std::size_t i = npy_header.find('O'); i != std::string_view::npos;
       i = npy_header.find('O', i + 1)) {
    std::size_t before = i;
    while (before > 0 &&
           std::string_view("|<>=").find(npy_header[before - 1]) != std::string_view::npos)
      --before;
    std::size_t after = i + 1;
    while (after < npy_header.size() && is_digit(npy_header[after])) ++after;
    const auto is_quote = [&](std::size_t at) {
      return at < npy_header.size() && (npy_header[at] == '\'' || npy_header[at] == '"');
    };
    if (before > 0 && is_quote(before - 1) && is_quote(after)) return true;
  }
  return false;
}

/// "\x93NUMPY" major minor, the header's length in 2 bytes (version 1) or 4, a Python literal.
void ContentScanner::scan_npy(const ByteWindow& window, const Place& place) {
  is_kind("NumPy array", place);
  if (window.length < 12) return;
  const Bytes fixed = window.read(0, 12);
  const bool wide = fixed[6] != std::byte{1};
  const std::uint64_t begin = wide ? 12 : 10;
  const std::uint64_t length =
      wide ? load_le<std::uint32_t>(fixed.data() + 8) : load_le<std::uint16_t>(fixed.data() + 8);
  if (length > window.length - begin || length > kMostHeaderBytes)
    return add(Safety::kUnknown, "a NumPy header that ends early", place.inside);
  const Bytes header = window.read(begin, length);
  if (!has_objects(as_text(header))) return;
  Place objects = member_of(place, "(objects)");
  objects.inside = place.inside;
  objects.name = "objects.pkl";
  scan_pickles(window.sub(begin + length, window.length - begin - length), objects, false);
}

void ContentScanner::scan_pieces(const ByteWindow& file, const Place& place,
                                 const std::vector<FilePiece>& pieces) {
  is_kind("DCP items", place);
  std::uint64_t covered = 0;
  for (const FilePiece& piece : pieces) {
    if (piece.offset > file.length || piece.length > file.length - piece.offset) {
      add(Safety::kUnknown, "an item that leaves the file");
      continue;
    }
    if (piece.offset > covered)
      scan_headers(file.sub(covered, piece.offset - covered), member_of(place, "(between items)"));
    Place item = member_of(place, fmt::format("(item at byte {})", piece.offset));
    item.is_item = true;
    scan(file.sub(piece.offset, piece.length), item);
    covered = std::max(covered, piece.offset + piece.length);
  }
  if (covered < file.length)
    scan_headers(file.sub(covered, file.length - covered), member_of(place, "(behind the items)"));
}

}  // namespace tessera
