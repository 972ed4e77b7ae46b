// What the files of kernels define, each for one data type per compilation (types_gpu.hpp), and the
// faces call: launches, whose arguments have been checked.
#pragma once

#include "exchange_gpu.hpp"
#include "reduce_gpu.hpp"
#include "types_gpu.hpp"

namespace uzip::gpu {

struct Tensor {
  const uint8_t* values;
  uint64_t count;
  bool aligned;
};

struct Frame {
  const uint8_t* bytes;
  uint64_t size;
};

// Where values go.
struct Destination {
  uint8_t* values;
  uint64_t count;
  bool aligned;
};

// Where folded values go.
struct TilePlace {
  uint8_t* memory;
  bool aligned;
  bool wide;  // as accumulators, neither divided nor rounded
};

// Of at least one tile.
template <DType kDType>
const char* launch_encode(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                          const EncodeOptions& options, void* stream);
template <DType kDType>
const char* launch_encode_ans(const Tensor& tensor, uint8_t* frame, EncodeScratch* scratch,
                              const EncodeOptions& options, void* stream);

// `dtype`: kDType, or bytes.
template <DType kDType>
const char* launch_encode_shards(const Shard* shards, int n, DType dtype, EncodeScratch* scratch,
                                 const EncodeOptions& options, void* stream);
template <DType kDType>
const char* launch_decode(const Frame& frame, DType dtype, const Destination& destination,
                          uint32_t* status, const DecodeOptions& options, void* stream);

template <DType kDType>
const char* launch_reduce(const Fold& fold, const TilePlace& result, uint32_t* status,
                          const DecodeOptions& options, void* stream);

struct ReduceEncodeOutput {
  uint8_t* values;  // or null
  uint8_t* frame;
  EncodeScratch* scratch;
  uint32_t* status;
};
template <DType kDType>
const char* launch_reduce_encode(const Fold& fold, const Forecast& forecast,
                                 const ReduceEncodeOutput& output, const DecodeOptions& options,
                                 void* stream);

template <DType kDType>
const char* launch_exchange(const Exchange& exchange, void* stream);

}  // namespace uzip::gpu
