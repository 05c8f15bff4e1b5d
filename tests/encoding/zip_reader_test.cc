// One small archive, and one test per way in which bytes can contradict the format.
#include <tessera/encoding/zip_reader.h>

#include <catch2/catch.hpp>

#include "lib/encoding/zip_layout.h"
#include "tests/support/archive_gather.h"

namespace zip_reader_test {

using namespace tessera;
using namespace tessera::test;
using namespace std::string_literals;

namespace {

using Records = std::vector<std::pair<std::string, std::string>>;

std::string archive_of(const Records& records, bool checksums = true) {
  ZipLayout layout;
  Bytes out;
  std::vector<std::uint32_t> crcs;
  for (const auto& [name, data] : records) {
    const std::size_t i = layout.add(name, data.size());
    crcs.push_back(checksums ? crc32(0, as_bytes(data)) : 0);
    layout.append_header(i, out);
    out.insert(out.end(), as_bytes(data).begin(), as_bytes(data).end());
    layout.append_descriptor(i, crcs[i], out);
  }
  layout.append_directory([&](std::size_t i) { return crcs[i]; }, out);
  CHECK(out.size() == layout.size_bytes());
  return std::string(as_text(out));
}

const Records kRecords = {{"a/data.pkl", "hello"}, {"a/data/0", "12345678"}, {"a/version", "3\n"}};

/// Offsets of the structures of archive_of(kRecords).
struct Places {
  std::size_t directory, second_entry, zip64_end, locator, end;
  explicit Places(const std::string& zip)
      : directory(zip.find("PK\1\2")),
        second_entry(zip.find("PK\1\2", directory + 1)),
        zip64_end(zip.size() - 98),
        locator(zip.size() - 42),
        end(zip.size() - 22) {}
};

std::string patched(std::string zip, std::size_t at, std::string_view bytes) {
  REQUIRE(at + bytes.size() <= zip.size());
  return zip.replace(at, bytes.size(), bytes);
}

/// Opens the archive and reads all of it.
Code use(const std::string& bytes, std::string* message = nullptr) {
  const ByteFile file(bytes);
  return code_of(
      [&] {
        ZipReader zip(ByteWindow::whole(file));
        for (const ZipEntry& entry : zip.entries()) zip.read(entry);
      },
      message);
}

void check_refused(const std::string& name, const std::string& bytes, const std::string& says,
                   Code code = Code::kCorrupt) {
  INFO(name);
  std::string message;
  CHECK(use(bytes, &message) == code);
  CHECK_THAT(message, Catch::Contains(says));
}

}  // namespace

TEST_CASE("records are found, located and read") {
  const ByteFile file(archive_of(kRecords));
  ZipReader zip(ByteWindow::whole(file));
  CHECK(zip.prefix() == "a");
  REQUIRE(zip.entries().size() == 3);
  const ZipEntry* entry = zip.find("data/0");
  REQUIRE(entry);
  CHECK(entry->size_bytes == 8);
  CHECK(zip.data_offset(*entry) % 64 == 0);
  CHECK(as_text(zip.read(*entry)) == "12345678");
  CHECK_FALSE(zip.find("data/1"));
  CHECK(file.reads == 1);
}

TEST_CASE("an archive inside of a file is read through its window") {
  const std::string zip = archive_of(kRecords);
  const ByteFile file("junk before" + zip + "junk after");
  ZipReader reader(ByteWindow::whole(file).sub(11, zip.size()));
  CHECK(as_text(reader.read(*reader.find("version"))) == "3\n");
}

TEST_CASE("a large archive is read through its two ends") {
  const std::string big(200'000, 'x');
  const ByteFile file(
      archive_of({{"a/data.pkl", "hello"}, {"a/data/0", big}, {"a/version", "3\n"}}));
  ZipReader zip(ByteWindow::whole(file));
  zip.data_offset(*zip.find("data/0"));
  zip.read(*zip.find("data.pkl"));
  zip.read(*zip.find("version"));
  CHECK(file.reads == 2);
  CHECK(as_text(zip.read(*zip.find("data/0"))) == big);
}

TEST_CASE("a comment and other writers' archives are accepted where they are unambiguous") {
  std::string zip = archive_of(kRecords);
  zip[zip.size() - 2] = 5;
  CHECK(use(zip + "hello") == Code::kOk);
  const std::string fake = "PK\5\6"s + std::string(16, '\0') + "\3\0xyz"s;
  zip[zip.size() - 2] = static_cast<char>(fake.size());
  check_refused("a comment that holds an end record", zip + fake, "two end records");
  const std::string lying = "PK\5\6"s + std::string(16, '\0') + "\7\0xyz"s;
  check_refused("an end record behind the end whose comment does not fit", zip + lying,
                "two end records");
  check_refused("garbage after the end", archive_of(kRecords) + "x", "no end of central directory");
}

TEST_CASE("a folder holds no bytes") {
  std::string zip = archive_of(kRecords);
  const std::size_t attributes = zip.find("PK\1\2") + 38;
  zip[attributes] = '\x20';
  CHECK(use(zip) == Code::kOk);
  zip[attributes] = '\x30';
  check_refused("by its attributes", zip, "is a folder that holds bytes");
  check_refused("by its name", archive_of({{"a/x", "1"}, {"a/y/", "2"}}),
                "is a folder that holds bytes");
}

TEST_CASE("every truncation is refused") {
  const std::string zip = archive_of(kRecords);
  for (std::size_t length = 0; length < zip.size(); ++length)
    CHECK(use(zip.substr(0, length)) == Code::kCorrupt);
}

TEST_CASE("no single changed byte goes unnoticed, but for the fields that nobody reads") {
  const std::string zip = archive_of(kRecords);
  const ByteFile original(zip);
  int silent = 0;
  for (std::size_t at = 0; at < zip.size(); ++at) {
    std::string changed = zip;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    const ByteFile file(changed);
    // Whatever is still accepted must still hold the same bytes under the same names.
    try {
      ZipReader reader(ByteWindow::whole(file));
      for (const ZipEntry& entry : reader.entries()) reader.read(entry);
      for (const auto& [name, data] : kRecords) {
        const ZipEntry* entry = reader.find(name.substr(2));
        REQUIRE(entry);
        const Bytes read = reader.read(*entry);
        CHECK(as_text(read) == data);
      }
      ++silent;
    } catch (const Error& error) {
      CHECK((error.code() == Code::kCorrupt || error.code() == Code::kUnsupported));
    }
  }
  CHECK(silent > 0);
}

TEST_CASE("names that play tricks are refused") {
  check_refused("absolute", archive_of({{"/a/x", "1"}}), "is absolute");
  check_refused("parent", archive_of({{"a/../x", "1"}}), "leaves its folder");
  check_refused("backslash", archive_of({{"a/x\\y", "1"}}), "backslash");
  check_refused("NUL", archive_of({{"a/x\0y"s, "1"}}), "NUL");
  check_refused("not UTF-8", archive_of({{"a/\xff", "1"}}), "not UTF-8");
  check_refused("no folder", archive_of({{"x", "1"}}), "not below the top folder");
  check_refused("two folders", archive_of({{"a/x", "1"}, {"b/x", "1"}}), "not below");
  check_refused("folder by prefix only", archive_of({{"a/x", "1"}, {"ab/x", "1"}}), "not below");
  check_refused("twice", archive_of({{"a/x", "1"}, {"a/x", "2"}}), "two entries are named \"x\"");
  check_refused("in capitals", archive_of({{"a/x", "1"}, {"a/X", "2"}}), "but for capital letters");
  check_refused("no entries", archive_of({}), "no entries");
}

TEST_CASE("what torch.save never writes is unsupported by name") {
  const std::string zip = archive_of(kRecords);
  const Places at(zip);
  const Code code = Code::kUnsupported;
  check_refused("encrypted", patched(zip, at.directory + 8, "\x01"), "is encrypted", code);
  check_refused("unknown flag", patched(zip, at.directory + 8, "\x48"), "has flags", code);
  check_refused("deflated", patched(zip, at.directory + 10, "\x08"), "is compressed (method 8)",
                code);
  check_refused("split, entry", patched(zip, at.directory + 34, "\x01"), "split", code);
  check_refused("split, end", patched(zip, at.end + 4, "\x01"), "split", code);
  check_refused("split, locator", patched(zip, at.locator + 16, "\x02"), "split", code);
}

TEST_CASE("end records that disagree are refused") {
  const std::string zip = archive_of(kRecords);
  const Places at(zip);
  check_refused("count", patched(patched(zip, at.end + 8, "\x04"), at.end + 10, "\x04"),
                "two end records disagree");
  check_refused("count, half", patched(zip, at.end + 10, "\x04"), "disagrees with itself");
  check_refused("directory size", patched(zip, at.end + 12, "\x01"), "disagree");
  check_refused("directory offset", patched(zip, at.end + 16, "\x01"), "disagree");
  check_refused("zip64 position", patched(zip, at.locator + 8, "\xff\xff\xff\xff\xff\xff\xff\xff"),
                "lies outside");
  check_refused("zip64 signature", patched(zip, at.zip64_end, "XX"), "malformed zip64 end");
  check_refused("zip64 size", patched(zip, at.zip64_end + 4, "\x2d"), "malformed zip64 end");
  check_refused("huge count",
                patched(patched(patched(patched(zip, at.zip64_end + 24, "\xff\xff\xff\xff\xff"),
                                        at.zip64_end + 32, "\xff\xff\xff\xff\xff"),
                                at.end + 8, "\xff\xff"),
                        at.end + 10, "\xff\xff"),
                "cannot fit in a directory");
  check_refused("sentinel without zip64",
                patched(patched(zip, at.locator, "XXXX"), at.end + 16, "\xff\xff\xff\xff"),
                "zip64 end record is missing");
}

TEST_CASE("directory entries that contradict the file are refused") {
  const std::string zip = archive_of(kRecords);
  const Places at(zip);
  const std::string four("\x00\x00\x00\x10", 4);
  check_refused("signature", patched(zip, at.second_entry, "XX"), "malformed directory entry");
  check_refused("two sizes", patched(zip, at.second_entry + 24, "\x09"), "has two sizes");
  check_refused("huge record",
                patched(patched(zip, at.second_entry + 20, four), at.second_entry + 24, four),
                "overlaps");
  check_refused("one byte more",
                patched(patched(zip, at.second_entry + 20, "\x41"), at.second_entry + 24, "\x41"),
                "overlaps");
  check_refused("past the end", patched(zip, at.second_entry + 42, four), "leaves the file");
  check_refused("same place", patched(zip, at.second_entry + 42, "\0\0"s), "overlaps");
  check_refused("bytes before", patched(zip, at.directory + 42, "\x01"), "before the first record");
  check_refused("long name", patched(zip, at.directory + 28, "\xff\xff"),
                "past the directory's end");
  check_refused("sentinel without extra",
                patched(patched(zip, at.second_entry + 20, "\xff\xff\xff\xff"),
                        at.second_entry + 24, "\xff\xff\xff\xff"),
                "without its zip64 value");
}

TEST_CASE("local headers must agree with the directory when a record is read") {
  const std::string zip = archive_of(kRecords);
  check_refused("signature", patched(zip, 0, "XX"), "no signature");
  check_refused("name", patched(zip, 30, "b"), "another name");
  check_refused("name length", patched(zip, 26, "\x09"), "another name");
  check_refused("flags", patched(zip, 7, "\0"s), "other flags or method");
  check_refused("method", patched(zip, 8, "\x08"), "other flags or method");
  check_refused("crc", patched(zip, 14, "\x01"), "another size or CRC");
  check_refused("size", patched(zip, 22, "\x07"), "another size or CRC");
  check_refused("stored size", patched(zip, 18, "\x07"), "another size or CRC");
  check_refused("extra length", patched(zip, 28, "\xff\xff"), "overlaps what follows");
  check_refused("extra field", patched(zip, 42, "\xff\xff"), "malformed extra field");
}

TEST_CASE("changed data shows against the CRC") {
  const std::string zip = archive_of(kRecords);
  check_refused("data", patched(zip, zip.find("hello"), "j"), "CRC-32 of \"data.pkl\"");
}

TEST_CASE("an archive whose every CRC is zero was saved with checksums off and is read") {
  const ByteFile file(archive_of(kRecords, false));
  ZipReader zip(ByteWindow::whole(file));
  CHECK_FALSE(zip.has_checksums());
  CHECK(as_text(zip.read(*zip.find("data.pkl"))) == "hello");
  const ByteFile with(archive_of(kRecords));
  CHECK(ZipReader(ByteWindow::whole(with)).has_checksums());
}

TEST_CASE("a CRC of zero beside others is a wrong one") {
  const std::string zip = archive_of(kRecords);
  const std::size_t descriptor = zip.find("PK\7\x08");
  std::string zeroed = patched(zip, Places(zip).directory + 16, "\0\0\0\0"s);
  check_refused("zeroed", patched(zeroed, descriptor + 4, "\0\0\0\0"s), "CRC-32 of \"data.pkl\"");
}

}  // namespace zip_reader_test
