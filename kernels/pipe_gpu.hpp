// Pipes: how two GPUs that do not reach each other exchange values through the host's memory, which
// their copy engines move.
//
// Each rank has, for every peer, a region in page-locked memory that both ranks map: slots for the
// pieces that come, and words of 32 bits, which tell how far things are. A piece is a frame
// (FORMAT.md) of a part of a message.
//
//   sender: encodes a piece to its GPU's memory; once the peer has taken what was in the slot
//           before, copies it there and raises the slot's flag
//   receiver: once the flag is raised, copies the slot to its GPU's memory, acknowledges it, and
//           decodes or folds the piece
//
// Streams wait for these words, and write them, by themselves: the host only queues, as with NCCL.
// Coding and copies have streams of their own, so that all are at work at a time. Numbers of pieces
// go on from message to message, so nothing is ever reset.
//
// Only the GPU knows how large a frame is when the copy of it is queued. Each end copies as many
// bytes as it expects by the frames before; a kernel, which runs anyway to tell and compare what
// the piece is part of, moves the rest, if any.
//
// A wait in a stream has no end of its own. Who watches the words (pipe.py) finds that nothing goes
// on, raises the abort words here and with the peers, and lifts all words that somebody may wait
// for; what was queued runs through, and pieces are refused from then on.
#pragma once

#include "codec_gpu.hpp"
#include "link_gpu.hpp"
#include "reduce.hpp"

namespace uzip::gpu {

constexpr int kPipeSlots = 4;
constexpr int kMovers = 2;  // streams of copies in one direction: one starts while another ends
// A message has four pieces or so, if they are neither smaller nor larger than these: a piece costs
// the host 10 to 20 us at each end and the bus 5, and what is under way should stay in the host's
// last cache.
constexpr uint64_t kLeastPieceBytes = uint64_t{2} << 20;
constexpr uint64_t kMostPieceBytes = uint64_t{4} << 20;
constexpr uint64_t kPiecesWanted = 4;

struct alignas(kLineBytes) PipeWord {
  uint32_t value;
};

// What a region begins with, all zero at first. Words of this rank's messages have an entry for
// those that are sent and one for those that are received.
struct PipeHead {
  PipeWord abort;              // a LinkStatus; anybody's
  PipeWord flags[kPipeSlots];  // the peer's: 1 + the number of the last piece in the slot
  PipeWord acknowledgements[kPipeSlots];  // the peer's: the same, of those it has taken
  PipeWord begun[2];                      // this rank's: messages that their streams have come to
  PipeWord ended[2];
};

// What ends a slot: what the piece is part of.
struct PieceHead {
  uint64_t count;  // values of the message
  uint64_t first;  // of them, in this piece
  uint32_t word;   // the caller's
  uint32_t dtype;
};

struct PipeRegion {
  uint8_t* memory;
  uint64_t slot_bytes;

  UZIP_HD PipeHead* head() const { return reinterpret_cast<PipeHead*>(memory); }
  UZIP_HD uint8_t* slot(uint32_t index) const {
    return memory + kPageBytes + uint64_t{index} * slot_bytes;
  }
  UZIP_HD PieceHead* piece_head(uint32_t index) const {
    return reinterpret_cast<PieceHead*>(slot(index) + slot_bytes - kLineBytes);
  }
  UZIP_HD static uint64_t bytes(uint64_t slot_bytes) {
    return kPageBytes + kPipeSlots * slot_bytes;
  }
};
static_assert(sizeof(PipeHead) <= kPageBytes && sizeof(PieceHead) <= kLineBytes);

// Bytes of values of which a slot has room for the frame: whole groups of any type.
constexpr uint64_t kPieceStepBytes = kTileValues * kGroupTiles * 8;
constexpr uint64_t pipe_piece_bytes(uint64_t slot_bytes) {
  return (slot_bytes - kLineBytes - kHeaderBytes) / kPieceStepBytes * kPieceStepBytes;
}
constexpr uint64_t kLeastSlotBytes = kPieceStepBytes + kPageBytes;
constexpr uint64_t kMostSlotBytes = kMostPieceBytes + kPageBytes;

class Pipe;

// Returns a link's two ends with all kernels loaded, or nullptr and why: `here` and `there` are
// where the GPU finds the regions. Takes memory of the GPU: pipe_device_bytes(). It must outlive
// what was queued.
Pipe* open_pipe(int device, PipeRegion here, PipeRegion there, const char** failure);
const char* close_pipe(Pipe* pipe);
uint64_t pipe_device_bytes(uint64_t slot_bytes);

// Messages begun by the host's count, [0] sent and [1] received; pieces likewise.
struct PipeCounts {
  uint32_t messages[2];
  uint32_t pieces[2];
};
PipeCounts count_queued(const Pipe& pipe);
// FrameStatus that decoders have found so far; 0: all was right.
uint32_t found_by(const Pipe& pipe);
// Waits for all that is queued.
const char* settle_pipe(Pipe* pipe);

struct PipeMessage {
  Pipe* pipe;
  uint8_t* values;
  uint64_t count;
};

// As in exchange_gpu.hpp.
struct PipeFold {
  ReduceOp op;
  int divisor;
  int n_peers;
  Pipe* pipes[kMaxPeers];  // in rank order
  int position;
  const uint8_t* own;
  uint8_t* out;
  uint64_t count;
};

// What is copied meanwhile in this GPU's memory.
struct PipeCopy {
  const uint8_t* from;
  uint8_t* to;
  uint64_t bytes;
};

struct PipeExchange {
  DType dtype;
  uint32_t word;
  EncodeOptions options;
  int n_sends;
  PipeMessage sends[kMaxPeers];
  int n_receives;
  PipeMessage receives[kMaxPeers];
  bool folds;
  PipeFold fold;
  PipeCopy copy;
};

// Queues an exchange after what is in the stream, which goes on when values that are sent may
// change and those that come are there. Returns nullptr, or why not all of it was queued.
const char* queue_exchange(const PipeExchange& exchange, int device, void* stream);

}  // namespace uzip::gpu
