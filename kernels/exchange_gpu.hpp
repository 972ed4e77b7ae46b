// The face of exchanges between GPUs: messages to and from peers, and a fold of what comes, in one
// launch.
//
// As in codec_gpu.hpp nothing here allocates or waits for the device, and a launch can be captured
// and replayed. Messages of a link are received in the order in which they are sent; of the
// launches that use one direction of a link, one may run at a time.
#pragma once

#include "codec_gpu.hpp"
#include "link_gpu.hpp"
#include "reduce.hpp"

namespace uzip::gpu {

// What goes to a peer, or comes from it.
struct Message {
  int link;
  uint8_t* values;  // aligned to their own size; only read where they are sent
  uint64_t count;
  int together;  // how many, from here on, send the same, which is coded once; 0: one before does.
                 // exchange() fills it in
  uint32_t first_block;  // of those that work on it, which launches fill in, as what follows
  uint32_t blocks;
  Records records;
};

// A fold of tensors in rank order: this rank's own is in memory, the others come from peers. The
// result is that of fold() in reduce.hpp, bit for bit. `out` may be `own`; and, where there is one
// peer, what is sent to it, all of it.
struct LinkFold {
  ReduceOp op;
  int divisor;
  int n_peers;
  int links[kMaxPeers];  // in rank order
  int position;          // of this rank: how many peers come before
  const uint8_t* own;
  uint8_t* out;
  uint64_t count;
  uint32_t first_block;
  uint32_t blocks;
  Records records;
};

// What is copied meanwhile in this GPU's memory.
struct LocalCopy {
  const uint8_t* from;
  uint8_t* to;
  uint64_t bytes;
  uint32_t first_block;
  uint32_t blocks;
};

struct Exchange {
  DType dtype;
  uint32_t word;  // both ends of a message must say the same
  EncodeOptions options;
  bool hurries;      // blocks, not the link, are what there is too little of; launches fill it in
  int at_once;       // launches that may have to run side by side
  uint64_t timeout;  // ns that a kernel waits for something to happen
  uint32_t* status;  // LinkStatus; in memory that the host can read while kernels run, zero before
  int n_links;
  Link links[kMaxPeers];
  int n_sends;
  Message sends[kMaxPeers];
  int n_receives;
  Message receives[kMaxPeers];
  bool folds;
  bool in_place;  // the fold replaces what is sent; exchange() fills it in
  LinkFold fold;
  LocalCopy copy;  // where there are bytes
};

// Returns nullptr, or why nothing was launched. Takes at least one block for each message and the
// fold, whatever options.max_blocks says.
const char* exchange(Exchange exchange, void* stream);

}  // namespace uzip::gpu
