// One end of one direction of a pipe: its streams, its memory, and how many pieces it has had.
#pragma once

#include "pipe_gpu.hpp"
#include "runtime_gpu.hpp"

namespace uzip::gpu {

// Page-locked words for what the GPU tells the host: for each type the size of the last frame, and
// of its values, in one word; what decoders found.
struct PipeReport {
  uint64_t sizes[kDTypes];
  uint32_t found;
};

class PipeEnd {
 public:
  const char* open(int device, uint64_t slot_bytes);
  const char* close();
  const char* settle();

  // The next piece's slot, and the stream that copies it.
  uint32_t slot() const { return pieces % kPipeSlots; }
  void* mover() const { return movers[pieces % kMovers]; }
  void* last_mover() const { return movers[(pieces + kMovers - 1) % kMovers]; }
  uint8_t* room(uint32_t slot) const { return rooms + slot * slot_bytes_; }
  // Of the frame of so many bytes of values, rounded up.
  uint64_t expected_bytes(DType dtype, uint64_t bytes) const;

  int device = -1;
  uint32_t pieces = 0;
  uint32_t messages = 0;
  void* coder = nullptr;
  void* movers[kMovers] = {};
  void* coded[kPipeSlots] = {};  // events: the coder has done with a slot's piece
  void* moved[kPipeSlots] = {};  // the mover has
  void* at = nullptr;            // an event for one wait at a time
  EncodeScratch* scratch = nullptr;
  PipeReport* report = nullptr;

 private:
  uint8_t* rooms = nullptr;
  uint64_t slot_bytes_ = 0;
};

// Loads what exchanges launch: a driver that loads kernels when they are launched first would wait
// for the device, whose streams wait for peers.
void load_piece_kernels();
const char* load_codec_kernels(int device);

class Pipe {
 public:
  PipeRegion here;
  PipeRegion there;
  PipeEnd ends[2];  // what is sent, what is received
  PipeEnd& out() { return ends[0]; }
  PipeEnd& in() { return ends[1]; }
};

}  // namespace uzip::gpu
