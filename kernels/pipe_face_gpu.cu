// What is queued for an exchange through pipes: copies, waits for words, and the codec's kernels.
#include <algorithm>

#include "frame_decode_gpu.hpp"
#include "frame_encode_gpu.hpp"
#include "pipe_end_gpu.hpp"

namespace uzip::gpu {
namespace {

constexpr int kTailBlocks = 8;  // whose stores and loads fill the bus

// A piece in a slot, for the kernels that move what copies have left of it.
struct PieceJob {
  uint8_t* frame;  // in the GPU's memory; null: the values were copied behind where a header goes
  uint8_t* slot;   // in the host's
  PieceHead* head;
  PieceHead expected;
  uint64_t count;  // values of the piece
  uint64_t moved;  // bytes of the frame
  uint64_t room;   // for it: the size of a raw one
  uint64_t* told;  // where the host learns its size
  PipeWord* abort_here;
  PipeWord* abort_there;
};

UZIP_DEVICE uint64_t frame_bytes_of(const PieceJob& job, const uint8_t* frame) {
  const uint64_t bytes = reinterpret_cast<const Header*>(frame)->frame_bytes;
  return bytes < job.room ? bytes : job.room;
}

UZIP_DEVICE void move_tail(const PieceJob& job, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (bytes <= job.moved) return;
  copy_bytes(to + job.moved, from + job.moved, bytes - job.moved,
             uint64_t{block_index()} * kThreads + static_cast<uint64_t>(thread_index()),
             uint64_t{block_count()} * kThreads);
}

// What came raw by agreement says nothing of frames to come.
UZIP_DEVICE void tell(const PieceJob& job, uint64_t bytes) {
  if (bytes == job.room && job.moved == job.room) return;
  store_relaxed_system(job.told, bytes << 32 | (job.room - kHeaderBytes));
}

// The sender's: completes a piece in its slot.
UZIP_KERNEL(kThreads, 4) put_piece_kernel(PieceJob job) {
  const bool first = block_index() == 0 && thread_index() == 0;
  if (job.frame != nullptr) {
    const uint64_t bytes = frame_bytes_of(job, job.frame);
    move_tail(job, job.slot, job.frame, bytes);
    if (first) tell(job, bytes);
  } else if (first) {
    write_header(job.slot, static_cast<DType>(job.expected.dtype), Codec::kRaw, job.count, job.room,
                 0, {});
  }
  if (first) *job.head = job.expected;
}

// The receiver's: completes a piece in the GPU's memory, unless it is not what was expected or all
// has ended: then it is made what no decoder takes.
UZIP_KERNEL(kThreads, 4) take_piece_kernel(PieceJob job) {
  const bool first = block_index() == 0 && thread_index() == 0;
  const uint64_t bytes = frame_bytes_of(job, job.frame);
  move_tail(job, job.frame, job.slot, bytes);
  if (!first) return;
  tell(job, bytes);
  const PieceHead found = *job.head;
  if (load_relaxed_system(&job.abort_here->value) == 0) {
    if (found.count == job.expected.count && found.first == job.expected.first &&
        found.word == job.expected.word && found.dtype == job.expected.dtype) {
      return;
    }
    store_relaxed_system(&job.abort_here->value, static_cast<uint32_t>(LinkStatus::kMismatch));
    store_relaxed_system(&job.abort_there->value, static_cast<uint32_t>(LinkStatus::kAborted));
  }
  // What other blocks have read of it before is in its room, too.
  reinterpret_cast<Header*>(job.frame)->version = 0;
}

const char* launch_piece(bool put, const PieceJob& job, const EncodeOptions& options,
                         void* stream) {
  const auto kernel = put ? put_piece_kernel : take_piece_kernel;
  const int most = options.max_blocks;
  const int blocks = most > 0 && most < kTailBlocks ? most : kTailBlocks;
  return launch(kernel, blocks, kThreads, 0, static_cast<Stream>(stream), job);
}

// Calls of the driver and of the codec, until one fails.
class Calls {
 public:
  template <typename Function, typename... Arguments>
  void operator()(const Function& function, Arguments... arguments) {
    if (failure_ == nullptr) failure_ = function(arguments...);
  }
  const char* failure() const { return failure_; }

 private:
  const char* failure_ = nullptr;
};

// How a message is cut: alike at both ends. The first and the last piece are half as large: while
// they are on their way, nothing else is.
struct Pieces {
  uint64_t count;
  uint64_t itemsize;
  uint64_t edge;    // values of the first
  uint64_t middle;  // and of others

  static Pieces of(uint64_t count, DType dtype, const Pipe& pipe) {
    const auto itemsize = static_cast<uint64_t>(float_format(dtype).itemsize);
    const uint64_t bytes = count * itemsize;
    const uint64_t wanted = in_steps(bytes / kPiecesWanted);
    const uint64_t largest =
        std::min(std::max(wanted, kLeastPieceBytes), pipe_piece_bytes(pipe.here.slot_bytes));
    if (bytes <= largest) return {count, itemsize, count, count};
    const uint64_t edge = in_steps(largest / 2);
    const uint64_t between = bytes > 2 * edge ? bytes - 2 * edge : 0;
    const uint64_t number = std::max((between + largest - 1) / largest, uint64_t{1});
    const uint64_t middle = std::max(in_steps(between / number), edge);
    return {count, itemsize, edge / itemsize, middle / itemsize};
  }
  uint64_t number() const {
    if (count <= edge) return count != 0 ? 1 : 0;
    return 1 + (count - edge + middle - 1) / middle;
  }
  uint64_t first(uint64_t index) const { return index == 0 ? 0 : edge + (index - 1) * middle; }
  uint64_t values(uint64_t index) const {
    return std::min(index == 0 ? edge : middle, count - first(index));
  }
  uint64_t offset(uint64_t index) const { return first(index) * itemsize; }
  uint64_t room(uint64_t index) const { return kHeaderBytes + values(index) * itemsize; }

 private:
  static uint64_t in_steps(uint64_t bytes) {
    return (bytes + kPieceStepBytes - 1) / kPieceStepBytes * kPieceStepBytes;
  }
};

constexpr int kSent = 0;
constexpr int kReceived = 1;

// An exchange while it is queued.
class Queueing {
 public:
  Queueing(const PipeExchange& exchange, int device, void* stream)
      : exchange_(exchange),
        device_(device),
        stream_(stream),
        plain_(exchange.options.raw || exchange.dtype == DType::kBytes) {}

  const char* run() {
    for_ends([&](Pipe& pipe, int way) { begin(pipe, way); });  // all behind one event
    const PipeCopy& own = exchange_.copy;
    if (own.bytes != 0) call_(copy, own.to, own.from, own.bytes, device_, stream_);
    // What is sent comes first: a rank's waits never hold up what others wait for, in whatever
    // order streams are served.
    bool all = false;
    for (uint64_t index = 0; !all && call_.failure() == nullptr; ++index) {
      all = true;
      for_messages([&](const PipeMessage& message, int way) {
        const Pieces pieces = cut(*message.pipe, message.count);
        if (index >= pieces.number()) return;
        all = false;
        way == kSent ? send(message, pieces, index) : receive(message, pieces, index);
      });
      if (!exchange_.folds) continue;
      const Pieces pieces = cut(*exchange_.fold.pipes[0], exchange_.fold.count);
      if (index >= pieces.number()) continue;
      all = false;
      fold(pieces, index);
    }
    for_ends([&](Pipe& pipe, int way) { end(pipe, way); });
    if (call_.failure() != nullptr) for_ends([&](Pipe& pipe, int) { abort(pipe); });
    return call_.failure();
  }

 private:
  template <typename Function>
  void for_messages(const Function& function) {
    for (int i = 0; i < exchange_.n_sends; ++i) function(exchange_.sends[i], kSent);
    for (int i = 0; i < exchange_.n_receives; ++i) function(exchange_.receives[i], kReceived);
  }
  template <typename Function>
  void for_ends(const Function& function) {
    for_messages([&](const PipeMessage& message, int way) { function(*message.pipe, way); });
    for (int i = 0; exchange_.folds && i < exchange_.fold.n_peers; ++i) {
      function(*exchange_.fold.pipes[i], kReceived);
    }
  }
  // Of a message of which some pieces are not queued: both ends are out of step. Who watches will
  // find it.
  static void abort(const Pipe& pipe) {
    for (const PipeRegion& region : {pipe.here, pipe.there}) {
      *static_cast<volatile uint32_t*>(&region.head()->abort.value) =
          static_cast<uint32_t>(LinkStatus::kAborted);
    }
  }
  Pieces cut(const Pipe& pipe, uint64_t count) const {
    return Pieces::of(count, exchange_.dtype, pipe);
  }
  DecodeOptions decode_options() const { return {exchange_.options.max_blocks}; }

  // `stream` goes on when all is done that is queued in another one now.
  void follow(void* stream, void* event, void* other) {
    call_(record_event, event, device_, other);
    call_(wait_for_event, stream, device_, event);
  }

  // The words tell whoever watches that waiting has begun.
  void begin(Pipe& pipe, int way) {
    PipeEnd& end = pipe.ends[way];
    ++end.messages;
    if (start_ == nullptr) {
      start_ = end.at;
      call_(record_event, start_, device_, stream_);
    }
    call_(wait_for_event, end.coder, device_, start_);
    if (way == kSent && plain_) {
      for (void* mover : end.movers) call_(wait_for_event, mover, device_, start_);
    }
    call_(write_word, &pipe.here.head()->begun[way].value, end.messages, device_, end.coder);
  }

  PieceJob job_for(Pipe& pipe, int way, const Pieces& pieces, uint64_t index) {
    PipeEnd& end = pipe.ends[way];
    const PipeRegion& region = way == kSent ? pipe.there : pipe.here;
    const uint32_t slot = end.slot();
    PieceJob job{};
    job.frame = way == kSent && plain_ ? nullptr : end.room(slot);
    job.slot = region.slot(slot);
    job.head = region.piece_head(slot);
    job.expected = {pieces.count, pieces.first(index), exchange_.word,
                    static_cast<uint32_t>(exchange_.dtype)};
    job.count = pieces.values(index);
    job.room = pieces.room(index);
    job.moved = plain_ ? job.room : end.expected_bytes(exchange_.dtype, job.room - kHeaderBytes);
    job.told = &end.report->sizes[static_cast<int>(exchange_.dtype)];
    job.abort_here = &pipe.here.head()->abort;
    job.abort_there = &pipe.there.head()->abort;
    return job;
  }

  void send(const PipeMessage& message, const Pieces& pieces, uint64_t index) {
    Pipe& pipe = *message.pipe;
    PipeEnd& end = pipe.out();
    const PieceJob job = job_for(pipe, kSent, pieces, index);
    const uint8_t* values = message.values + pieces.offset(index);
    const uint32_t slot = end.slot();
    void* mover = end.mover();
    if (!plain_) {
      call_(wait_for_event, end.coder, device_, end.moved[slot]);
      call_(encode, values, job.count, exchange_.dtype, job.frame, end.scratch, exchange_.options,
            end.coder);
      follow(mover, end.coded[slot], end.coder);
    }
    if (end.pieces >= kPipeSlots) {
      call_(wait_for_word, &pipe.here.head()->acknowledgements[slot].value,
            end.pieces + 1 - kPipeSlots, device_, mover);
    }
    if (plain_) {
      call_(copy, job.slot + kHeaderBytes, values, job.room - kHeaderBytes, device_, mover);
    } else {
      call_(copy, job.slot, job.frame, job.moved, device_, mover);
    }
    call_(launch_piece, true, job, exchange_.options, mover);
    ++end.pieces;
    call_(write_word, &pipe.there.head()->flags[slot].value, end.pieces, device_, mover);
    call_(record_event, end.moved[slot], device_, mover);
  }

  // Queues that a piece comes to the GPU's memory, for which `coder` waits; returns where.
  FoldInput bring(Pipe& pipe, const Pieces& pieces, uint64_t index, void* coder) {
    PipeEnd& end = pipe.in();
    const PieceJob job = job_for(pipe, kReceived, pieces, index);
    const uint32_t slot = end.slot();
    void* mover = end.mover();
    ++end.pieces;
    call_(wait_for_event, mover, device_, end.coded[slot]);
    call_(wait_for_word, &pipe.here.head()->flags[slot].value, end.pieces, device_, mover);
    call_(copy, job.frame, job.slot, job.moved, device_, mover);
    call_(launch_piece, false, job, exchange_.options, mover);
    follow(coder, end.moved[slot], mover);
    call_(write_word, &pipe.there.head()->acknowledgements[slot].value, end.pieces, device_, mover);
    return {job.frame, kAtMost | job.room};
  }

  // `coder` goes on when the values of the piece that was sent last have been read.
  void await_taken(const PipeEnd& end, void* coder) {
    const uint32_t slot = (end.pieces - 1) % kPipeSlots;
    call_(wait_for_event, coder, device_, plain_ ? end.moved[slot] : end.coded[slot]);
  }

  // The coder has done with the piece that came last.
  void free_slot(PipeEnd& end, void* coder) {
    call_(record_event, end.coded[(end.pieces - 1) % kPipeSlots], device_, coder);
  }

  void receive(const PipeMessage& message, const Pieces& pieces, uint64_t index) {
    PipeEnd& end = message.pipe->in();
    const FoldInput frame = bring(*message.pipe, pieces, index, end.coder);
    call_(decode, frame.memory, frame.frame_bytes, exchange_.dtype, pieces.values(index),
          message.values + pieces.offset(index), &end.report->found, decode_options(), end.coder);
    free_slot(end, end.coder);
  }

  void fold(const Pieces& pieces, uint64_t index) {
    const PipeFold& fold = exchange_.fold;
    PipeEnd& first = fold.pipes[0]->in();
    Fold inputs{};
    inputs.op = fold.op;
    inputs.dtype = exchange_.dtype;
    inputs.count = pieces.values(index);
    inputs.divisor = fold.divisor;
    inputs.n_inputs = fold.n_peers + 1;
    inputs.inputs[fold.position] = {fold.own + pieces.offset(index), kPlainValues};
    for (int i = 0; i < fold.n_peers; ++i) {
      const int place = i < fold.position ? i : i + 1;
      inputs.inputs[place] = bring(*fold.pipes[i], pieces, index, first.coder);
    }
    for (int i = 0; i < exchange_.n_sends; ++i) {
      if (exchange_.sends[i].values == fold.out)
        await_taken(exchange_.sends[i].pipe->out(), first.coder);
    }
    call_(decode_reduce, inputs, fold.out + pieces.offset(index), &first.report->found,
          decode_options(), first.coder);
    for (int i = 0; i < fold.n_peers; ++i) free_slot(fold.pipes[i]->in(), first.coder);
  }

  void end(Pipe& pipe, int way) {
    way == kSent ? end_sent(pipe.out()) : end_received(pipe.in());
    PipeEnd& end = pipe.ends[way];
    void* last = way == kSent ? end.last_mover() : end.coder;
    call_(write_word, &pipe.here.head()->ended[way].value, end.messages, device_, last);
  }

  // Values that were encoded may change, those that are copied when they have been.
  void end_sent(PipeEnd& end) {
    if (!plain_) follow(stream_, end.at, end.coder);
    for (void* mover : end.movers) {
      if (mover != end.last_mover()) follow(end.last_mover(), end.at, mover);
    }
    if (plain_) follow(stream_, end.at, end.last_mover());
  }

  void end_received(PipeEnd& end) {
    if (exchange_.folds) follow(end.coder, end.at, exchange_.fold.pipes[0]->in().coder);
    follow(stream_, end.at, end.coder);
  }

  const PipeExchange& exchange_;
  int device_;
  void* stream_;
  bool plain_;  // values are copied as they are
  void* start_ = nullptr;
  Calls call_;
};

const char* check_values(const PipeExchange& exchange, const void* values, uint64_t count) {
  if (!is_aligned(values, float_format(exchange.dtype).itemsize)) {
    return "expected values aligned to their own size";
  }
  return count >= uint64_t{1} << 41 ? "expected less than 2^41 values" : nullptr;
}

const char* check_fold(const PipeExchange& exchange) {
  const PipeFold& fold = exchange.fold;
  if (exchange.dtype == DType::kBytes) {
    return "expected values of a float type to fold, found bytes";
  }
  if (fold.divisor < 1) return "expected a divisor of at least 1";
  if (fold.n_peers < 0 || fold.n_peers > kMaxPeers || fold.position < 0 ||
      fold.position > fold.n_peers) {
    return "expected at most 8 peers, and a place among them";
  }
  const char* failure = check_values(exchange, fold.own, fold.count);
  return failure != nullptr ? failure : check_values(exchange, fold.out, fold.count);
}

// One message at a time takes a direction of a pipe.
class Directions {
 public:
  bool take(const Pipe* pipe) {
    for (int i = 0; i < n_; ++i) {
      if (taken_[i] == pipe) return false;
    }
    taken_[n_++] = pipe;
    return true;
  }

 private:
  const Pipe* taken_[2 * kMaxPeers];
  int n_ = 0;
};

const char* check(const PipeExchange& exchange) {
  Directions sent;
  Directions received;
  bool free = true;
  const char* failure = exchange.folds ? check_fold(exchange) : nullptr;
  const auto look = [&](const PipeMessage* messages, int n, Directions* taken) {
    for (int i = 0; i < n && failure == nullptr; ++i) {
      failure = check_values(exchange, messages[i].values, messages[i].count);
      free = taken->take(messages[i].pipe) && free;
    }
  };
  look(exchange.sends, exchange.n_sends, &sent);
  look(exchange.receives, exchange.n_receives, &received);
  for (int i = 0; failure == nullptr && exchange.folds && i < exchange.fold.n_peers; ++i) {
    free = received.take(exchange.fold.pipes[i]) && free;
  }
  if (failure != nullptr) return failure;
  return free ? nullptr : "expected one message in each direction of a link";
}

const char* fold_alone(const PipeExchange& exchange, void* stream) {
  const PipeFold& fold = exchange.fold;
  Fold inputs{};
  inputs.op = fold.op;
  inputs.dtype = exchange.dtype;
  inputs.count = fold.count;
  inputs.divisor = fold.divisor;
  inputs.n_inputs = 1;
  inputs.inputs[0] = {fold.own, kPlainValues};
  return decode_reduce(inputs, fold.out, nullptr, {exchange.options.max_blocks}, stream);
}

}  // namespace

void load_piece_kernels() {
  (void)resident_blocks(put_piece_kernel, kThreads, 0);
  (void)resident_blocks(take_piece_kernel, kThreads, 0);
}

const char* queue_exchange(const PipeExchange& exchange, int device, void* stream) {
  if (const char* failure = check(exchange)) return failure;
  bool capturing = false;
  if (const char* failure = find_capturing(stream, device, &capturing)) return failure;
  if (capturing) return "expected a stream that is not captured: pieces are numbered by the host";
  if (exchange.folds && exchange.fold.n_peers == 0) return fold_alone(exchange, stream);
  return Queueing(exchange, device, stream).run();
}

}  // namespace uzip::gpu
