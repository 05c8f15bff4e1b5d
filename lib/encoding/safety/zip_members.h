#pragma once
// The members of a zip archive for whoever must see all that any program could see in it, where
// zip_reader.h refuses whatever is odd: every directory that the end of the window offers (programs
// differ in which one they take), members whose names, flags, sums or sizes contradict each other,
// archives behind other bytes. Nothing is proved about the bytes.
#include <tessera/encoding/byte_window.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct ZipMember {
  std::string name;
  std::uint64_t header_offset = 0;  // of its local header
  std::uint64_t length = 0;         // as it lies in the file
  std::uint16_t method = 0;         // 0 stored, 8 deflated
  std::uint64_t data_offset = 0;    // set by place_member()
};

/// What a directory's end and the longest comment behind it take.
inline constexpr std::uint64_t kZipTailBytes = 0xffff + 22 + 20 + 56;

/// By every directory that ends in the last `tail_bytes`; equal ones once. Empty: none can be read.
std::vector<ZipMember> list_zip_members(const ByteWindow& window,
                                        std::uint64_t tail_bytes = kZipTailBytes);

/// Finds where the bytes of a listed member begin, by its local header, and cuts them at the
/// window's end. False: there is no header.
bool place_member(const ByteWindow& window, ZipMember& member);

/// Members by their local headers alone, in the order of the bytes from `from` on, wherever they
/// stand: archives in a row (DCP), or one whose directory is lost. A member whose length its header
/// does not say reaches to the next header. Reads the whole window.
std::vector<ZipMember> find_zip_members(const ByteWindow& window);

}  // namespace tessera
