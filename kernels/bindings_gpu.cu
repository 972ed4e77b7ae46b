// The Python face of the GPU codec: addresses and sizes, one m.def per function of codec_gpu.hpp.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "codec_gpu.hpp"

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

}  // namespace

PYBIND11_MODULE(_gpu, m) {
  m.doc() = "Compiled GPU codec of uzipmpi.";
  m.attr("SCRATCH_BYTES") = sizeof(uzip::gpu::EncodeScratch);
  m.def("encode", &encode);
  m.def("decode", &decode);
}
