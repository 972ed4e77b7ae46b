// The face of exchange_gpu.hpp: checks arguments and calls the launch for the data type.
#include "frame_gpu.hpp"

namespace uzip::gpu {
namespace {

const char* check_messages(const Message* messages, int n, const Exchange& exchange) {
  if (n < 0 || n > kMaxPeers) return "expected at most 8 messages in each direction";
  for (int i = 0; i < n; ++i) {
    if (messages[i].link < 0 || messages[i].link >= exchange.n_links) return "no such link";
    if (!is_aligned(messages[i].values, float_format(exchange.dtype).itemsize)) {
      return "expected values aligned to their own size";
    }
    if (messages[i].count >= uint64_t{1} << 41) return "expected less than 2^41 values";
  }
  return nullptr;
}

const char* check_fold(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  if (!exchange.folds) return nullptr;
  if (exchange.dtype == DType::kBytes) {
    return "expected values of a float type to fold, found bytes";
  }
  if (fold.divisor < 1) return "expected a divisor of at least 1";
  if (fold.count >= uint64_t{1} << 41) return "expected less than 2^41 values";
  if (fold.n_peers < 0 || fold.n_peers > kMaxPeers || fold.position < 0 ||
      fold.position > fold.n_peers) {
    return "expected at most 8 peers, and a place among them";
  }
  for (int i = 0; i < fold.n_peers; ++i) {
    if (fold.links[i] < 0 || fold.links[i] >= exchange.n_links) return "no such link";
  }
  const int itemsize = float_format(exchange.dtype).itemsize;
  if (!is_aligned(fold.own, itemsize) || !is_aligned(fold.out, itemsize)) {
    return "expected values aligned to their own size";
  }
  return nullptr;
}

// One message at a time takes a direction of a link.
const char* check_directions(const Exchange& exchange) {
  uint32_t sent = 0;
  uint32_t received = 0;
  const auto take = [](uint32_t* taken, int link) {
    const uint32_t bit = 1u << link;
    const bool free = (*taken & bit) == 0;
    *taken |= bit;
    return free;
  };
  bool free = true;
  for (int i = 0; i < exchange.n_sends; ++i) free = take(&sent, exchange.sends[i].link) && free;
  for (int i = 0; i < exchange.n_receives; ++i) {
    free = take(&received, exchange.receives[i].link) && free;
  }
  for (int i = 0; exchange.folds && i < exchange.fold.n_peers; ++i) {
    free = take(&received, exchange.fold.links[i]) && free;
  }
  return free ? nullptr : "expected one message in each direction of a link";
}

// Whether the fold's result replaces what is sent.
bool is_in_place(const Exchange& exchange) {
  bool found = false;
  for (int i = 0; i < exchange.n_sends; ++i) {
    found = found || exchange.sends[i].values == exchange.fold.out;
  }
  return exchange.folds && exchange.fold.count != 0 && found;
}

const char* check_in_place(const Exchange& exchange) {
  const LinkFold& fold = exchange.fold;
  if (!is_in_place(exchange)) return nullptr;
  const Message& message = exchange.sends[0];
  const bool good = exchange.n_sends == 1 && fold.n_peers == 1 && message.link == fold.links[0] &&
                    message.count == fold.count;
  return good ? nullptr : "expected a result in place of all that is sent, and a single peer";
}

// Finds messages, one behind the other, of the same values.
void put_together(Exchange* exchange) {
  int first = 0;
  for (int i = 0; i < exchange->n_sends; ++i) {
    Message& message = exchange->sends[i];
    const Message& before = exchange->sends[first];
    if (i != 0 && message.values == before.values && message.count == before.count) {
      message.together = 0;
      ++exchange->sends[first].together;
    } else {
      message.together = 1;
      first = i;
    }
  }
}

struct Launch {
  const Exchange& exchange;
  void* stream;

  template <DType kDType>
  const char* run() const {
    return launch_exchange<kDType>(exchange, stream);
  }
};

}  // namespace

const char* exchange(Exchange exchange, void* stream) {
  if (exchange.at_once < 1) return "expected one launch at a time at least";
  if (exchange.n_links < 0 || exchange.n_links > kMaxPeers) return "expected at most 8 links";
  for (const char* failure :
       {check_messages(exchange.sends, exchange.n_sends, exchange),
        check_messages(exchange.receives, exchange.n_receives, exchange), check_fold(exchange),
        check_directions(exchange), check_in_place(exchange)}) {
    if (failure != nullptr) return failure;
  }
  if (exchange.n_sends == 0 && exchange.n_receives == 0 && !exchange.folds &&
      exchange.copy.bytes == 0) {
    return nullptr;
  }
  exchange.in_place = is_in_place(exchange);
  put_together(&exchange);
  // Bytes are not coded; any type of their size will do.
  const bool bytes = exchange.dtype == DType::kBytes;
  exchange.options.raw = exchange.options.raw || bytes;
  return with_type(bytes ? DType::kFloat8E4M3FN : exchange.dtype, Launch{exchange, stream});
}

}  // namespace uzip::gpu
