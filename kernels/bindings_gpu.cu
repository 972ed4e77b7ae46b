// The Python face of the GPU half: addresses and sizes, one m.def per function of codec_gpu.hpp and
// reduce_gpu.hpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "codec_gpu.hpp"
#include "reduce_gpu.hpp"

namespace py = pybind11;

namespace {

template <typename T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

uzip::DType parse_dtype(int code) {
  if (code < 0 || code >= uzip::kDTypes) {
    throw py::value_error("expected a dtype code of 0..6, found " + std::to_string(code));
  }
  return static_cast<uzip::DType>(code);
}

void check(const char* failure) {
  if (failure != nullptr) throw std::runtime_error(failure);
}

void encode(uint64_t values, uint64_t count, int dtype, uint64_t frame, uint64_t scratch,
            const std::string& codec, int menu, int max_blocks, uint64_t stream) {
  if (codec != "auto" && codec != "tier" && codec != "ans" && codec != "raw") {
    throw py::value_error("expected codec auto, tier, ans or raw, found " + codec);
  }
  uzip::gpu::EncodeOptions options;
  options.menu = menu;
  options.raw = codec == "raw";
  // An 8-bit value's exponent and rest depend on each other: coded whole it is smaller.
  const bool whole = uzip::float_format(parse_dtype(dtype)).itemsize == 1;
  options.ans = codec == "ans" || (codec == "auto" && whole);
  options.always = codec == "tier" || codec == "ans";
  const int first = options.ans ? uzip::gpu::kMinBlockLog2 : 0;
  const int last = options.ans ? uzip::gpu::kMaxBlockLog2 : uzip::kMenus - 1;
  if (menu != -1 && (menu < first || menu > last)) {
    throw py::value_error("expected a menu of " + std::to_string(first) + ".." +
                          std::to_string(last) + ", or -1, found " + std::to_string(menu));
  }
  options.max_blocks = max_blocks;
  const py::gil_scoped_release release;
  check(uzip::gpu::encode(pointer<void>(values), count, parse_dtype(dtype), pointer<void>(frame),
                          pointer<uzip::gpu::EncodeScratch>(scratch), options,
                          pointer<void>(stream)));
}

void decode(uint64_t frame, uint64_t frame_bytes, int dtype, uint64_t count, uint64_t values,
            uint64_t status, int max_blocks, uint64_t stream) {
  uzip::gpu::DecodeOptions options;
  options.max_blocks = max_blocks;
  const py::gil_scoped_release release;
  check(uzip::gpu::decode(pointer<void>(frame), frame_bytes, parse_dtype(dtype), count,
                          pointer<void>(values), pointer<uint32_t>(status), options,
                          pointer<void>(stream)));
}

using Addresses = std::vector<uint64_t>;

uzip::gpu::Fold make_fold(int op, int dtype, uint64_t count, int divisor, uint64_t before,
                          const Addresses& inputs, const std::vector<uint64_t>& frame_bytes) {
  if (op < 0 || op >= uzip::kReduceOps) {
    throw py::value_error("expected an operator code of 0..3, found " + std::to_string(op));
  }
  if (inputs.size() > uzip::gpu::kMaxInputs || inputs.size() != frame_bytes.size()) {
    throw py::value_error("expected at most 16 inputs and a size for each");
  }
  uzip::gpu::Fold fold{};
  fold.op = static_cast<uzip::ReduceOp>(op);
  fold.dtype = parse_dtype(dtype);
  fold.count = count;
  fold.divisor = divisor;
  fold.before = pointer<void>(before);
  fold.n_inputs = static_cast<int>(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    fold.inputs[i] = {pointer<void>(inputs[i]), frame_bytes[i]};
  }
  return fold;
}

void decode_reduce(int op, int dtype, uint64_t count, int divisor, uint64_t before,
                   const Addresses& inputs, const std::vector<uint64_t>& frame_bytes, uint64_t out,
                   uint64_t status, int max_blocks, uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, divisor, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  check(uzip::gpu::decode_reduce(fold, pointer<void>(out), pointer<uint32_t>(status), {max_blocks},
                                 pointer<void>(stream)));
}

void decode_accumulate(int op, int dtype, uint64_t count, uint64_t before, const Addresses& inputs,
                       const std::vector<uint64_t>& frame_bytes, uint64_t accumulators,
                       uint64_t status, int max_blocks, uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, 1, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  check(uzip::gpu::decode_accumulate(fold, pointer<void>(accumulators), pointer<uint32_t>(status),
                                     {max_blocks}, pointer<void>(stream)));
}

void decode_reduce_encode(int op, int dtype, uint64_t count, int divisor, uint64_t before,
                          const Addresses& inputs, const std::vector<uint64_t>& frame_bytes,
                          uint64_t like, int base_shift, uint64_t out, uint64_t frame,
                          uint64_t scratch, uint64_t status, int max_blocks, uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, divisor, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  check(uzip::gpu::decode_reduce_encode(
      fold, {pointer<void>(like), base_shift}, pointer<void>(out), pointer<void>(frame),
      pointer<uzip::gpu::EncodeScratch>(scratch), pointer<uint32_t>(status), {max_blocks},
      pointer<void>(stream)));
}

void encode_shards(const Addresses& values, const std::vector<uint64_t>& counts,
                   const Addresses& frames, int dtype, uint64_t scratch, const std::string& codec,
                   int menu, int max_blocks, uint64_t stream) {
  if (codec != "auto" && codec != "tier" && codec != "raw") {
    throw py::value_error("expected codec auto, tier or raw for many tensors, found " + codec);
  }
  if (menu < -1 || menu >= uzip::kMenus) {
    throw py::value_error("expected a menu of 0..7, or -1, found " + std::to_string(menu));
  }
  if (counts.size() != values.size() || frames.size() != values.size()) {
    throw py::value_error("expected as many counts and frames as tensors");
  }
  uzip::gpu::EncodeOptions options;
  options.menu = menu;
  options.raw = codec == "raw";
  options.always = codec == "tier";
  options.max_blocks = max_blocks;
  std::vector<uzip::gpu::Shard> shards;
  for (size_t i = 0; i < values.size(); ++i) {
    shards.push_back({pointer<void>(values[i]), counts[i], pointer<void>(frames[i])});
  }
  const py::gil_scoped_release release;
  check(uzip::gpu::encode_shards(shards.data(), static_cast<int>(shards.size()), parse_dtype(dtype),
                                 pointer<uzip::gpu::EncodeScratch>(scratch), options,
                                 pointer<void>(stream)));
}

}  // namespace

PYBIND11_MODULE(_gpu, m) {
  m.doc() = "Compiled GPU codec of uzipmpi.";
  m.attr("SCRATCH_BYTES") = sizeof(uzip::gpu::EncodeScratch);
  m.def("encode", &encode);
  m.attr("MAX_INPUTS") = uzip::gpu::kMaxInputs;
  m.attr("MAX_SHARDS") = uzip::gpu::kMaxShards;
  m.attr("PLAIN_VALUES") = uzip::gpu::kPlainValues;
  m.def("decode", &decode);
  m.def("decode_reduce", &decode_reduce);
  m.def("decode_accumulate", &decode_accumulate);
  m.def("decode_reduce_encode", &decode_reduce_encode);
  m.def("encode_shards", &encode_shards);
}
