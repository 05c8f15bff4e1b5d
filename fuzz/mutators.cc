#include "fuzz/mutators.h"

#include <tessera/base/bytes.h>
#include <tessera/storage/checksum.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

namespace tessera::fuzz {
namespace {

template <class T>
std::string le(T value) {
  std::string bytes(sizeof value, '\0');
  store_le(reinterpret_cast<std::byte*>(bytes.data()), value);
  return bytes;
}

template <class T>
T read_le(const std::string& in, std::size_t at) {
  return load_le<T>(reinterpret_cast<const std::byte*>(in.data() + at));
}

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }
bool one_in(Random& random, unsigned n) { return random() % n == 0; }

/// Drops, doubles, moves or swaps parts: what any sequence can suffer.
template <class T>
void shuffle_parts(std::vector<T>& parts, Random& random) {
  if (parts.empty()) return;
  const std::size_t a = below(random, parts.size()), b = below(random, parts.size());
  const auto at = [&](std::size_t i) { return parts.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (random() % 4) {
    case 0:
      parts.erase(at(a));
      break;
    case 1: {
      T copy = parts[a];
      parts.insert(at(b), std::move(copy));
      break;
    }
    case 2:
      std::swap(parts[a], parts[b]);
      break;
    default:
      parts.erase(at(std::min(a, b)), at(std::max(a, b)));
  }
}

// ---- zip

struct Record {
  std::string name, content, extra;
  std::uint16_t method = 0, flags = 0;
  std::uint32_t size = 0, crc = 0;  // as declared
};

/// The records of an archive, by its local headers in turn.
std::vector<Record> records_of(const std::string& in) {
  std::vector<Record> records;
  std::size_t at = 0;
  while (at + 30 <= in.size() && std::memcmp(in.data() + at, "PK\x03\x04", 4) == 0) {
    Record record;
    record.flags = read_le<std::uint16_t>(in, at + 6);
    record.method = read_le<std::uint16_t>(in, at + 8);
    record.crc = read_le<std::uint32_t>(in, at + 14);
    const std::size_t stored = read_le<std::uint32_t>(in, at + 18);
    record.size = read_le<std::uint32_t>(in, at + 22);
    const std::size_t name = read_le<std::uint16_t>(in, at + 26);
    const std::size_t extra = read_le<std::uint16_t>(in, at + 28);
    if (at + 30 + name + extra + stored > in.size()) break;
    record.name = in.substr(at + 30, name);
    record.extra = in.substr(at + 30 + name, extra);
    record.content = in.substr(at + 30 + name + extra, stored);
    at += 30 + name + extra + stored;
    records.push_back(std::move(record));
    // A data descriptor, and what writers align with.
    const std::size_t next = in.find("PK\x03\x04", at);
    if (next != std::string::npos && next - at <= 64) at = next;
  }
  return records;
}

std::string fields_of(const Record& record) {
  return le(record.flags) + le(record.method) + le(std::uint32_t{0}) + le(record.crc) +
         le(static_cast<std::uint32_t>(record.content.size())) + le(record.size) +
         le(static_cast<std::uint16_t>(record.name.size()));
}

std::string zip_of(const std::vector<Record>& records, Random& random) {
  std::string file, directory;
  for (const Record& record : records) {
    const std::size_t at = file.size();
    const auto extra = static_cast<std::uint16_t>(record.extra.size());
    file += "PK\x03\x04" + le(std::uint16_t{20}) + fields_of(record) + le(extra) + record.name +
            record.extra + record.content;
    Record listed = record;
    if (one_in(random, 64)) listed.name += "x";  // the directory tells otherwise
    if (one_in(random, 64)) listed.crc ^= 1;
    directory += "PK\x01\x02" + le(std::uint32_t{20 << 16 | 20}) + fields_of(listed) +
                 le(std::uint16_t{0}) + std::string(10, '\0') + le(static_cast<std::uint32_t>(at)) +
                 listed.name;
  }
  const auto count = static_cast<std::uint16_t>(records.size());
  const std::size_t at = file.size();
  return file + directory + "PK\x05\x06" + std::string(4, '\0') + le(count) + le(count) +
         le(static_cast<std::uint32_t>(directory.size())) + le(static_cast<std::uint32_t>(at)) +
         le(std::uint16_t{0});
}

// ---- pickle

/// Bytes of the opcode at `at`, its argument included; 0: unknown or cut off.
std::size_t opcode_length(const std::string& in, std::size_t at) {
  const auto op = static_cast<unsigned char>(in[at]);
  const auto line = [&](std::size_t from) {
    const std::size_t end = in.find('\n', from);
    return end == std::string::npos ? std::size_t{0} : end + 1 - at;
  };
  const auto counted = [&](std::size_t width) -> std::size_t {
    if (in.size() - at < 1 + width) return 0;
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < width; ++i)
      length |= std::uint64_t{static_cast<unsigned char>(in[at + 1 + i])} << 8 * i;
    return length > in.size() - at - 1 - width ? 0 : 1 + width + static_cast<std::size_t>(length);
  };
  switch (op) {
    case 'K':
    case 'q':
    case 'h':
    case 0x80:
      return 2;
    case 'M':
      return 3;
    case 'J':
    case 'r':
    case 'j':
      return 5;
    case 'G':
    case 0x95:
      return 9;
    case 'U':
    case 'C':
    case 0x8a:
    case 0x8c:
      return counted(1);
    case 'X':
    case 'T':
    case 'B':
    case 0x8b:
      return counted(4);
    case 0x8d:
    case 0x8e:
    case 0x96:
      return counted(8);
    case 'I':
    case 'L':
    case 'F':
    case 'S':
    case 'V':
    case 'P':
    case 'p':
    case 'g':
      return line(at);
    case 'c':
    case 'i': {
      const std::size_t first = in.find('\n', at);
      return first == std::string::npos ? 0 : line(first + 1);
    }
    default:
      return 1;
  }
}

std::vector<std::string> opcodes_of(const std::string& in) {
  std::vector<std::string> opcodes;
  for (std::size_t at = 0; at < in.size();) {
    const std::size_t length = opcode_length(in, at);
    if (length == 0 || at + length > in.size()) {
      opcodes.push_back(in.substr(at));
      break;
    }
    opcodes.push_back(in.substr(at, length));
    at += length;
  }
  return opcodes;
}

/// One opcode with another argument.
void change_argument(std::string& opcode, Random& random) {
  if (opcode.size() < 2) return;
  if (opcode[0] == 'X' && opcode.size() >= 5) {  // a text, not cut short: the length follows
    const std::string text = mutated(opcode.substr(5), opcode.size() + 8);
    opcode = "X" + le(static_cast<std::uint32_t>(text.size())) + text;
    return;
  }
  if (opcode[0] == 'c') {
    constexpr std::array<std::string_view, 8> kGlobals = {"ctorch._utils\n_rebuild_tensor_v2\n",
                                                          "ccollections\nOrderedDict\n",
                                                          "ctorch\nFloatStorage\n",
                                                          "cbuiltins\neval\n",
                                                          "cos\nsystem\n",
                                                          "ctorch\nSize\n",
                                                          "c_codecs\nencode\n",
                                                          "ctorch._utils\n_rebuild_parameter\n"};
    opcode = kGlobals[below(random, kGlobals.size())];
    return;
  }
  for (std::size_t i = 1; i < opcode.size(); ++i)
    if (one_in(random, 3)) opcode[i] = static_cast<char>(one_in(random, 2) ? random() : 0xff);
}

// ---- JSON

std::vector<std::string> tokens_of(const std::string& in) {
  std::vector<std::string> tokens;
  for (std::size_t at = 0; at < in.size();) {
    std::size_t end = at + 1;
    if (in[at] == '"') {
      while (end < in.size() && in[end] != '"') end += in[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, in.size());
    } else if (std::strchr("-+.0123456789eEtrufalsn", in[at]) != nullptr) {
      while (end < in.size() && std::strchr("-+.0123456789eEtrufalsn", in[end]) != nullptr &&
             in[end] != '\0')
        ++end;
    }
    tokens.push_back(in.substr(at, end - at));
    at = end;
  }
  return tokens;
}

const std::string& hurtful_token(Random& random) {
  static const std::vector<std::string> tokens = {"0",
                                                  "-1",
                                                  "1",
                                                  "18446744073709551615",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "1e999",
                                                  "1.0",
                                                  "01",
                                                  "null",
                                                  "true",
                                                  "[]",
                                                  "{}",
                                                  "[[[[[[[[",
                                                  "\"\"",
                                                  "\"../x\"",
                                                  "\"\\u0000\"",
                                                  "\"\\ud800\"",
                                                  "\"F32\"",
                                                  "\"__metadata__\"",
                                                  ",",
                                                  ":",
                                                  "4611686018427387904"};
  return tokens[below(random, tokens.size())];
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

std::size_t times(Random& random) { return random() % 3 + 1; }

}  // namespace

std::string mutated(std::string part, std::size_t most) {
  const std::size_t size = part.size();
  part.resize(std::max(size + 16, size * 2));
  const std::size_t room = std::max<std::size_t>(std::min(part.size(), most), 1);
  const std::size_t now =
      LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(part.data()), std::min(size, room), room);
  part.resize(now);
  return part;
}

std::string mutate_zip(const std::string& input, Random& random, std::size_t most,
                       std::string (*mutate_record)(const std::string&, Random&, std::size_t)) {
  std::vector<Record> records = records_of(input);
  if (records.empty() || one_in(random, 16)) return mutated(input, most);
  for (std::size_t n = times(random); n > 0 && !records.empty(); --n) {
    Record& record = records[below(random, records.size())];
    switch (random() % 8) {
      case 0:
        record.name = mutated(record.name, 64);
        break;
      case 1:
        shuffle_parts(records, random);
        break;
      case 2:
        record.extra = mutated(record.extra, 128).substr(0, 65000);
        break;
      case 3:
        record.size = static_cast<std::uint32_t>(random());
        break;
      default:
        record.content = mutate_record(record.content, random, most / 2);
        record.size = static_cast<std::uint32_t>(record.content.size());
        record.crc = crc32(0, as_bytes(record.content));
    }
  }
  for (Record& record : records)
    record.name.resize(std::min<std::size_t>(record.name.size(), 65000));
  return zip_of(records, random);
}

std::string mutate_pickle(const std::string& input, Random& random, std::size_t most) {
  if (input.empty() || one_in(random, 16)) return mutated(input, most);
  std::vector<std::string> opcodes = opcodes_of(input);
  for (std::size_t n = times(random); n > 0 && !opcodes.empty(); --n) {
    const std::size_t at = below(random, opcodes.size());
    switch (random() % 4) {
      case 0:
        shuffle_parts(opcodes, random);
        break;
      case 1: {  // another opcode without an argument
        constexpr std::string_view kPlain =
            ".(0123]})NRbestuaQlo\x81\x85\x86\x87\x88\x89\x90\x91\x92\x93\x94";
        opcodes[at] = std::string(1, kPlain[below(random, kPlain.size())]);
        break;
      }
      default:
        change_argument(opcodes[at], random);
    }
  }
  return joined(opcodes);
}

std::string mutate_json(const std::string& input, Random& random, std::size_t most) {
  std::vector<std::string> tokens = tokens_of(input);
  if (tokens.empty() || one_in(random, 16)) return mutated(input, most);
  for (std::size_t n = times(random); n > 0 && !tokens.empty(); --n) {
    std::string& token = tokens[below(random, tokens.size())];
    switch (random() % 4) {
      case 0:
        shuffle_parts(tokens, random);
        break;
      case 1:
        token = mutated(token, token.size() + 8);
        break;
      default:
        token = hurtful_token(random);
    }
  }
  return joined(tokens);
}

std::string mutate_safetensors(const std::string& input, Random& random, std::size_t most) {
  if (input.size() < 8 || one_in(random, 16)) return mutated(input, most);
  const std::uint64_t length = read_le<std::uint64_t>(input, 0);
  if (length > input.size() - 8) return mutated(input, most);
  std::string header = mutate_json(input.substr(8, length), random, most);
  std::string data = input.substr(8 + length);
  if (one_in(random, 4)) data = mutated(data, most);
  if (one_in(random, 2)) header.resize((header.size() + 7) / 8 * 8, ' ');
  return le(std::uint64_t{header.size()}) + header + data;
}

std::string mutate_archive(const std::string& input, Random& random, std::size_t most) {
  return mutate_zip(input, random, most, [](const std::string& record, Random& r, std::size_t m) {
    const bool is_pickle = record.size() > 2 && record[0] == '\x80' && record.back() == '.';
    return is_pickle ? mutate_pickle(record, r, m) : mutated(record, m);
  });
}

std::string mutate_lines(const std::string& input, Random& random, std::size_t most) {
  if (input.empty() || one_in(random, 16)) return mutated(input, most);
  if (input[0] == '{') return mutate_json(input, random, most);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < input.size();) {
    const std::size_t end = std::min(input.find('\n', at), input.size() - 1) + 1;
    lines.push_back(input.substr(at, end - at));
    at = end;
  }
  for (std::size_t n = times(random); n > 0 && !lines.empty(); --n) {
    std::string& line = lines[below(random, lines.size())];
    switch (random() % 5) {
      case 0:
        shuffle_parts(lines, random);
        break;
      case 1:
        line.insert(0, random() % 6, ' ');
        break;
      case 2:
        line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
        break;
      case 3:
        if (const std::size_t colon = line.find(": "); colon != std::string::npos)
          line = line.substr(0, colon + 2) + hurtful_token(random) + "\n";
        break;
      default:
        line = mutated(line, line.size() + 8);
    }
  }
  return joined(lines);
}

std::string mutate_words(const std::string& input, Random& random, std::size_t most) {
  if (input.size() < 9 || one_in(random, 8)) return mutated(input, most);
  std::string out = input;
  for (std::size_t n = times(random); n > 0 && out.size() > 9; --n) {
    const std::size_t width = std::size_t{1} << random() % 4;
    const std::size_t at = 1 + below(random, out.size() - width - 1);
    constexpr std::uint64_t kHurtful[] = {0,          1,          0x7f,       0xff,
                                          0x7fff,     0xffff,     0x7fffffff, 0xffffffff,
                                          1ull << 32, 1ull << 62, ~0ull >> 1, ~0ull};
    switch (random() % 4) {
      case 0:
        out.insert(at, out.substr(below(random, out.size()), random() % 32));
        break;
      case 1:
        out.erase(at, random() % 16);
        break;
      default:
        out.replace(at, width, le(kHurtful[below(random, std::size(kHurtful))]).substr(0, width));
    }
  }
  return out;
}

std::string mutate_zarr(const std::string& input, Random& random, std::size_t most) {
  const std::size_t nul = input.find('\0');
  if (nul == std::string::npos) return mutate_json(input, random, most);
  const std::string json = input.substr(0, nul), name = input.substr(nul + 1);
  if (one_in(random, 2)) return mutate_json(json, random, most) + '\0' + name;
  return json + '\0' + mutated(name, 64);
}

std::string mutate_seal(const std::string& input, Random& random, std::size_t most) {
  constexpr std::string_view kOwnSum = ",\n \"crc32\": \"";
  const std::size_t end = input.rfind(kOwnSum);
  if (end == std::string::npos || one_in(random, 16)) return mutate_json(input, random, most);
  const std::string body = mutate_json(input.substr(0, end), random, most);
  constexpr char kDigits[] = "0123456789abcdef";
  const std::uint32_t crc = crc32(0, as_bytes(body));
  std::string sum;
  for (int shift = 28; shift >= 0; shift -= 4) sum += kDigits[crc >> shift & 15];
  return body + std::string(kOwnSum) + sum + "\"\n}\n";
}

std::string mutate_record(const std::string& input, Random& random, std::size_t most) {
  if (input.empty() || most == 0) return mutated(input, most);
  const char kind = one_in(random, 32) ? static_cast<char>(random()) : input[0];
  return kind + mutate_seal(input.substr(1), random, most - 1);
}

std::string mutate_journal(const std::string& input, Random& random, std::size_t most) {
  constexpr std::size_t kHeaderBytes = 8 + 4 + 32 + 4;
  constexpr std::size_t kSummedBytes = 24;
  constexpr std::size_t kRecordBytes = kSummedBytes + 4;
  if (input.size() < kHeaderBytes || one_in(random, 8)) return mutated(input, most);
  std::vector<std::string> records;
  for (std::size_t at = kHeaderBytes; at < input.size(); at += kRecordBytes)
    records.push_back(input.substr(at, kRecordBytes));
  for (std::size_t n = times(random); n > 0 && !records.empty(); --n) {
    std::string& record = records[below(random, records.size())];
    if (record.size() < kRecordBytes || one_in(random, 3)) {
      shuffle_parts(records, random);
      continue;
    }
    record = mutated(record.substr(0, kSummedBytes), kSummedBytes);
    record.resize(kSummedBytes);
    record += le(crc32(0, as_bytes(record))).substr(0, 4);
  }
  std::string out = input.substr(0, kHeaderBytes);
  for (const std::string& record : records) out += record;
  return out;
}

std::size_t apply_mutator(std::string (*mutate)(const std::string&, Random&, std::size_t),
                          std::uint8_t* data, std::size_t size, std::size_t max_size,
                          unsigned seed) {
  Random random(seed);
  const std::string out =
      mutate(std::string(reinterpret_cast<const char*>(data), size), random, max_size);
  const std::size_t now = std::min(out.size(), max_size);
  std::memcpy(data, out.data(), now);
  return now;
}

}  // namespace tessera::fuzz
