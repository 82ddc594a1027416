// Headers as strangers write them. Each refusal is one sentence, in under a second, and takes no more
// memory than twice the file.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <string>

#include "base/allocation_meter.h"
#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string refused(const std::string& file) {
  const std::clock_t start = std::clock();
  const AllocationMeter meter;
  const Result<SafetensorsHeader> header = parse_safetensors_header(as_bytes(file));
  EXPECT_LE(meter.peak(), 2 * file.size() + 65536);
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC) << "of processor time";
  EXPECT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), StatusCode::broken_model);
  EXPECT_EQ(header.status().message().find('\n'), std::string::npos);
  return header.status().message();
}

// A file with this header and so many bytes of data.
std::string refused(const std::string& header, std::size_t data) {
  return refused(safetensors_file(header, std::string(data, '\0')));
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

TEST(Safetensors, ReadsWhatTheHeaderSaysByAscendingOffset) {
  const std::string file = safetensors_file(
      "{" + entry("b", "U8", "[2,3]", "[8,14]") + ",\"__metadata__\":{\"format\":\"pt\"}," +
          entry("a", "F32", "[2]", "[0,8]") + "," + entry("scalar", "BF16", "[]", "[14,16]") + "," +
          entry("empty", "F64", "[4,0]", "[14,14]") + "}",
      std::string(16, '\0'));
  const SafetensorsHeader header = *parse_safetensors_header(as_bytes(file));
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].offset, file.size() - 16);
  EXPECT_EQ(header.tensors[0].dtype, DType::f32);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].shape, Shape({2, 3}));
  EXPECT_EQ(header.tensors[1].bytes(), 6u);
  EXPECT_EQ(header.tensors[2].name, "empty");
  EXPECT_EQ(header.tensors[3].shape, Shape());
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  EXPECT_TRUE(parse_safetensors_header(as_bytes(safetensors_file("{}")))->tensors.empty());
}

TEST(Safetensors, KnowsEveryWholeByteDtype) {
  const std::pair<const char*, DType> dtypes[] = {
      {"BOOL", DType::boolean},    {"U8", DType::u8},           {"I8", DType::i8},
      {"U16", DType::u16},         {"I16", DType::i16},         {"U32", DType::u32},
      {"I32", DType::i32},         {"U64", DType::u64},         {"I64", DType::i64},
      {"F8_E4M3", DType::f8_e4m3}, {"F8_E5M2", DType::f8_e5m2}, {"F8_E8M0", DType::f8_e8m0},
      {"F16", DType::f16},         {"BF16", DType::bf16},       {"F32", DType::f32},
      {"F64", DType::f64}};
  for (const auto& [name, dtype] : dtypes) {
    const std::size_t size = dtype_bytes(dtype);
    const std::string header = "{" + entry("x", name, "[1]", "[0," + std::to_string(size) + "]") + "}";
    EXPECT_EQ(parse_safetensors_header(as_bytes(safetensors_file(header, std::string(size, '\0'))))
                  ->tensors[0]
                  .dtype,
              dtype);
  }
  EXPECT_EQ(refused("{" + entry("x", "F4", "[2]", "[0,1]") + "}", 1),
            "tensor \"x\" has the unknown dtype \"F4\"; known are BOOL, U8, I8, U16, I16, U32, I32, U64, "
            "I64, F8_E4M3, "
            "F8_E5M2, F8_E8M0, F16, BF16, F32, F64");
}

TEST(Safetensors, ATruncatedFileIsRefused) {
  TestCheckpoint checkpoint;
  const std::string file = safetensors_file(checkpoint.tensors);
  EXPECT_EQ(refused(file.substr(0, 5)),
            "a safetensors file begins with 8 bytes of header length, but the file has 5 bytes");
  EXPECT_EQ(refused(""), "a safetensors file begins with 8 bytes of header length, but the file has 0 bytes");
  EXPECT_TRUE(refused(file.substr(0, 100)).ends_with(" bytes, but only 92 follow; the file is truncated"));
  EXPECT_EQ(refused(file.substr(0, file.size() - 1)),
            "tensor \"lm_head.weight\" has the byte range [92064, 104352), past the end of the file's "
            "104351 bytes of "
            "data; the file is truncated or damaged");
  // Wherever it is cut, it is refused, and quickly.
  for (std::size_t size = 0; size < file.size(); size += 997) {
    EXPECT_FALSE(parse_safetensors_header(as_bytes(file.substr(0, size))).ok()) << size;
  }
}

TEST(Safetensors, AHeaderLongerThanTheFileIsRefused) {
  std::string file = safetensors_file("{}", "data");
  file[0] = 100;
  EXPECT_EQ(refused(file), "the header claims 100 bytes, but only 6 follow; the file is truncated");
  std::memset(file.data(), 0xff, 8);
  EXPECT_EQ(refused(file), "the header claims 18446744073709551615 bytes; at most 100000000 are allowed");
}

TEST(Safetensors, OverlappingTensorsAreRefused) {
  EXPECT_EQ(
      refused("{" + entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[8]", "[4,12]") + "}", 12),
      "tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[8]", "[0,8]") + "," + entry("b", "U8", "[8]", "[0,8]") + "}", 8),
            "tensors \"a\" and \"b\" overlap");
}

TEST(Safetensors, AnOffsetPastTheEndIsRefused) {
  EXPECT_EQ(refused("{" + entry("a", "U8", "[8]", "[8,16]") + "}", 8),
            "tensor \"a\" has the byte range [8, 16), past the end of the file's 8 bytes of data; the file "
            "is truncated "
            "or damaged");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[1]", "[9223372036854775806,9223372036854775807]") + "}", 8),
            "tensor \"a\" has the byte range [9223372036854775806, 9223372036854775807), past the end of the "
            "file's 8 "
            "bytes of data; the file is truncated or damaged");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[8]", "[0,18446744073709551616]") + "}", 8),
            "tensor \"a\" has a data offset that is no whole number of 64 bits");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[8]", "[-8,0]") + "}", 8),
            "tensor \"a\" has a data offset that is no whole number of 64 bits");
}

TEST(Safetensors, GapsAndTrailingBytesAreRefused) {
  EXPECT_EQ(refused("{" + entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[4,6]") + "}", 6),
            "2 bytes before tensor \"b\" belong to no tensor");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[2]", "[0,2]") + "}", 6),
            "4 bytes after the last tensor belong to none");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[2]", "[4,2]") + "}", 6),
            "tensor \"a\" has the byte range [4, 2), which ends before it begins");
}

TEST(Safetensors, ARangeThatDoesNotMatchDtypeAndShapeIsRefused) {
  EXPECT_EQ(refused("{" + entry("a", "BF16", "[2,3]", "[0,6]") + "}", 6),
            "tensor \"a\" has the byte range [0, 6) of 6 bytes, but bf16 [2, 3] takes 12");
}

TEST(Safetensors, ShapesThatOverflowAreRefused) {
  EXPECT_EQ(refused("{" + entry("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", 0),
            "tensor \"a\" has a shape with more elements than 64 bits can count");
  EXPECT_EQ(refused("{" + entry("a", "F64", "[2305843009213693952]", "[0,0]") + "}", 0),
            "tensor \"a\" has a shape with more elements than 64 bits can count");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[-1]", "[0,0]") + "}", 0),
            "tensor \"a\" has a shape with an extent that is no whole number of 64 bits");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[1.5]", "[0,0]") + "}", 0),
            "tensor \"a\" has a shape with an extent that is no whole number of 64 bits");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1),
            "tensor \"a\" has 9 dimensions; at most 8 are supported");
}

TEST(Safetensors, IncompleteDescriptionsAreRefused) {
  EXPECT_EQ(refused("{\"a\":3}", 0), "tensor \"a\" is described by an integer, not an object");
  EXPECT_EQ(refused("{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0), "tensor \"a\" has no dtype");
  EXPECT_EQ(refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0), "tensor \"a\" has no shape");
  EXPECT_EQ(refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0),
            "tensor \"a\" has no data_offsets [begin, end]");
  EXPECT_EQ(refused("{" + entry("a", "U8", "[1]", "[0]") + "}", 1),
            "tensor \"a\" has no data_offsets [begin, end]");
  EXPECT_EQ(refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"layout\":1}}", 0),
            "tensor \"a\" has the unknown member \"layout\"");
  EXPECT_EQ(refused("{\"__metadata__\":{\"n\":1}}", 0), "__metadata__ is not an object of strings");
  EXPECT_EQ(refused("[]", 0), "the header is no JSON object");
  EXPECT_TRUE(refused("{\"a\":", 0).starts_with("the header is invalid JSON at byte "));
}

TEST(Safetensors, ANameGivenTwiceIsRefused) {
  const std::string message =
      refused("{" + entry("a", "U8", "[1]", "[0,1]") + "," + entry("a", "U8", "[1]", "[1,2]") + "}", 2);
  EXPECT_TRUE(message.starts_with("the header is invalid JSON at byte ")) << message;
}

TEST(Safetensors, AHeaderNestedTenThousandDeepIsRefused) {
  EXPECT_TRUE(refused("{\"a\":" + std::string(10'000, '[') + std::string(10'000, ']') + "}", 0)
                  .starts_with("the header is invalid JSON at byte "));
}

TEST(Safetensors, ALargeHeaderFullOfValuesIsRefusedWithoutBeingBuilt) {
  std::string values = "{\"a\":[0";
  while (values.size() < (std::size_t{16} << 20)) values += ",0";
  EXPECT_TRUE(refused(values + "]}", 0).starts_with("the header is invalid JSON at byte "));
}

TEST(Safetensors, ManyTensorsStayWithinTwiceTheFile) {
  std::string header = "{";
  constexpr int count = 20'000;
  for (int i = 0; i < count; ++i) {
    header += (i == 0 ? "" : ",") +
              entry("model.layers." + std::to_string(i) + ".mlp.experts.down_proj.weight", "BF16", "[16,32]",
                    "[" + std::to_string(i * 1024) + "," + std::to_string((i + 1) * 1024) + "]");
  }
  const std::string file = safetensors_file(header + "}", std::string(std::size_t{count} * 1024, '\0'));
  const AllocationMeter meter;
  EXPECT_EQ(parse_safetensors_header(as_bytes(file))->tensors.size(), std::size_t{count});
  EXPECT_LE(meter.peak(), 2 * file.size());
}

// Terminal escapes, newlines and broken UTF-8 in a name reach a message only as escapes.
TEST(Safetensors, HostileNamesAreEscapedInMessages) {
  EXPECT_EQ(refused("{" + entry("a\\u001b[31m\\n\\u0000\\u202e\\\"", "U8", "[1]", "[0,2]") + "}", 2),
            "tensor \"a\\x1b[31m\\n\\x00\\xe2\\x80\\xae\\\"\" has the byte range [0, 2) of 2 bytes, but u8 "
            "[1] takes 1");
  EXPECT_LT(refused("{" + entry(std::string(100'000, 'n'), "U8", "[1]", "[0,2]") + "}", 2).size(), 300u);
}

TEST(SafetensorsIndex, SaysWhichShardHoldsATensor) {
  const SafetensorsIndex index = *parse_safetensors_index(
      R"({"metadata":{"total_size":7},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"2.safetensors"}})");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  EXPECT_EQ(*index.shard_of("a"), "1.safetensors");
  EXPECT_EQ(*index.shard_of("c"), "2.safetensors");
  EXPECT_EQ(index.shard_of("d"), nullptr);
}

TEST(SafetensorsIndex, ALargeIndexFullOfValuesIsRefusedWithoutBeingBuilt) {
  std::string values = "{\"weight_map\":[0";
  while (values.size() < (std::size_t{16} << 20)) values += ",0";
  const std::size_t size = values.size();
  const AllocationMeter meter;
  EXPECT_FALSE(parse_safetensors_index(std::move(values)).ok());
  EXPECT_LE(meter.peak(), size);
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndexAndWhatWouldLeaveTheFolder) {
  const auto refused_index = [](const std::string& text) {
    return parse_safetensors_index(text).status().message();
  };
  EXPECT_EQ(refused_index("{}"), "there is no object \"weight_map\"");
  EXPECT_EQ(refused_index("{\"weight_map\":{}}"), "there is no object \"weight_map\"");
  EXPECT_EQ(refused_index("{\"weight_map\":{\"a\":1}}"), "tensor \"a\" is mapped to no file name");
  for (const char* name :
       {"../x.safetensors", "/etc/x.safetensors", "x.bin", "x.safetensors\\u0000.safetensors", ""}) {
    const std::string message = refused_index("{\"weight_map\":{\"a\":\"" + std::string(name) + "\"}}");
    EXPECT_TRUE(message.ends_with("which is not the plain name of a .safetensors file")) << message;
  }
  EXPECT_TRUE(refused_index(std::string(10'000, '[')).starts_with("invalid JSON at byte "));
}

}  // namespace
}  // namespace nibble
