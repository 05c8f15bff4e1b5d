#pragma once
// The child's end of the socket (descriptor 0): reads of the file are requests to the toolkit, the
// report leaves in frames. Single-threaded. A broken channel ends the process: nobody listens.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/hdf5/wire.h"

namespace tessera::h5 {

class Channel {
 public:
  /// Takes the Hello; exits when what speaks is not the toolkit.
  Channel();
  const Hello& hello() const { return hello_; }

  /// Bytes [offset, offset + length) of the file, through a small cache of pages. False past its
  /// end.
  bool read(std::uint64_t offset, std::size_t length, void* out);

  /// Sends what `report` holds and empties it; exits with kExhausted past the report's limit.
  void send(WireWriter& report);
  [[noreturn]] void finish();
  [[noreturn]] void fail(ErrorKind kind, std::string_view text);

 private:
  struct Page {
    std::uint64_t number = ~std::uint64_t{0};
    std::vector<char> bytes;
  };
  void request(std::uint64_t offset, std::size_t length, void* out);
  const Page& page(std::uint64_t number);
  void frame(Frame type, const void* payload, std::size_t length);

  Hello hello_;
  std::vector<Page> pages_;
  std::uint64_t sent_ = 0;
};

}  // namespace tessera::h5
