// On a GPU, or on its emulation: ranks that want the same pieces of files find what others have read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "ops/cuda/device_test_util.h"
#include "runtime/cuda/cuda_handles.h"
#include "runtime/cuda/pinned_pieces.h"
#include "tensor/cuda_check.h"

namespace nibble {
namespace {

using PinnedPiecesOnTheGpu = OnTheGpu;

constexpr std::size_t piece_bytes = 4096;
constexpr int pieces_of_file = 40, places = 3;

std::vector<std::byte> file_of_pieces() {
  std::vector<std::byte> file(piece_bytes * pieces_of_file);
  for (std::size_t i = 0; i < file.size(); ++i) file[i] = static_cast<std::byte>(i * 7 + i / piece_bytes);
  return file;
}

// A rank that takes pieces to its device, which waits for each when the next has been queued.
struct Rank {
  PinnedPieces& pieces;
  std::span<const std::byte> file;
  CudaStream stream;
  DeviceBuffer to = device_bytes(file.size(), 0xee);
  std::vector<CudaEvent> copied;
  int read = 0;

  Rank(PinnedPieces& from, std::span<const std::byte> of) : pieces(from), file(of) {
    copied.push_back(new_event());
    copied.push_back(new_event());
  }
  ~Rank() {
    const cudaEvent_t events[] = {copied[0].get(), copied[1].get()};
    pieces.forget(events);
  }
  std::span<const std::byte> piece(int index) const {
    return file.subspan(static_cast<std::size_t>(index) * piece_bytes, piece_bytes);
  }
  Status take(int index, bool fails = false) {
    const std::span<const std::byte> wanted = piece(index);
    NIBBLE_ASSIGN(const PinnedPieces::Held held, pieces.hold(wanted, [&](std::byte* pinned) -> Status {
      ++read;
      if (fails) return internal_error("a disk that fails");
      std::memcpy(pinned, wanted.data(), wanted.size());
      return {};
    }));
    const cudaEvent_t event = copied[static_cast<std::size_t>(index % 2)].get();
    cuda_check(cudaMemcpyAsync(to.data() + static_cast<std::size_t>(index) * piece_bytes, held.data,
                               piece_bytes, cudaMemcpyHostToDevice, stream.get()));
    cuda_check(cudaEventRecord(event, stream.get()));
    pieces.let_go(held, event);
    return {};
  }
  std::vector<std::byte> found() {
    stream.wait();
    std::vector<std::byte> all(file.size());
    to.copy_to(std::span(all));
    return all;
  }
};

std::unique_ptr<PinnedPieces> pieces_of(int count) {
  Result<std::unique_ptr<PinnedPieces>> made = PinnedPieces::make(count);
  NIBBLE_CHECK(made.ok(), made.status().message());
  return std::move(*made);
}

TEST_F(PinnedPiecesOnTheGpu, APieceIsReadOnceWhereRanksTakeItOneAfterTheOther) {
  const std::vector<std::byte> file = file_of_pieces();
  const std::unique_ptr<PinnedPieces> pieces = pieces_of(places);
  Rank first(*pieces, file), second(*pieces, file);
  for (int i = 0; i < pieces_of_file; ++i) {
    ASSERT_TRUE(first.take(i).ok());
    ASSERT_TRUE(second.take(i).ok());
  }
  EXPECT_EQ(first.read, pieces_of_file);
  EXPECT_EQ(second.read, 0);
  EXPECT_EQ(first.found(), file);
  EXPECT_EQ(second.found(), file);
}

TEST_F(PinnedPiecesOnTheGpu, RanksThatComeAsTheyLikeGetAllBytes) {
  const std::vector<std::byte> file = file_of_pieces();
  const std::unique_ptr<PinnedPieces> pieces = pieces_of(places);
  Rank forward(*pieces, file), also(*pieces, file), backward(*pieces, file);
  std::thread threads[] = {std::thread([&] {
                             for (int i = 0; i < pieces_of_file; ++i) ASSERT_TRUE(forward.take(i).ok());
                           }),
                           std::thread([&] {
                             for (int i = 0; i < pieces_of_file; ++i) ASSERT_TRUE(also.take(i).ok());
                           }),
                           std::thread([&] {
                             for (int i = pieces_of_file; i-- > 0;) ASSERT_TRUE(backward.take(i).ok());
                           })};
  for (std::thread& thread : threads) thread.join();
  for (Rank* rank : {&forward, &also, &backward}) EXPECT_EQ(rank->found(), file);
}

TEST_F(PinnedPiecesOnTheGpu, WhatOneRankCannotReadAnotherTriesItself) {
  const std::vector<std::byte> file = file_of_pieces();
  const std::unique_ptr<PinnedPieces> pieces = pieces_of(1);
  Rank first(*pieces, file), second(*pieces, file);
  EXPECT_EQ(first.take(0, true).message(), "a disk that fails");
  EXPECT_TRUE(second.take(0).ok());
  EXPECT_EQ(second.read, 1);
  EXPECT_TRUE(std::equal(file.begin(), file.begin() + piece_bytes, second.found().begin()));
}

}  // namespace
}  // namespace nibble
