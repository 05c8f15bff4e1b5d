#pragma once
// Constants of the zip format, for reader and writer. Offsets are bytes in the fixed part of a
// structure.
#include <cstdint>

namespace tessera::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr std::uint32_t kCentralSignature = 0x02014b50;
inline constexpr std::uint32_t kZip64EndSignature = 0x06064b50;
inline constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;

inline constexpr std::uint64_t kLocalBytes = 30;
inline constexpr std::uint64_t kCentralBytes = 46;
inline constexpr std::uint64_t kZip64EndBytes = 56;
inline constexpr std::uint64_t kZip64LocatorBytes = 20;
inline constexpr std::uint64_t kEndBytes = 22;
inline constexpr std::uint64_t kMaxCommentBytes = 0xffff;

inline constexpr std::uint16_t kFlagEncrypted = 0x0001;
inline constexpr std::uint16_t kFlagDescriptor = 0x0008;
inline constexpr std::uint16_t kFlagUtf8 = 0x0800;
inline constexpr std::uint32_t kFolderAttribute = 0x10;  // of the external attributes
inline constexpr std::uint16_t kMethodStored = 0;
inline constexpr std::uint16_t kZip64ExtraId = 0x0001;

// A field that does not fit holds this; the true value is in the zip64 extra field.
inline constexpr std::uint32_t kSentinel32 = 0xffffffff;
inline constexpr std::uint16_t kSentinel16 = 0xffff;

}  // namespace tessera::zip
