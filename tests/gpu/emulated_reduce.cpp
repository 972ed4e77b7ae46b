// The fused kernels on a processor, for tests: plain functions for ctypes.
#include "reduce_gpu.hpp"

using uzip::DType;
using uzip::ReduceOp;
using uzip::gpu::DecodeOptions;
using uzip::gpu::EncodeOptions;
using uzip::gpu::EncodeScratch;
using uzip::gpu::Fold;
using uzip::gpu::Forecast;
using uzip::gpu::Shard;

extern "C" {

struct EmulatedFold {
  int op;
  int dtype;
  uint64_t count;
  int divisor;
  const void* before;
  int n_inputs;
  const void* const* memories;
  const uint64_t* frame_bytes;
};

}  // extern "C"

namespace {

Fold fold_of(const EmulatedFold& from) {
  Fold fold{};
  fold.op = static_cast<ReduceOp>(from.op);
  fold.dtype = static_cast<DType>(from.dtype);
  fold.count = from.count;
  fold.divisor = from.divisor;
  fold.before = from.before;
  fold.n_inputs = from.n_inputs;
  for (int i = 0; i < from.n_inputs && i < uzip::gpu::kMaxInputs; ++i) {
    fold.inputs[i] = {from.memories[i], from.frame_bytes[i]};
  }
  return fold;
}

}  // namespace

extern "C" {

const char* emulated_reduce(const EmulatedFold* fold, void* out, uint32_t* status, int blocks) {
  return decode_reduce(fold_of(*fold), out, status, DecodeOptions{blocks}, nullptr);
}

const char* emulated_accumulate(const EmulatedFold* fold, void* out, uint32_t* status, int blocks) {
  return decode_accumulate(fold_of(*fold), out, status, DecodeOptions{blocks}, nullptr);
}

const char* emulated_reduce_encode(const EmulatedFold* fold, const void* like, int base_shift,
                                   void* out, void* frame, void* scratch, uint32_t* status,
                                   int blocks) {
  return decode_reduce_encode(fold_of(*fold), Forecast{like, base_shift}, out, frame,
                              static_cast<EncodeScratch*>(scratch), status, DecodeOptions{blocks},
                              nullptr);
}

const char* emulated_encode_shards(const void* const* values, const uint64_t* counts,
                                   void* const* frames, int n, int dtype, void* scratch, int menu,
                                   int raw, int always, int blocks) {
  Shard shards[uzip::gpu::kMaxShards + 1];
  for (int i = 0; i < n && i <= uzip::gpu::kMaxShards; ++i) {
    shards[i] = {values[i], counts[i], frames[i]};
  }
  EncodeOptions options;
  options.menu = menu;
  options.raw = raw != 0;
  options.always = always != 0;
  options.max_blocks = blocks;
  return uzip::gpu::encode_shards(shards, n, static_cast<DType>(dtype),
                                  static_cast<EncodeScratch*>(scratch), options, nullptr);
}

}  // extern "C"
