#include "tests/support/hostile_bytes.h"

#include <tessera/storage/checksum.h>
#include <zlib.h>

#include <stdexcept>

namespace tessera::testing {
namespace {

std::string u16(std::size_t value) { return le(static_cast<std::uint16_t>(value)); }
std::string u32(std::size_t value) { return le(static_cast<std::uint32_t>(value)); }

/// What local header and directory entry share, from the flags on.
std::string common_fields(const ZipRecord& record, const std::string& name) {
  const std::uint32_t crc =
      record.declared_crc != 0 ? record.declared_crc : crc32(0, as_bytes(record.content));
  const std::size_t size = record.declared_size != 0 ? record.declared_size : record.content.size();
  return u16(0) + u16(record.method) + u32(0) + u32(crc) + u32(record.content.size()) + u32(size) +
         u16(name.size());
}

std::string short_text(const std::string& text) {  // BINUNICODE
  return "X" + u32(text.size()) + text;
}

}  // namespace

std::string zip_of(const std::vector<ZipRecord>& records) {
  std::string file, directory;
  std::vector<std::size_t> places;
  for (const ZipRecord& record : records) {
    const bool shared = record.same_place_as < places.size();
    const ZipRecord& stored = shared ? records[record.same_place_as] : record;
    places.push_back(shared ? places[record.same_place_as] : file.size());
    if (!shared)
      file += "PK\x03\x04" + u16(20) + common_fields(record, record.name) + u16(0) + record.name +
              record.content;
    directory += "PK\x01\x02" + u16(20) + u16(20) + common_fields(stored, record.name) + u16(0) +
                 u16(0) + u16(0) + u16(0) + u32(0) + u32(places.back()) + record.name;
  }
  const std::size_t at = file.size();
  return file + directory + "PK\x05\x06" + u32(0) + u16(records.size()) + u16(records.size()) +
         u32(directory.size()) + u32(at) + u16(0);
}

std::string torch_zip_of(const std::string& pickle, const std::string& storage) {
  return zip_of({{"archive/data.pkl", pickle},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", storage},
                 {"archive/version", "3\n"}});
}

std::string deflated(const std::string& content) {
  z_stream stream{};
  if (deflateInit2(&stream, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::vector<std::string> hostile_pickles(const std::string& module, const std::string& name) {
  const std::string proto = std::string("\x80\x02", 2);
  const std::string proto4 = std::string("\x80\x04", 2);
  const std::string global = "c" + module + "\n" + name + "\n";
  const std::string arguments = "(" + short_text("true") + "t";
  const std::string stack_global = short_text(module) + short_text(name) + "\x93";
  const std::string call = global + arguments + "R";
  return {
      proto + call + ".",                                 // REDUCE
      proto4 + stack_global + arguments + "R.",           // STACK_GLOBAL
      "(S'true'\ni" + module + "\n" + name + "\n.",       // INST
      "(" + global + "S'true'\no.",                       // OBJ
      proto + global + arguments + "\x81.",               // NEWOBJ
      proto4 + global + arguments + "}\x92.",             // NEWOBJ_EX
      proto + call + "}" + short_text("x") + "K\x01sb.",  // BUILD on what it gives
      proto + "}" + short_text("weight") + call + "s.",   // a value among others
      proto + "}" + call + "K\x01s.",                     // a key
      proto + "cbuiltins\ngetattr\n(" + global + short_text("__call__") + "tR" + arguments + "R.",
      proto + global + "q\x01" + "0h\x01" + arguments + "R.",  // by way of the memo
      proto + "ctorch._utils\n_rebuild_tensor_v2\n(" + call + "K" + std::string(1, '\0') +
          ")))tR.",                                           // as the storage of a tensor
      proto + call + "Q.",                                    // as a persistent id
      proto + "ccollections\nOrderedDict\n)R" + call + "b.",  // as the state of an allowed one
  };
}

}  // namespace tessera::testing
