// A GPU played by one thread: the threads of a block are coroutines that take turns where they
// meet.
//
// For tests of GPU sources on machines without a GPU, compiled as C++ with UZIP_EMULATION. Blocks
// run one after the other, at once in the default stream and as emulation_runtime.hpp says in
// others; those of a launch_together() take turns. Lanes that wait for others which never come are
// reported, and so are reads beyond shared memory's end when the tests compile with a sanitizer.
#pragma once

#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "emulation_runtime.hpp"

#define UZIP_DEVICE inline
#define UZIP_DEVICE_CALL inline
#define UZIP_KERNEL(threads, blocks) inline void
#define UZIP_ARGUMENT const
#define UZIP_PTX 0

namespace uzip::gpu {

using Stream = void*;

namespace emulation {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 128 << 10;

// A place where `members` coroutines meet.
struct Meeting {
  int members = 0;
  int arrived = 0;
  uint64_t round = 0;
};

struct Warp {
  Meeting meeting;
  uint32_t words[2][kLanes];  // what lanes give to each other, by parity of the round
};

class Block {
 public:
  Block(int threads, size_t shared_bytes)
      : shared(shared_bytes), warps_(static_cast<size_t>(threads / kLanes)) {
    for (Warp& warp : warps_) warp.meeting.members = kLanes;
    all_.members = threads;
    for (int i = 0; i < threads; ++i) coroutines_.push_back(std::make_unique<Coroutine>());
  }

  void run(const std::function<void()>& body) {
    begin(body);
    while (!done()) {
      if (!take_turns()) fail("threads of a block wait for what no other block will do");
    }
  }

  void begin(const std::function<void()>& body) {
    body_ = &body;
    left_ = coroutines_.size();
    std::memset(shared.data(), kPoison, shared.size() * sizeof(uint64_t));
    for (auto& coroutine : coroutines_) start(*coroutine);
  }
  bool done() const { return left_ == 0; }

  // Lets each thread go on to where it waits; whether any of them came to another place.
  bool take_turns() {
    moved_ = false;
    bool any = false;
    backwards_ = !backwards_;  // so that a missing barrier shows in one of the two orders
    for (size_t turn = 0; turn < coroutines_.size(); ++turn) {
      const size_t i = backwards_ ? coroutines_.size() - 1 - turn : turn;
      Coroutine& coroutine = *coroutines_[i];
      if (coroutine.done || coroutine.waits()) continue;
      any = true;
      thread = static_cast<int>(i);
      swapcontext(&scheduler_, &coroutine.context);
      if (!coroutine.done) continue;
      moved_ = true;
      --left_;
    }
    if (!any) fail("threads of a block wait for each other in different places");
    return moved_;
  }

  // Returns the round of this meeting once all its members are there.
  uint64_t meet(Meeting& meeting) {
    const uint64_t round = meeting.round;
    moved_ = true;
    if (++meeting.arrived == meeting.members) {
      meeting.arrived = 0;
      ++meeting.round;
      return round;
    }
    Coroutine& coroutine = *coroutines_[static_cast<size_t>(thread)];
    coroutine.meeting = &meeting;
    coroutine.round = round;
    pause();
    coroutine.meeting = nullptr;
    return round;
  }
  // Ends the thread's turn.
  void pause() { swapcontext(&coroutines_[static_cast<size_t>(thread)]->context, &scheduler_); }
  void meet_all() { meet(all_); }

  // Copies that a thread has asked for, in groups; they are made as late as they may be.
  void copy_later(void* to, const void* from, size_t bytes) {
    coroutines_[thread]->copies.back().push_back({to, from, bytes});
  }
  void commit_copies() { coroutines_[thread]->copies.emplace_back(); }
  void wait_copies(size_t later) {
    auto& groups = coroutines_[thread]->copies;
    while (groups.size() > later + 1) {
      for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
      groups.pop_front();
    }
  }

  Warp& warp() { return warps_[static_cast<size_t>(thread / kLanes)]; }

  // What each lane of the warp gave.
  const uint32_t* exchange(uint32_t word) {
    Warp& mine = warp();
    mine.words[mine.meeting.round & 1][thread % kLanes] = word;
    return mine.words[meet(mine.meeting) & 1];
  }

  std::vector<uint64_t> shared;
  int thread = 0;

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Coroutine {
    std::deque<std::vector<Copy>> copies{1};
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    bool done = false;
    const Meeting* meeting = nullptr;  // where it waits, in which round
    uint64_t round = 0;

    bool waits() const { return meeting != nullptr && meeting->round == round; }
  };

  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulated GPU: %s\n", what);
    std::abort();
  }

  void start(Coroutine& coroutine) {
    getcontext(&coroutine.context);
    coroutine.context.uc_stack.ss_sp = coroutine.stack.get();
    coroutine.context.uc_stack.ss_size = kStackBytes;
    coroutine.context.uc_link = &scheduler_;
    coroutine.done = false;
    makecontext(&coroutine.context, &Block::enter, 0);
  }
  static void enter();

  std::vector<Warp> warps_;
  Meeting all_;
  std::vector<std::unique_ptr<Coroutine>> coroutines_;
  ucontext_t scheduler_;
  const std::function<void()>* body_ = nullptr;
  size_t left_ = 0;  // threads that are not done
  bool moved_ = false;
  bool backwards_ = false;
};

inline Block* running = nullptr;
inline uint32_t block = 0;
inline uint32_t blocks = 0;
inline int resident = 3;            // blocks of the emulated device, for tests to choose
constexpr int kBlocksTogether = 6;  // of a launch whose blocks wait for others

inline void Block::enter() {
  (*running->body_)();
  running->coroutines_[static_cast<size_t>(running->thread)]->done = true;
}

}  // namespace emulation

constexpr bool kPacksBlocks = false;
inline int thread_index() { return emulation::running->thread; }
inline uint32_t block_index() { return emulation::block; }
inline uint32_t block_count() { return emulation::blocks; }
inline void sync_block() { emulation::running->meet_all(); }
inline void fence_device() {}

// Memory that several blocks, devices or processes use at a time.
template <typename Word>
Word load_acquire_system(const Word* place) {
  return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}
template <typename Word>
Word load_relaxed_system(const Word* place) {
  return __atomic_load_n(place, __ATOMIC_RELAXED);
}
template <typename Word>
void store_relaxed_system(Word* place, Word word) {
  __atomic_store_n(place, word, __ATOMIC_RELAXED);
}
inline void fence_system() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline uint32_t load_acquire_block(const uint32_t* place) { return *place; }
inline void store_release_block(uint32_t* place, uint32_t word) { *place = word; }
inline uint64_t load_relaxed_block(const uint64_t* place) { return *place; }
inline void store_relaxed_block(uint64_t* place, uint64_t word) { *place = word; }
inline uint64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}
inline void pause() { emulation::running->pause(); }
inline void pause_for(uint32_t) { pause(); }

inline void sync_lanes() { emulation::running->exchange(0); }
inline uint32_t ballot32(bool vote) {
  const uint32_t* votes = emulation::running->exchange(vote ? 1 : 0);
  uint32_t ballot = 0;
  for (int lane = 0; lane < emulation::kLanes; ++lane) ballot |= votes[lane] << lane;
  return ballot;
}
inline uint32_t shuffle32(uint32_t word, int from) {
  return emulation::running->exchange(word)[from & 31];
}
inline uint32_t shuffle_up32(uint32_t word, int by) {
  const int lane = thread_index() & 31;
  return emulation::running->exchange(word)[lane < by ? lane : lane - by];
}
inline uint32_t shuffle_xor32(uint32_t word, int mask) {
  return emulation::running->exchange(word)[(thread_index() & 31) ^ mask];
}

inline uint32_t sum32(uint32_t word) {
  const uint32_t* words = emulation::running->exchange(word);
  uint32_t sum = 0;
  for (int lane = 0; lane < emulation::kLanes; ++lane) sum += words[lane];
  return sum;
}

inline uint32_t or32(uint32_t word) {
  const uint32_t* words = emulation::running->exchange(word);
  uint32_t all = 0;
  for (int lane = 0; lane < emulation::kLanes; ++lane) all |= words[lane];
  return all;
}
inline uint32_t max32(uint32_t word) {
  const uint32_t* words = emulation::running->exchange(word);
  uint32_t most = 0;
  for (int lane = 0; lane < emulation::kLanes; ++lane) most = std::max(most, words[lane]);
  return most;
}

inline int popcount(uint32_t word) { return __builtin_popcount(word); }
inline int highest_bit(uint32_t word) { return 31 - __builtin_clz(word); }
inline int lowest_bit(uint32_t word) { return __builtin_ffs(static_cast<int>(word)) - 1; }

inline uint32_t atomic_add(uint32_t* place, uint32_t word) {
  const uint32_t before = *place;
  *place += word;
  return before;
}
inline uint64_t atomic_add(uint64_t* place, uint64_t word) {
  const uint64_t before = *place;
  *place += word;
  return before;
}
inline uint32_t atomic_add_modulo(uint32_t* place, uint32_t n) {
  const uint32_t before = *place;
  *place = before + 1 < n ? before + 1 : 0;
  return before;
}
inline void atomic_or(uint32_t* place, uint32_t word) { *place |= word; }
inline void atomic_max(uint32_t* place, uint32_t word) {
  if (word > *place) *place = word;
}

inline void copy_later(void* to, const void* from) { emulation::running->copy_later(to, from, 16); }
inline void copy_word_later(void* to, const void* from) {
  emulation::running->copy_later(to, from, 4);
}
inline void commit_copies() { emulation::running->commit_copies(); }
template <int kLater>
void wait_copies() {
  emulation::running->wait_copies(kLater);
}

inline void prefetch(const void*) {}
inline void await_earlier() {}
inline void let_next_begin() {}

inline uint8_t* shared_memory() {
  return reinterpret_cast<uint8_t*>(emulation::running->shared.data());
}

inline int current_device() { return emulation::current_device; }

template <typename Kernel>
int resident_blocks(Kernel, int, size_t) {
  return emulation::resident;
}

constexpr bool kLargeShared = true;
constexpr bool kCompilesSoon = true;

template <typename Kernel, typename... Arguments>
const char* launch(Kernel kernel, int blocks, int threads, size_t shared_bytes, Stream stream,
                   Arguments... arguments) {
  const auto run = [=] {
    emulation::Block block(threads, (shared_bytes + 15) / 16 * 2);
    emulation::running = &block;
    emulation::blocks = static_cast<uint32_t>(blocks);
    for (emulation::block = 0; emulation::block < emulation::blocks; ++emulation::block) {
      block.run([&] { kernel(arguments...); });
    }
    emulation::running = nullptr;
    return true;
  };
  const auto status = emulation::enqueue_kernel(stream, run);
  return status == emulation::Success ? nullptr : emulation::GetErrorString(status);
}

template <typename Kernel>
int blocks_together(Kernel, int, size_t) {
  return emulation::kBlocksTogether;
}

// As launch(), for kernels whose blocks wait for others, of this kernel or of any.
template <typename Kernel, typename... Arguments>
const char* launch_together(Kernel kernel, int blocks, int threads, size_t shared_bytes,
                            Stream stream, Arguments... arguments) {
  struct Launch {
    std::function<void()> body;
    std::vector<std::unique_ptr<emulation::Block>> blocks;
  };
  const auto launch = std::make_shared<Launch>();
  launch->body = [=] { kernel(arguments...); };
  const auto run = [=] {
    while (launch->blocks.size() < static_cast<size_t>(blocks)) {
      launch->blocks.push_back(
          std::make_unique<emulation::Block>(threads, (shared_bytes + 15) / 16 * 2));
      launch->blocks.back()->begin(launch->body);
    }
    bool done = true;
    emulation::blocks = static_cast<uint32_t>(blocks);
    for (emulation::block = 0; emulation::block < emulation::blocks; ++emulation::block) {
      emulation::Block& block = *launch->blocks[emulation::block];
      emulation::running = &block;
      if (!block.done()) block.take_turns();
      done = done && block.done();
    }
    emulation::running = nullptr;
    if (!done) emulation::step_others();
    return done;
  };
  const auto status = emulation::enqueue_kernel(stream, run);
  return status == emulation::Success ? nullptr : emulation::GetErrorString(status);
}

template <typename Kernel, typename... Arguments>
const char* launch_early(Kernel kernel, int blocks, int threads, size_t shared_bytes, Stream stream,
                         Arguments... arguments) {
  return launch_together(kernel, blocks, threads, shared_bytes, stream, arguments...);
}

}  // namespace uzip::gpu
