// A checkpoint that is there whole or not at all. It grows in a folder beside its destination,
//
//   .NAME.quantizing/journal  what is done; its first line says of what
//   .NAME.quantizing/model/   the files
//
// and becomes the destination by being renamed, after everything in it has reached the disk. A job counts as
// done once its bytes have reached the disk and a line of the journal says so, so that whoever was killed, or
// ran out of space, goes on from there when the same conversion is asked for again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "quantize/conversion_plan.h"
#include "quantize/row_encoder.h"

namespace nibble {

class CheckpointWriter {
 public:
  // `identity` stands for source and options: a folder that another conversion left unfinished is refused, or
  // thrown away with `restart`. A destination that exists is refused, so is one that another process is
  // making.
  static Result<CheckpointWriter> open(const std::filesystem::path& destination, std::uint64_t identity,
                                       const ConversionPlan& plan, bool restart);
  CheckpointWriter(CheckpointWriter&&) noexcept;
  ~CheckpointWriter();

  // What the journal knows of a job; null where it is not done.
  const EncodeError* done(std::size_t job) const;

  // Bytes of a tensor, from `at` on.
  Status write(const PlannedTensor& tensor, std::int64_t at, std::span<const std::uint8_t> bytes);
  // All of a job's bytes are written.
  Status finish_job(std::size_t job, const EncodeError& error);

  // A small file, and a copy of one of the source's.
  Status write_file(const std::string& name, std::string_view text);
  Status copy_file(const std::filesystem::path& from);

  // Throws away what was made: for a failure that the same conversion would meet again.
  void abandon();
  // Nothing follows: the destination is there when this returns ok.
  Status commit();

 private:
  struct State;
  explicit CheckpointWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
