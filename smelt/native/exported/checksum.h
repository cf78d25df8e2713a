// CRC-32 of zlib, and zlib streams.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

// torch's own copy of miniz, in libtorch_cpu.
extern "C" int mz_uncompress(unsigned char* to, unsigned long* to_bytes, const unsigned char* from,
                             unsigned long from_bytes);

namespace smelt::exported {

// Eight bytes at a time, with a table for each.
class Checksum {
  public:
    static uint32_t of(std::string_view data, uint32_t before = 0) {
        static const Checksum tables;
        return tables.update(data, before);
    }

  private:
    Checksum() {
        for (uint32_t n = 0; n < 256; ++n) {
            uint32_t c = n;
            for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0xEDB88320U ^ (c >> 1) : c >> 1;
            tables_[0][n] = c;
        }
        for (size_t k = 1; k < 8; ++k)
            for (uint32_t n = 0; n < 256; ++n)
                tables_[k][n] = tables_[0][tables_[k - 1][n] & 0xFF] ^ (tables_[k - 1][n] >> 8);
    }

    uint32_t update(std::string_view data, uint32_t before) const {
        uint32_t c = ~before;
        for (; data.size() >= 8; data.remove_prefix(8)) {
            uint64_t word;
            std::memcpy(&word, data.data(), 8);
            word ^= c;
            c = 0;
            for (size_t k = 0; k < 8; ++k) c ^= tables_[7 - k][(word >> (8 * k)) & 0xFF];
        }
        for (const char byte : data) c = tables_[0][(c ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (c >> 8);
        return ~c;
    }

    std::array<std::array<uint32_t, 256>, 8> tables_;
};

}  // namespace smelt::exported
