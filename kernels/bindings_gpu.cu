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
  if (codec != "auto" && codec != "tier" && codec != "raw") {
    throw py::value_error("expected codec auto, tier or raw on a GPU, found " + codec);
  }
  if (menu < -1 || menu >= uzip::kMenus) {
    throw py::value_error("expected a menu of -1..7, found " + std::to_string(menu));
  }
  uzip::gpu::EncodeOptions options;
  options.menu = menu;
  options.raw = codec == "raw";
  options.always = codec == "tier";
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
