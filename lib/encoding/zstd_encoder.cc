#include "lib/encoding/zstd_encoder.h"

#include <fmt/format.h>
#include <tessera/base/error.h>
#include <zstd.h>

#include <utility>

namespace tessera {
namespace {

std::size_t checked(std::size_t result) {
  if (ZSTD_isError(result))
    fail(Code::kInternal, fmt::format("zstd: {}", ZSTD_getErrorName(result)));
  return result;
}

}  // namespace

struct ZstdEncoder::Context {
  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> zstd{ZSTD_createCCtx(), ZSTD_freeCCtx};
};

ZstdEncoder::ZstdEncoder(std::uint64_t content_bytes, std::uint64_t element_bytes)
    : context_(std::make_unique<Context>()) {
  ZSTD_CCtx* const zstd = context_->zstd.get();
  if (zstd == nullptr) fail(Code::kResourceExhausted, "no memory for a zstd encoder");
  // Tables this small forget all but the newest, which among zeros is the best match: where one
  // element in 100 changed, 2.2 % of two bytes each and 1.6 % of four are left, at some 2 GB/s. Of
  // one byte it would be up to 3 %; the slower strategy leaves 2.4 %, at 0.4 GB/s.
  const std::pair<ZSTD_cParameter, int> parameters[] = {
      {ZSTD_c_strategy, element_bytes == 1 ? ZSTD_btlazy2 : ZSTD_fast},
      {ZSTD_c_windowLog, 17},
      {ZSTD_c_hashLog, 6},
      {ZSTD_c_chainLog, 6},
      {ZSTD_c_searchLog, 1},
      {ZSTD_c_minMatch, element_bytes == 1 ? 5 : 7},
      {ZSTD_c_targetLength, 0}};
  for (const auto& [parameter, value] : parameters)
    checked(ZSTD_CCtx_setParameter(zstd, parameter, value));
  checked(ZSTD_CCtx_setPledgedSrcSize(zstd, content_bytes));
}

ZstdEncoder::~ZstdEncoder() = default;

void ZstdEncoder::add(ByteView in, Bytes& out) { run(in, false, out); }
void ZstdEncoder::finish(Bytes& out) { run({}, true, out); }

void ZstdEncoder::run(ByteView in, bool last, Bytes& out) {
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  const std::size_t step = ZSTD_CStreamOutSize();
  for (;;) {
    const std::size_t filled = out.size();
    out.resize(filled + step);
    ZSTD_outBuffer output{out.data() + filled, step, 0};
    const std::size_t left = checked(ZSTD_compressStream2(context_->zstd.get(), &output, &input,
                                                          last ? ZSTD_e_end : ZSTD_e_continue));
    out.resize(filled + output.pos);
    if (last ? left == 0 : input.pos == input.size) break;
  }
}

}  // namespace tessera
