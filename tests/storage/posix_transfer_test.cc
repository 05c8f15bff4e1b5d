// Reading and writing on the real file system: every split of a request, every rung of the ladder,
// gives the same bytes.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tessera/storage/aligned_buffer.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "tests/storage/storage_fixture.h"

namespace posix_transfer_test {

using namespace tessera;
using namespace tessera::test;
using storage::DirectPolicy;
using storage::DirectRefusal;
using storage::PosixOptions;

namespace {

Bytes slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const ByteView bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

// Standard error while `work` runs.
template <class F>
std::string stderr_of(F&& work) {
  const TempDir temp;
  const std::string path = temp / "stderr";
  const int saved = ::dup(2);
  const int file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  ::dup2(file, 2);
  work();
  ::dup2(saved, 2);
  ::close(saved);
  ::close(file);
  const Bytes text = slurp(path);
  return std::string(as_text(text));
}

// Empty where both are the same, else where they part: two files of 40,000 bytes say little whole.
std::string difference(const Bytes& found, const Bytes& expected) {
  if (found.size() != expected.size())
    return fmt::format("{} bytes instead of {}", found.size(), expected.size());
  const auto at = std::ranges::mismatch(found, expected).in1 - found.begin();
  std::size_t differing = 0;
  for (std::size_t i = 0; i < found.size(); ++i) differing += found[i] != expected[i];
  if (differing == 0) return {};
  return fmt::format("{} bytes differ, from {} on: {:#x} instead of {:#x}", differing, at,
                     static_cast<int>(found[static_cast<std::size_t>(at)]),
                     static_cast<int>(expected[static_cast<std::size_t>(at)]));
}

std::vector<PosixOptions> every_way() {
  std::vector<PosixOptions> ways;
  for (const DirectPolicy policy : {DirectPolicy::kAuto, DirectPolicy::kNever}) {
    for (const std::size_t cap :
         {std::size_t{1} << 30, std::size_t{8192}, std::size_t{1000}, std::size_t{1}}) {
      PosixOptions way;
      way.direct = policy;
      way.max_transfer_bytes = cap;
      ways.push_back(way);
    }
  }
  for (const DirectRefusal refusal : {DirectRefusal::kOpen, DirectRefusal::kTransfer}) {
    PosixOptions way;
    way.refuse_direct = refusal;
    ways.push_back(way);
  }
  return ways;
}

}  // namespace

TEST_CASE("writes at any offset, length and address give the reference file, direct or not") {
  const TempDir temp;
  const std::size_t kSize = 40'000;
  int n = 0;
  for (const PosixOptions& way : every_way()) {
    const auto fs = make_posix_file_system(way);
    for (const IoMode mode : {IoMode::kBuffered, IoMode::kDirect}) {
      const std::uint64_t seed = 100 + static_cast<std::uint64_t>(n);
      INFO("seed " << seed << ", transfer cap " << way.max_transfer_bytes);
      std::mt19937_64 random(seed);
      const std::string path = temp / fmt::format("f{}", n++);
      const auto file = fs->create(path, mode);
      Bytes reference(kSize);
      file->allocate(kSize);
      AlignedBuffer buffer(kSize + 2 * kIoAlignment);
      const int rounds = way.max_transfer_bytes == 1 ? 4 : 60;
      for (int i = 0; i < rounds; ++i) {
        std::size_t offset = random() % kSize;
        if (i % 4 == 0) offset = offset / kIoAlignment * kIoAlignment;
        std::size_t length = random() % (kSize - offset) + 1;
        if (i % 8 == 0) length = std::max<std::size_t>(length / kIoAlignment * kIoAlignment, 1);
        // Congruent to the offset (so that the middle can go direct), or not.
        const std::size_t shift = i % 3 == 0 ? random() % kIoAlignment : offset % kIoAlignment;
        const MutableBytes data(buffer.data() + shift, length);
        for (std::byte& byte : data) byte = static_cast<std::byte>(random());
        file->write_at(offset, data);
        std::memcpy(reference.data() + offset, data.data(), length);
      }
      file->sync();
      file->close();
      REQUIRE(difference(slurp(path), reference) == "");
    }
  }
}

TEST_CASE("reads at any offset, length and address give the file's bytes, direct or not") {
  const TempDir temp;
  const Bytes content = random_bytes(50'123, 7);
  {
    const auto fs = make_posix_file_system(PosixOptions{});
    put(*fs, temp / "data", content);
  }
  AlignedBuffer buffer(content.size() + 3 * kIoAlignment);
  for (const PosixOptions& way : every_way()) {
    const auto fs = make_posix_file_system(way);
    for (const IoMode mode : {IoMode::kBuffered, IoMode::kDirect}) {
      const auto file = fs->open_directory(temp.path())->open("data", mode);
      REQUIRE(file->size_bytes() == content.size());
      std::mt19937_64 random(8);
      const int rounds = way.max_transfer_bytes == 1 ? 4 : 100;
      for (int i = 0; i < rounds; ++i) {
        const bool aligned = i % 2 == 0;
        std::size_t offset = random() % (content.size() + 1);
        std::size_t length = random() % (content.size() - offset + 1);
        std::size_t shift = random() % kIoAlignment;
        if (aligned) {
          offset = offset / kIoAlignment * kIoAlignment;
          length = length / kIoAlignment * kIoAlignment;
          shift = 0;
        }
        const MutableBytes out(buffer.data() + shift, length);
        std::memset(out.data(), 0xee, out.size());
        file->read_at(offset, out);
        REQUIRE(std::memcmp(out.data(), content.data() + offset, length) == 0);
      }
    }
  }
}

TEST_CASE("the last block of a direct file may be asked for whole, past the end nothing") {
  const TempDir temp;
  const Bytes content = random_bytes(3 * kIoAlignment + 5, 9);
  const auto fs = make_posix_file_system(PosixOptions{});
  put(*fs, temp / "data", content);
  const auto directory = fs->open_directory(temp.path());
  AlignedBuffer buffer(5 * kIoAlignment);

  const auto direct = directory->open("data", IoMode::kDirect);
  direct->read_at(0, {buffer.data(), 4 * kIoAlignment});
  REQUIRE(std::memcmp(buffer.data(), content.data(), content.size()) == 0);
  REQUIRE(code_of([&] {
            direct->read_at(0, {buffer.data(), 5 * kIoAlignment});
          }) == Code::kCorrupt);
  REQUIRE(code_of([&] {
            direct->read_at(4 * kIoAlignment + 1, {buffer.data(), 1});
          }) == Code::kCorrupt);
  REQUIRE(code_of([&] {
            direct->read_at(~std::uint64_t{0}, {buffer.data(), 2});
          }) == Code::kCorrupt);

  const auto buffered = directory->open("data", IoMode::kBuffered);
  REQUIRE(message_of([&] {
            buffered->read_at(content.size() - 1, {buffer.data(), 2});
          }).find("file ends at 12293 bytes") != std::string::npos);
  buffered->read_at(content.size(), {buffer.data(), 0});
}

TEST_CASE("a file that shrinks while it is read is corrupt, not short") {
  const TempDir temp;
  const auto fs = make_posix_file_system(PosixOptions{});
  put(*fs, temp / "data", random_bytes(3 * kIoAlignment, 10));
  AlignedBuffer buffer(3 * kIoAlignment);
  for (const IoMode mode : {IoMode::kBuffered, IoMode::kDirect}) {
    const auto file = fs->open_directory(temp.path())->open("data", mode);
    std::filesystem::resize_file(temp / "data", kIoAlignment + 17);
    REQUIRE(message_of([&] {
              file->read_at(0, {buffer.data(), buffer.size()});
            }).find("shrank") != std::string::npos);
    std::filesystem::resize_file(temp / "data", 3 * kIoAlignment);
  }
}

TEST_CASE("the ladder is logged once when asked for, and TESSERA_IO=direct forbids it") {
  const TempDir temp;
  AlignedBuffer block(kIoAlignment);
  std::memset(block.data(), 3, block.size());
  for (const DirectRefusal refusal : {DirectRefusal::kOpen, DirectRefusal::kTransfer}) {
    PosixOptions options;
    options.refuse_direct = refusal;
    options.log = true;
    const auto fs = make_posix_file_system(options);
    const std::string log = stderr_of([&] {
      for (const std::string name : {"a", "b"}) {
        const auto file = fs->create(temp / name, IoMode::kDirect);
        file->write_at(0, {block.data(), block.size()});
        file->close();
        fs->open_directory(temp.path())
            ->open(name, IoMode::kDirect)
            ->read_at(0, {block.data(), block.size()});
        fs->remove_file(temp / name);
      }
    });
    INFO(log);
    REQUIRE(log.find("O_DIRECT refused") != std::string::npos);
    REQUIRE(log.find("O_DIRECT refused") == log.rfind("O_DIRECT refused"));

    options.direct = DirectPolicy::kAlways;
    const auto strict = make_posix_file_system(options);
    const auto file = strict->create(temp / "c", IoMode::kDirect);
    REQUIRE(code_of([&] {
              file->write_at(0, {block.data(), block.size()});
            }) == Code::kUnsupported);
    REQUIRE(code_of([&] {
              strict->open_directory(temp.path())->open("c", IoMode::kDirect);
              put(*strict, temp / "d", ByteView(block.data(), block.size()));
              strict->open_directory(temp.path())
                  ->open("d", IoMode::kDirect)
                  ->read_at(0, {block.data(), block.size()});
            }) == Code::kUnsupported);
    strict->remove_file(temp / "c");
    strict->remove_file(temp / "d");
  }
}

TEST_CASE("TESSERA_IO is obeyed and its typing errors are reported") {
  ::setenv("TESSERA_IO", "buffered", 1);
  REQUIRE(storage::options_from_environment().direct == DirectPolicy::kNever);
  ::setenv("TESSERA_IO", "direct", 1);
  REQUIRE(storage::options_from_environment().direct == DirectPolicy::kAlways);
  ::setenv("TESSERA_IO", "fast", 1);
  REQUIRE(code_of([] { make_posix_file_system(); }) == Code::kInvalidArgument);
  ::unsetenv("TESSERA_IO");
  REQUIRE(storage::options_from_environment().direct == DirectPolicy::kAuto);
}

TEST_CASE("several threads write neighbouring odd pieces of one direct file") {
  const TempDir temp;
  const auto fs = make_posix_file_system(PosixOptions{});
  const Bytes content = random_bytes(600'000, 11);
  const auto file = fs->create(temp / "data", IoMode::kDirect);
  file->allocate(content.size());
  const std::size_t kPiece = 7'919;  // borders fall inside pages, so that neighbours share them
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      AlignedBuffer buffer(4 * kIoAlignment);
      for (std::size_t at = t * kPiece; at < content.size(); at += 4 * kPiece) {
        const std::size_t length = std::min(kPiece, content.size() - at);
        std::byte* to = buffer.data() + at % kIoAlignment;
        std::memcpy(to, content.data() + at, length);
        file->write_at(at, {to, length});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  file->sync();
  file->close();
  REQUIRE(difference(slurp(temp / "data"), content) == "");
}

TEST_CASE("allocate sets the size both ways and reports a disk that is too small") {
  const TempDir temp;
  const auto fs = make_posix_file_system(PosixOptions{});
  const auto file = fs->create(temp / "data", IoMode::kDirect);
  file->allocate(100'000);
  REQUIRE(std::filesystem::file_size(temp / "data") == 100'000);
  file->allocate(10);
  REQUIRE(std::filesystem::file_size(temp / "data") == 10);
  file->allocate(0);
  REQUIRE(std::filesystem::file_size(temp / "data") == 0);
  const std::uint64_t too_much = fs->free_bytes(temp.path()) + (std::uint64_t{1} << 40);
  REQUIRE(code_of([&] { file->allocate(too_much); }) == Code::kResourceExhausted);
  // Nothing was taken to find that out: others write to this disk at the same time.
  struct stat status;
  REQUIRE(::stat((temp / "data").c_str(), &status) == 0);
  REQUIRE(status.st_blocks == 0);
}

TEST_CASE("a full device is reported with its path, and the file stays poisoned") {
  const auto fs = make_posix_file_system(PosixOptions{});
  // /dev/full is no regular file, and only those may be written.
  REQUIRE(code_of([&] { fs->reopen("/dev/full", IoMode::kBuffered); }) == Code::kCorrupt);
  const TempDir temp;
  const auto file = fs->create(temp / "data", IoMode::kBuffered);
  const Bytes byte(1);
  // Past what any file system holds: EFBIG from the kernel.
  const std::string message = message_of([&] { file->write_at(std::uint64_t{1} << 62, byte); });
  REQUIRE(message.find(temp / "data") != std::string::npos);
  REQUIRE(message.find("resource exhausted") == 0);
  REQUIRE(code_of([&] { file->write_at(0, byte); }) == Code::kIo);
  REQUIRE(code_of([&] { file->sync(); }) == Code::kIo);
  REQUIRE(code_of([&] { file->close(); }) == Code::kIo);
}

TEST_CASE("a file of which the page cache holds some parts reads the same") {
  const TempDir temp;
  const std::size_t size = 96 * kIoAlignment + 17;
  Bytes content(size);
  for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  put(*make_posix_file_system(), temp / "data", content);
  const int fd = ::open((temp / "data").c_str(), O_RDONLY);
  REQUIRE(::fsync(fd) == 0);
  AlignedBuffer buffer((size / kIoAlignment + 1) * kIoAlignment);
  for (const PosixOptions& way : every_way()) {
    const auto fs = make_posix_file_system(way);
    const auto file = fs->open_directory(temp.path())->open("data", IoMode::kDirect);
    // Dropped: nothing, the start, the middle, the end, every other block.
    for (int dropped = 0; dropped < 5; ++dropped) {
      Bytes whole = slurp(temp / "data");  // all of it is in the cache again
      const auto drop = [&](std::size_t block, std::size_t blocks) {
        ::posix_fadvise(fd, static_cast<off_t>(block * kIoAlignment),
                        static_cast<off_t>(blocks * kIoAlignment), POSIX_FADV_DONTNEED);
      };
      if (dropped == 1) drop(0, 16);
      if (dropped == 2) drop(40, 16);
      if (dropped == 3) drop(80, 17);
      for (std::size_t block = 0; dropped == 4 && block < 97; block += 2) drop(block, 1);
      std::memset(buffer.data(), 0, buffer.size());
      file->read_at(0, {buffer.data(), buffer.size()});
      REQUIRE(std::memcmp(buffer.data(), content.data(), size) == 0);
    }
  }
  ::close(fd);
}

}  // namespace posix_transfer_test
