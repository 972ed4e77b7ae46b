// The face of the GPU's fused reductions, and of the encoder of many tensors: one launch each.
//
// As in codec_gpu.hpp nothing here allocates or waits for the device. Results are those of fold()
// in reduce.hpp, bit for bit.
#pragma once

#include "codec_gpu.hpp"
#include "reduce.hpp"

namespace uzip::gpu {

constexpr int kMaxInputs = 16;
constexpr int kMaxShards = 64;
constexpr uint64_t kPlainValues = ~uint64_t{0};

// What one rank contributes: a frame of codec raw or tier, aligned to 16; or, where frame_bytes is
// kPlainValues, values aligned to their own size.
struct FoldInput {
  const void* memory;
  uint64_t frame_bytes;  // or kAtMost
};

// A fold of tensors of `count` values, in the order of the inputs. More than kMaxInputs are folded
// by several calls: all but the last one write accumulators, all but the first one go on from them.
// Accumulators are float32 for 8- and 16-bit types, else the type itself; aligned to 16.
struct Fold {
  ReduceOp op;
  DType dtype;
  uint64_t count;
  int divisor;         // of the result
  const void* before;  // accumulators of the inputs before these; null: these are the first
  int n_inputs;
  FoldInput inputs[kMaxInputs];
};

// Writes what the inputs fold to, and the status. `out` may be the memory of a plain input, not
// overlap one in part. Where the status is not kOk, `out` is unspecified. Returns nullptr, or why
// nothing was launched.
const char* decode_reduce(const Fold& fold, void* out, uint32_t* status,
                          const DecodeOptions& options, void* stream);

// Writes the accumulators of the fold instead, neither divided nor rounded; these may be those of
// `before`.
const char* decode_accumulate(const Fold& fold, void* accumulators, uint32_t* status,
                              const DecodeOptions& options, void* stream);

// Parameters of a frame that is made of a result nobody has seen yet.
struct Forecast {
  const void* like;  // a header: its menu, window and order are taken; null: of that tier frame
                     // among the inputs whose window is the highest
  int base_shift;    // added to its window's base
};

// As decode_reduce, and writes the frame of the result as encode() does: `frame`, scratch and
// header are as there, the layout is dense. `out` may be null: then the values are in the frame
// only. A forecast that fails costs ratio, nothing else; without any tier frame to take it from the
// frame is raw. Where the status is not kOk, the header is all zero, which no decoder takes.
const char* decode_reduce_encode(const Fold& fold, const Forecast& forecast, void* out, void* frame,
                                 EncodeScratch* scratch, uint32_t* status,
                                 const DecodeOptions& options, void* stream);

// A tensor that becomes a frame of its own. As the arguments of encode().
struct Shard {
  const void* values;
  uint64_t count;
  void* frame;
};

// Writes the frames of up to kMaxShards tensors, those that encode() would write; of codec raw or
// tier only. `scratch` has one element per shard.
const char* encode_shards(const Shard* shards, int n_shards, DType dtype, EncodeScratch* scratch,
                          const EncodeOptions& options, void* stream);

}  // namespace uzip::gpu
