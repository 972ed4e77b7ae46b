// The face of reduce_gpu.hpp: checks arguments and calls the launch for the data type.
#include "frame_gpu.hpp"

namespace uzip::gpu {
namespace {

// Says what is wrong with the arguments of a fold, or nullptr.
const char* check_fold(const Fold& fold) {
  if (fold.dtype == DType::kBytes) return "expected values of a float type to fold, found bytes";
  if (fold.n_inputs < 1 || fold.n_inputs > kMaxInputs) return "expected 1 to 16 inputs";
  if (fold.divisor < 1) return "expected a divisor of at least 1";
  if (fold.count >= uint64_t{1} << 41) return "expected less than 2^41 values";
  if (!is_aligned(fold.before, kAlignment)) return "expected accumulators aligned to 16 bytes";
  for (int i = 0; i < fold.n_inputs; ++i) {
    const FoldInput& input = fold.inputs[i];
    if (input.frame_bytes == kPlainValues) {
      if (!is_aligned(input.memory, float_format(fold.dtype).itemsize)) {
        return "expected values aligned to their own size";
      }
    } else if (input.frame_bytes < kHeaderBytes) {
      return "expected at least the 64 bytes of a header";
    } else if (!is_aligned(input.memory, kAlignment)) {
      return "expected a frame aligned to 16 bytes";
    }
  }
  return nullptr;
}

struct Reduce {
  const Fold& fold;
  const TilePlace& result;
  uint32_t* status;
  const DecodeOptions& options;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return launch_reduce<kDType>(fold, result, status, options, stream);
  }
};

struct ReduceEncode {
  const Fold& fold;
  const Forecast& forecast;
  const ReduceEncodeOutput& output;
  const DecodeOptions& options;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return launch_reduce_encode<kDType>(fold, forecast, output, options, stream);
  }
};

struct EncodeShards {
  const Shard* shards;
  int n;
  DType dtype;
  EncodeScratch* scratch;
  const EncodeOptions& options;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return launch_encode_shards<kDType>(shards, n, dtype, scratch, options, stream);
  }
};

}  // namespace

const char* decode_reduce(const Fold& fold, void* out, uint32_t* status,
                          const DecodeOptions& options, void* stream) {
  if (const char* failure = check_fold(fold)) return failure;
  if (!is_aligned(out, float_format(fold.dtype).itemsize)) {
    return "expected room for values aligned to their own size";
  }
  const TilePlace result{static_cast<uint8_t*>(out), is_aligned(out, kAlignment), false};
  return with_type(fold.dtype, Reduce{fold, result, status, options, stream});
}

const char* decode_accumulate(const Fold& fold, void* accumulators, uint32_t* status,
                              const DecodeOptions& options, void* stream) {
  if (const char* failure = check_fold(fold)) return failure;
  if (!is_aligned(accumulators, kAlignment)) return "expected accumulators aligned to 16 bytes";
  const TilePlace result{static_cast<uint8_t*>(accumulators), true, true};
  return with_type(fold.dtype, Reduce{fold, result, status, options, stream});
}

const char* decode_reduce_encode(const Fold& fold, const Forecast& forecast, void* out, void* frame,
                                 EncodeScratch* scratch, uint32_t* status,
                                 const DecodeOptions& options, void* stream) {
  if (const char* failure = check_fold(fold)) return failure;
  if (!is_aligned(frame, kAlignment) || !is_aligned(scratch, kAlignment)) {
    return "expected a frame and scratch aligned to 16 bytes";
  }
  if (!is_aligned(out, float_format(fold.dtype).itemsize)) {
    return "expected room for values aligned to their own size";
  }
  const ReduceEncodeOutput output{static_cast<uint8_t*>(out), static_cast<uint8_t*>(frame), scratch,
                                  status};
  return with_type(fold.dtype, ReduceEncode{fold, forecast, output, options, stream});
}

const char* encode_shards(const Shard* shards, int n_shards, DType dtype, EncodeScratch* scratch,
                          const EncodeOptions& options, void* stream) {
  if (n_shards < 1 || n_shards > kMaxShards) return "expected 1 to 64 tensors";
  if (options.ans) return "expected codec tier or raw for many tensors, found ans";
  if (!is_aligned(scratch, kAlignment)) return "expected scratch aligned to 16 bytes";
  for (int i = 0; i < n_shards; ++i) {
    if (!is_aligned(shards[i].frame, kAlignment)) return "expected frames aligned to 16 bytes";
    if (!is_aligned(shards[i].values, float_format(dtype).itemsize)) {
      return "expected values aligned to their own size";
    }
  }
  return with_type(dtype, EncodeShards{shards, n_shards, dtype, scratch, options, stream});
}

}  // namespace uzip::gpu
