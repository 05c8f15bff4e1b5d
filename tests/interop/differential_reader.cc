// The other half of differential_test.py: reads many small files in one process and says what is in
// each, as a text in which everything that PyTorch tells apart differs.
//
// Requests and answers are a 32-bit length (little-endian) and as many bytes. A request is a byte
// that says of what kind the file is, 't' (torch.save), 'd' (.metadata of DCP), 's' (safetensors),
// 'f' (a folder of DCP, as differential_dcp.py packs it) or 'h' (HDF5), and the file; an answer is
// a letter, 'r' (read) or 'x' (refused), and the text or the message.
#include <fmt/ranges.h>
#include <tessera/encoding/safetensors_header.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "lib/format/torch_dcp/metadata.h"
#include "tests/interop/differential_checkpoint.h"
#include "tests/interop/differential_text.h"
#include "tests/support/archive_gather.h"

namespace tessera::test {
namespace {

class ArchiveText {
 public:
  ArchiveText(const ByteWindow& window, const TorchArchive& archive)
      : window_(window), archive_(archive) {}

  std::string of(const Value& value) {
    return ValueText([this](std::uint32_t index) { return tensor(index); }).of(value);
  }

 private:
  std::string tensor(std::uint32_t index, bool is_part = false);
  std::string quantizer(const QuantParams& quant);

  const ByteWindow& window_;
  const TorchArchive& archive_;
};

std::string ArchiveText::quantizer(const QuantParams& quant) {
  if (quant.scheme == "per_tensor_affine")
    return fmt::format("{} {} {}", quant.scheme, ValueText::real(quant.scale), quant.zero_point);
  return fmt::format("{} {}", quant.scheme, quant.axis);
}

std::string ArchiveText::tensor(std::uint32_t index, bool is_part) {
  using Layout = ArchiveTensor::Layout;
  const ArchiveTensor& t = archive_.tensors.at(index);
  std::string out =
      fmt::format("T<{} {}{}{}", torch_name(t.dtype), t.shape.to_string(),
                  t.is_parameter ? " parameter" : "", t.requires_grad && !is_part ? " grad" : "");
  if (t.quant >= 0) out += " " + quantizer(archive_.quant.at(static_cast<std::size_t>(t.quant)));
  if (t.layout == Layout::kMeta) return out + " meta>";
  if (t.layout != Layout::kStrided) {
    out += fmt::format(" sparse{}", static_cast<int>(t.layout));
    for (const std::uint32_t part : t.parts) out += tensor(part, true);
    return out + ">";
  }
  if (t.shape.numel() > kMostElements) throw TooLarge();
  if (t.flags & Source::kConj) out += " conj";
  if (t.flags & Source::kNeg) out += " neg";
  TorchArchive plain;
  plain.tensors = {t};
  plain.tensors[0].flags = 0;
  plain.storages = archive_.storages;
  Bytes data = gather_strided(window_, plain, 0);
  const auto item = static_cast<std::size_t>(is_complex(t.dtype) ? element_bytes(t.dtype) / 2
                                                                 : element_bytes(t.dtype));
  for (std::size_t i = 0; archive_.big_endian && i + item <= data.size(); i += item)
    std::reverse(data.begin() + static_cast<std::ptrdiff_t>(i),
                 data.begin() + static_cast<std::ptrdiff_t>(i + item));
  return out + fmt::format(" {:08x}>", crc32(0, data));
}

std::string describe_torch(const std::string& file) {
  const ByteFile bytes(file);
  const ByteWindow window = ByteWindow::whole(bytes);
  TorchArchive archive = open_torch_archive(window, {.allow_opaque_root = true});
  locate_storages(window, archive);
  return ArchiveText(window, archive).of(archive.root);
}

std::string describe_safetensors(const std::string& file) {
  const ByteFile bytes(file);
  const SafetensorsHeader header = read_safetensors_header(ByteWindow::whole(bytes));
  std::vector<std::string> texts;
  for (const SafetensorsTensor& t : header.tensors) {
    const auto data = as_bytes(file).subspan(header.data_offset + t.begin, t.end - t.begin);
    texts.push_back(fmt::format("{} {} {:08x}", t.name, fmt::join(t.spec.shape.extents(), ","),
                                crc32(0, data)));
  }
  std::sort(texts.begin(), texts.end());
  return fmt::format("{}", fmt::join(texts, "\n"));
}

std::string describe_entry(const dcp::DcpMetadata& metadata, const dcp::DcpEntry& entry) {
  if (!entry.is_tensor) return fmt::format("{} bytes", entry.name);
  std::string out = fmt::format("{} {} [{}]", entry.name, torch_name(entry.spec.dtype),
                                fmt::join(entry.spec.shape.extents(), ","));
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i)
    out += fmt::format(" [{}]+[{}]", fmt::join(metadata.origin(entry, i), ","),
                       fmt::join(metadata.sizes(entry, i), ","));
  return out;
}

std::string describe_dcp(const std::string& file) {
  const dcp::DcpMetadata metadata = dcp::parse_metadata(as_bytes(file), ".metadata");
  std::vector<std::string> texts;
  for (const dcp::DcpEntry& entry : metadata.entries)
    texts.push_back(describe_entry(metadata, entry));
  std::set<std::string> places;
  for (const dcp::DcpStorage& item : metadata.storage) {
    if (item.entry == dcp::DcpStorage::kNoEntry) fail(Code::kUnsupported, "an orphan");
    const std::string place =
        fmt::format("{} {}", metadata.entries[item.entry].name,
                    item.has_origin ? fmt::format("[{}]", fmt::join(metadata.origin(item), ","))
                                    : std::string("None"));
    if (!places.insert(place).second) fail(Code::kCorrupt, "refused when chunks are matched");
    texts.push_back(fmt::format("{} = {} {} {}{}", place, metadata.files[item.file], item.offset,
                                item.length, item.codecs ? " coded" : ""));
  }
  std::sort(texts.begin(), texts.end());
  return fmt::format("{}", fmt::join(texts, "\n"));
}

std::string describe(char kind, const std::string& file) {
  if (kind == 's') return describe_safetensors(file);
  if (kind == 'f') return describe_folder(file);
  if (kind == 'h') return describe_hdf5(file);
  return kind == 'd' ? describe_dcp(file) : describe_torch(file);
}

std::string answer(const std::string& request) {
  try {
    return "r" + describe(request[0], request.substr(1));
  } catch (const Error& error) {
    return "x" + error.status().to_string();
  } catch (const TooLarge&) {
    return "xtoo large to compare";
  }
}

int serve() {
  std::uint32_t length = 0;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    std::string request(length, '\0');
    if (length == 0 || std::fread(request.data(), 1, length, stdin) != length) return 1;
    const std::string text = answer(request);
    const auto size = static_cast<std::uint32_t>(text.size());
    std::fwrite(&size, sizeof size, 1, stdout);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tessera::test

int main() { return tessera::test::serve(); }
