#pragma once
// HDF5's filters, undone, as codecs of encoding/codec.h. Their names are made by the HDF5 reader,
// never taken from a file; numbers in them are.
//
//   hdf5.deflate:N      a zlib stream of at most N bytes
//   hdf5.lzf:N          LibLZF (h5py's own filter) of at most N bytes
//   hdf5.shuffle:S      byte j of each element of S bytes, together
//   hdf5.fletcher32     the last four bytes are a checksum of those before
#include <tessera/base/bytes.h>

#include <cstdint>
#include <string_view>

namespace tessera {

inline constexpr std::string_view kHdf5CodecPrefix = "hdf5.";

bool has_hdf5_codec(std::string_view codec);
Bytes decode_hdf5(std::string_view codec, ByteView in, std::uint64_t max_output_bytes);

}  // namespace tessera
