#pragma once
// The proof of --verify: what was staged, read back through its own format's reader, has the
// content, values, steps and groups of the source.
#include <tessera/ops/convert.h>
#include <tessera/ops/hash.h>
#include <tessera/ops/open.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct VerifyProof {
  std::vector<std::string> findings;     // empty: proved
  std::vector<std::string> transformed;  // types of values that the format cannot hold
  std::uint64_t not_compared = 0;        // values that hold what could not be followed
  std::vector<HashedTensor> tensors;     // of the result
  std::string root;
};

/// `written`: the staged result, opened and located. `may_drop`: a value that is absent there was
/// left out on request.
VerifyProof prove_equal(OpenedCheckpoint& source, OpenedCheckpoint& written, bool may_drop,
                        const TransferOptions& transfer);

/// What of `written` was held against the source, and what the source has that was not: left out,
/// or compared as it was made (cast, renamed, fused).
VerifyScope verify_scope(const Manifest& written, const ConvertReport& report);

}  // namespace tessera
