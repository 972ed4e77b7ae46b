// The GPU codec on a processor, for tests: plain functions for ctypes.
#include "codec_gpu.hpp"

using uzip::DType;

extern "C" {

const char* emulated_encode(const void* values, uint64_t count, int dtype, void* frame,
                            void* scratch, int menu, int raw, int ans, int always, int blocks) {
  uzip::gpu::EncodeOptions options;
  options.menu = menu;
  options.raw = raw != 0;
  options.ans = ans != 0;
  options.always = always != 0;
  options.max_blocks = blocks;
  return uzip::gpu::encode(values, count, static_cast<DType>(dtype), frame,
                           static_cast<uzip::gpu::EncodeScratch*>(scratch), options, nullptr);
}

const char* emulated_decode(const void* frame, uint64_t frame_bytes, int dtype, uint64_t count,
                            void* values, uint32_t* status, int blocks) {
  uzip::gpu::DecodeOptions options;
  options.max_blocks = blocks;
  return uzip::gpu::decode(frame, frame_bytes, static_cast<DType>(dtype), count, values, status,
                           options, nullptr);
}

}  // extern "C"
