// The Python face of the GPU half: addresses and sizes, one m.def per function of codec_gpu.hpp,
// reduce_gpu.hpp and runtime_gpu.hpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "codec_gpu.hpp"
#include "exchange_gpu.hpp"
#include "pipe_gpu.hpp"
#include "reduce_gpu.hpp"
#include "runtime_gpu.hpp"

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

// Where kernels are launched: -1 leaves the thread's current device.
struct Current {
  explicit Current(int device) : current(device) { check(current.failure()); }
  uzip::gpu::OnDevice current;
};

void encode(uint64_t values, uint64_t count, int dtype, uint64_t frame, uint64_t scratch,
            const std::string& codec, int menu, int max_blocks, int device, uint64_t stream) {
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
  const Current current(device);
  check(uzip::gpu::encode(pointer<void>(values), count, parse_dtype(dtype), pointer<void>(frame),
                          pointer<uzip::gpu::EncodeScratch>(scratch), options,
                          pointer<void>(stream)));
}

void decode(uint64_t frame, uint64_t frame_bytes, int dtype, uint64_t count, uint64_t values,
            uint64_t status, int max_blocks, int device, uint64_t stream) {
  uzip::gpu::DecodeOptions options;
  options.max_blocks = max_blocks;
  const py::gil_scoped_release release;
  const Current current(device);
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
                   uint64_t status, int max_blocks, int device, uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, divisor, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  const Current current(device);
  check(uzip::gpu::decode_reduce(fold, pointer<void>(out), pointer<uint32_t>(status), {max_blocks},
                                 pointer<void>(stream)));
}

void decode_accumulate(int op, int dtype, uint64_t count, uint64_t before, const Addresses& inputs,
                       const std::vector<uint64_t>& frame_bytes, uint64_t accumulators,
                       uint64_t status, int max_blocks, int device, uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, 1, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  const Current current(device);
  check(uzip::gpu::decode_accumulate(fold, pointer<void>(accumulators), pointer<uint32_t>(status),
                                     {max_blocks}, pointer<void>(stream)));
}

void decode_reduce_encode(int op, int dtype, uint64_t count, int divisor, uint64_t before,
                          const Addresses& inputs, const std::vector<uint64_t>& frame_bytes,
                          uint64_t like, int base_shift, uint64_t out, uint64_t frame,
                          uint64_t scratch, uint64_t status, int max_blocks, int device,
                          uint64_t stream) {
  const auto fold = make_fold(op, dtype, count, divisor, before, inputs, frame_bytes);
  const py::gil_scoped_release release;
  const Current current(device);
  check(uzip::gpu::decode_reduce_encode(
      fold, {pointer<void>(like), base_shift}, pointer<void>(out), pointer<void>(frame),
      pointer<uzip::gpu::EncodeScratch>(scratch), pointer<uint32_t>(status), {max_blocks},
      pointer<void>(stream)));
}

void encode_shards(const Addresses& values, const std::vector<uint64_t>& counts,
                   const Addresses& frames, int dtype, uint64_t scratch, const std::string& codec,
                   int menu, int max_blocks, int device, uint64_t stream) {
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
  const Current current(device);
  check(uzip::gpu::encode_shards(shards.data(), static_cast<int>(shards.size()), parse_dtype(dtype),
                                 pointer<uzip::gpu::EncodeScratch>(scratch), options,
                                 pointer<void>(stream)));
}

// A link's regions, here and with the peer, and its ledger; a message's link, address and count; a
// fold's operator, divisor, place among the peers, their links, addresses of its own values and of
// the result, count; from where a copy goes where, bytes.
using LinkAddresses = std::tuple<uint64_t, uint64_t, uint64_t>;
using MessageFields = std::tuple<int, uint64_t, uint64_t>;
using FoldFields = std::tuple<int, int, int, std::vector<int>, uint64_t, uint64_t, uint64_t>;
using CopyFields = std::tuple<uint64_t, uint64_t, uint64_t>;

void check_number(const char* what, size_t n) {
  if (n <= uzip::gpu::kMaxPeers) return;
  throw py::value_error("expected at most " + std::to_string(uzip::gpu::kMaxPeers) + " " + what +
                        ", found " + std::to_string(n));
}

int set_messages(const std::vector<MessageFields>& fields, uzip::gpu::Message* messages) {
  check_number("messages in one direction", fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [link, values, count] = fields[i];
    messages[i] = {link, pointer<uint8_t>(values), count, 0, 0, {}};
  }
  return static_cast<int>(fields.size());
}

uzip::gpu::LinkFold make_link_fold(const FoldFields& fields) {
  const auto& [op, divisor, position, links, own, out, count] = fields;
  if (op < 0 || op >= uzip::kReduceOps) {
    throw py::value_error("expected an operator code of 0..3, found " + std::to_string(op));
  }
  check_number("peers", links.size());
  uzip::gpu::LinkFold fold{};
  fold.op = static_cast<uzip::ReduceOp>(op);
  fold.divisor = divisor;
  fold.position = position;
  fold.n_peers = static_cast<int>(links.size());
  for (size_t i = 0; i < links.size(); ++i) fold.links[i] = links[i];
  fold.own = pointer<uint8_t>(own);
  fold.out = pointer<uint8_t>(out);
  fold.count = count;
  return fold;
}

// An exchange whose arguments are understood: it can be launched again and again.
struct PreparedExchange {
  uzip::gpu::Exchange arguments;
  int device;

  void launch(uint64_t stream) const {
    const py::gil_scoped_release release;
    const Current current(device);
    check(uzip::gpu::exchange(arguments, pointer<void>(stream)));
  }
};

uzip::gpu::EncodeOptions linked_options(const std::string& codec, int menu, int max_blocks) {
  if (codec != "auto" && codec != "tier" && codec != "raw") {
    throw py::value_error("expected codec auto, tier or raw between GPUs, found " + codec);
  }
  if (menu < -1 || menu >= uzip::kMenus) {
    throw py::value_error("expected a menu of 0..7, or -1, found " + std::to_string(menu));
  }
  uzip::gpu::EncodeOptions options;
  options.menu = menu;
  options.raw = codec == "raw";
  options.always = codec == "tier";
  options.max_blocks = max_blocks;
  return options;
}

PreparedExchange prepare_exchange(int dtype, uint32_t word, const std::string& codec, int menu,
                                  int max_blocks, int at_once, uint64_t timeout, uint64_t status,
                                  int slots_log2, const std::vector<LinkAddresses>& links,
                                  const std::vector<MessageFields>& sends,
                                  const std::vector<MessageFields>& receives,
                                  const std::optional<FoldFields>& fold,
                                  const std::optional<CopyFields>& copy, int device) {
  check_number("links", links.size());
  uzip::gpu::Exchange arguments{};
  arguments.dtype = parse_dtype(dtype);
  arguments.word = word;
  arguments.options = linked_options(codec, menu, max_blocks);
  arguments.at_once = at_once;
  arguments.timeout = timeout;
  arguments.status = pointer<uint32_t>(status);
  arguments.n_links = static_cast<int>(links.size());
  for (size_t i = 0; i < links.size(); ++i) {
    const auto& [here, there, ledger] = links[i];
    arguments.links[i] = {{pointer<uint8_t>(here), slots_log2},
                          {pointer<uint8_t>(there), slots_log2},
                          pointer<uzip::gpu::Ledger>(ledger)};
  }
  arguments.n_sends = set_messages(sends, arguments.sends);
  arguments.n_receives = set_messages(receives, arguments.receives);
  arguments.folds = fold.has_value();
  if (fold) arguments.fold = make_link_fold(*fold);
  if (copy) {
    const auto& [from, to, bytes] = *copy;
    arguments.copy = {pointer<uint8_t>(from), pointer<uint8_t>(to), bytes, 0, 0};
  }
  return {arguments, device};
}

// Pipes are numbers here; a message's pipe, address and count.
using PipeFields = std::tuple<uint64_t, uint64_t, uint64_t>;

int set_pipe_messages(const std::vector<PipeFields>& fields, uzip::gpu::PipeMessage* messages) {
  check_number("messages in one direction", fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [pipe, values, count] = fields[i];
    messages[i] = {pointer<uzip::gpu::Pipe>(pipe), pointer<uint8_t>(values), count};
  }
  return static_cast<int>(fields.size());
}

// As FoldFields, with pipes in the place of links.
using PipeFoldFields =
    std::tuple<int, int, int, std::vector<uint64_t>, uint64_t, uint64_t, uint64_t>;

uzip::gpu::PipeFold make_pipe_fold(const PipeFoldFields& fields) {
  const auto& [op, divisor, position, pipes, own, out, count] = fields;
  const uzip::gpu::LinkFold checked =
      make_link_fold({op, divisor, position, std::vector<int>(pipes.size()), own, out, count});
  uzip::gpu::PipeFold fold{};
  fold.op = checked.op;
  fold.divisor = divisor;
  fold.n_peers = checked.n_peers;
  for (size_t i = 0; i < pipes.size(); ++i) fold.pipes[i] = pointer<uzip::gpu::Pipe>(pipes[i]);
  fold.position = position;
  fold.own = checked.own;
  fold.out = checked.out;
  fold.count = count;
  return fold;
}

// As PreparedExchange.
struct PreparedPipes {
  uzip::gpu::PipeExchange arguments;
  int device;

  void launch(uint64_t stream) const {
    const py::gil_scoped_release release;
    const Current current(device);
    check(uzip::gpu::queue_exchange(arguments, device, pointer<void>(stream)));
  }
};

PreparedPipes prepare_pipes(int dtype, uint32_t word, const std::string& codec, int menu,
                            int max_blocks, const std::vector<PipeFields>& sends,
                            const std::vector<PipeFields>& receives,
                            const std::optional<PipeFoldFields>& fold,
                            const std::optional<CopyFields>& copy, int device) {
  uzip::gpu::PipeExchange arguments{};
  arguments.dtype = parse_dtype(dtype);
  arguments.word = word;
  arguments.options = linked_options(codec, menu, max_blocks);
  arguments.n_sends = set_pipe_messages(sends, arguments.sends);
  arguments.n_receives = set_pipe_messages(receives, arguments.receives);
  arguments.folds = fold.has_value();
  if (fold) arguments.fold = make_pipe_fold(*fold);
  if (copy) {
    const auto& [from, to, bytes] = *copy;
    arguments.copy = {pointer<uint8_t>(from), pointer<uint8_t>(to), bytes};
  }
  return {arguments, device};
}

uint64_t open_pipe(int device, uint64_t here, uint64_t there, uint64_t slot_bytes) {
  const Current current(device);
  const char* failure = nullptr;
  auto* pipe = uzip::gpu::open_pipe(device, {pointer<uint8_t>(here), slot_bytes},
                                    {pointer<uint8_t>(there), slot_bytes}, &failure);
  check(failure);
  return reinterpret_cast<uintptr_t>(pipe);
}

void close_pipe(uint64_t pipe) { check(uzip::gpu::close_pipe(pointer<uzip::gpu::Pipe>(pipe))); }

void settle_pipe(uint64_t pipe) { check(uzip::gpu::settle_pipe(pointer<uzip::gpu::Pipe>(pipe))); }

// Messages and pieces sent, and received.
std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> count_queued(uint64_t pipe) {
  const auto counts = uzip::gpu::count_queued(*pointer<uzip::gpu::Pipe>(pipe));
  return {counts.messages[0], counts.messages[1], counts.pieces[0], counts.pieces[1]};
}

uint32_t found_by(uint64_t pipe) { return uzip::gpu::found_by(*pointer<uzip::gpu::Pipe>(pipe)); }

// Calls a function that makes something; returns it as a number.
template <typename Function, typename... Arguments>
uint64_t made(const Function& function, Arguments... arguments) {
  void* result = nullptr;
  check(function(arguments..., &result));
  return reinterpret_cast<uintptr_t>(result);
}

int device_count() {
  int count = 0;
  check(uzip::gpu::count_devices(&count));
  return count;
}

int current_device() {
  int device = 0;
  check(uzip::gpu::find_current_device(&device));
  return device;
}

std::tuple<int, int> place(uint64_t memory) {
  uzip::gpu::Place found{};
  check(uzip::gpu::find_place(pointer<void>(memory), &found));
  return {static_cast<int>(found.kind), found.device};
}

uint64_t allocate(uint64_t nbytes, int device) { return made(uzip::gpu::allocate, nbytes, device); }

void release(uint64_t memory, int device) {
  check(uzip::gpu::release(pointer<void>(memory), device));
}

uint64_t allocate_pinned(uint64_t nbytes, int device) {
  return made(uzip::gpu::allocate_pinned, nbytes, device);
}

void release_pinned(uint64_t memory, int device) {
  check(uzip::gpu::release_pinned(pointer<void>(memory), device));
}

void pin(uint64_t memory, uint64_t nbytes, int device) {
  check(uzip::gpu::pin(pointer<void>(memory), nbytes, device));
}

uint64_t device_address(uint64_t memory, int device) {
  return made(uzip::gpu::find_device_address, pointer<void>(memory), device);
}

void unpin(uint64_t memory, int device) { check(uzip::gpu::unpin(pointer<void>(memory), device)); }

uint64_t create_stream(int device) { return made(uzip::gpu::create_stream, device); }

void destroy_stream(uint64_t stream, int device) {
  check(uzip::gpu::destroy_stream(pointer<void>(stream), device));
}

void synchronize_stream(uint64_t stream, int device) {
  check(uzip::gpu::synchronize_stream(pointer<void>(stream), device));
}

bool is_capturing(uint64_t stream, int device) {
  bool capturing = false;
  check(uzip::gpu::find_capturing(pointer<void>(stream), device, &capturing));
  return capturing;
}

void copy(uint64_t to, uint64_t from, uint64_t nbytes, int device, uint64_t stream) {
  check(uzip::gpu::copy(pointer<void>(to), pointer<void>(from), nbytes, device,
                        pointer<void>(stream)));
}

void set_bytes(uint64_t memory, int value, uint64_t nbytes, int device, uint64_t stream) {
  check(uzip::gpu::set_bytes(pointer<void>(memory), value, nbytes, device, pointer<void>(stream)));
}

uint64_t create_event(int device) { return made(uzip::gpu::create_event, device); }

void destroy_event(uint64_t event, int device) {
  check(uzip::gpu::destroy_event(pointer<void>(event), device));
}

void record_event(uint64_t event, int device, uint64_t stream) {
  check(uzip::gpu::record_event(pointer<void>(event), device, pointer<void>(stream)));
}

bool query_event(uint64_t event, int device) {
  bool done = false;
  check(uzip::gpu::query_event(pointer<void>(event), device, &done));
  return done;
}

void synchronize_event(uint64_t event, int device) {
  check(uzip::gpu::synchronize_event(pointer<void>(event), device));
}

void wait_for_event(uint64_t stream, int device, uint64_t event) {
  check(uzip::gpu::wait_for_event(pointer<void>(stream), device, pointer<void>(event)));
}

uint64_t allocate_for_peers(uint64_t nbytes, int device) {
  return made(uzip::gpu::allocate_for_peers, nbytes, device);
}

py::bytes export_memory(uint64_t memory, int device) {
  uint8_t handle[uzip::gpu::kMemoryHandleBytes];
  check(uzip::gpu::export_memory(pointer<void>(memory), device, handle));
  return {reinterpret_cast<const char*>(handle), sizeof handle};
}

uint64_t open_memory(const std::string& handle, int device) {
  if (handle.size() != uzip::gpu::kMemoryHandleBytes) {
    throw py::value_error("expected a handle of 64 bytes, found " + std::to_string(handle.size()));
  }
  void* memory = nullptr;
  check(uzip::gpu::open_memory(reinterpret_cast<const uint8_t*>(handle.data()), device, &memory));
  return reinterpret_cast<uintptr_t>(memory);
}

void close_memory(uint64_t memory, int device) {
  check(uzip::gpu::close_memory(pointer<void>(memory), device));
}

void enable_peer(int device, int peer) { check(uzip::gpu::enable_peer(device, peer)); }

bool can_access_peer(int device, int peer) {
  bool can = false;
  check(uzip::gpu::can_access_peer(device, peer, &can));
  return can;
}

std::tuple<std::string, std::string> identify_device(int device) {
  char place[uzip::gpu::kPlaceBytes];
  uint8_t uuid[16];
  check(uzip::gpu::identify_device(device, place, uuid));
  std::string hex;
  for (const uint8_t byte : uuid) {
    for (const int digit : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[digit];
  }
  return {place, hex};
}

int find_device(const std::string& place) {
  int device = -1;
  check(uzip::gpu::find_device(place.c_str(), &device));
  return device;
}

uint64_t region_bytes(int slots_log2) { return uzip::gpu::Region::bytes(slots_log2); }

uint64_t ledger_bytes(int slots_log2) { return uzip::gpu::Ledger::bytes(slots_log2); }

}  // namespace

PYBIND11_MODULE(_gpu, m) {
  m.doc() = "Compiled GPU codec of uzipmpi, and the runtime under it.";
  m.attr("SCRATCH_BYTES") = sizeof(uzip::gpu::EncodeScratch);
  m.attr("MAX_INPUTS") = uzip::gpu::kMaxInputs;
  m.attr("MAX_SHARDS") = uzip::gpu::kMaxShards;
  m.attr("PLAIN_VALUES") = uzip::gpu::kPlainValues;
  m.def("encode", &encode);
  m.def("decode", &decode);
  m.def("decode_reduce", &decode_reduce);
  m.def("decode_accumulate", &decode_accumulate);
  m.def("decode_reduce_encode", &decode_reduce_encode);
  m.def("encode_shards", &encode_shards);
  m.attr("MAX_PEERS") = uzip::gpu::kMaxPeers;
  m.attr("MIN_SLOTS_LOG2") = uzip::gpu::kMinSlotsLog2;
  m.attr("MAX_SLOTS_LOG2") = uzip::gpu::kMaxSlotsLog2;
  m.attr("PEER_BLOCK_BYTES") = uzip::gpu::kPeerBlockBytes;
  m.def("region_bytes", &region_bytes);
  m.def("ledger_bytes", &ledger_bytes);
  py::class_<PreparedExchange>(m, "PreparedExchange").def("launch", &PreparedExchange::launch);
  m.def("prepare_exchange", &prepare_exchange);
  m.attr("LEAST_SLOT_BYTES") = uzip::gpu::kLeastSlotBytes;
  m.attr("MOST_SLOT_BYTES") = uzip::gpu::kMostSlotBytes;
  m.attr("PIPE_SLOTS") = uzip::gpu::kPipeSlots;
  m.attr("PIPE_WORD_BYTES") = sizeof(uzip::gpu::PipeWord);
  m.attr("PIPE_HEAD_WORDS") = sizeof(uzip::gpu::PipeHead) / sizeof(uzip::gpu::PipeWord);
  m.def("pipe_region_bytes", &uzip::gpu::PipeRegion::bytes);
  m.def("pipe_device_bytes", &uzip::gpu::pipe_device_bytes);
  py::class_<PreparedPipes>(m, "PreparedPipes").def("launch", &PreparedPipes::launch);
  m.def("prepare_pipes", &prepare_pipes);
  // Any call may meet a lock that a thread which waits for the device holds.
  using Released = py::call_guard<py::gil_scoped_release>;
  m.def("open_pipe", &open_pipe, Released());
  m.def("close_pipe", &close_pipe, Released());
  m.def("settle_pipe", &settle_pipe, Released());
  m.def("count_queued", &count_queued);
  m.def("found_by", &found_by);
  m.def("device_count", &device_count, Released());
  m.def("current_device", &current_device, Released());
  m.def("place", &place, Released());
  m.def("allocate", &allocate, Released());
  m.def("release", &release, Released());
  m.def("allocate_pinned", &allocate_pinned, Released());
  m.def("release_pinned", &release_pinned, Released());
  m.def("pin", &pin, Released());
  m.def("unpin", &unpin, Released());
  m.def("device_address", &device_address, Released());
  m.def("create_stream", &create_stream, Released());
  m.def("destroy_stream", &destroy_stream, Released());
  m.def("synchronize_stream", &synchronize_stream, Released());
  m.def("is_capturing", &is_capturing);
  m.def("copy", &copy, Released());
  m.def("set_bytes", &set_bytes, Released());
  m.def("create_event", &create_event, Released());
  m.def("destroy_event", &destroy_event, Released());
  m.def("record_event", &record_event, Released());
  m.def("query_event", &query_event, Released());
  m.def("synchronize_event", &synchronize_event, Released());
  m.def("wait_for_event", &wait_for_event, Released());
  m.def("allocate_for_peers", &allocate_for_peers, Released());
  m.def("export_memory", &export_memory);
  m.def("open_memory", &open_memory);
  m.def("close_memory", &close_memory, Released());
  m.def("enable_peer", &enable_peer, Released());
  m.def("can_access_peer", &can_access_peer, Released());
  m.def("identify_device", &identify_device);
  m.def("find_device", &find_device);
}
