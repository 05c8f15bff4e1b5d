#pragma once
// Checksums that others keep of content: Adler-32, XXH3 of 128 bits, BLAKE3, each as the hexadecimal
// text that Python's packages print. Ours is CRC-32 (tessera/storage/checksum.h). Pure.
#include <tessera/base/bytes.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

std::string adler32_hex(ByteView data);
std::string xxh3_128_hex(ByteView data);
std::string blake3_hex(ByteView data);

/// XXH3 of 128 bits of what is added piece by piece.
class Xxh3Sum {
 public:
  Xxh3Sum();
  ~Xxh3Sum();
  void add(ByteView data);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "adler32", "xxh3-128", "blake3"; nullopt for other names.
std::optional<std::string> content_sum(std::string_view name, ByteView data);

}  // namespace tessera
