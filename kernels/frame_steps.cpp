// A frame in steps: the encoder of a sender that does not wait for the whole frame.
#include "frame.hpp"

namespace uzip {

Encoder::Encoder(const uint8_t* values, uint64_t count, DType dtype, uint8_t* out,
                 const EncodeOptions& options)
    : values_(values), count_(count), dtype_(dtype), out_(out), options_(options) {
  fixed_stop_ = bound(count, dtype);
  coded_ = plan_frame(values, count, dtype, options, out);
  if (coded_ != nullptr) fixed_stop_ = coded_->fixed_stop();
}

Encoder::~Encoder() = default;

uint64_t Encoder::advance(uint64_t n_groups) {
  if (fell_back_) return kHeaderBytes;
  if (coded_ == nullptr) return advance_raw(n_groups);
  if (coded_->advance(n_groups)) return coded_->final_stop();
  fell_back_ = true;
  return kHeaderBytes;
}

uint64_t Encoder::advance_raw(uint64_t n_groups) {
  constexpr uint64_t kGroupValues = kGroupTiles * kTileValues;
  const uint64_t left = count_ - values_done_;
  const uint64_t n = n_groups < left / kGroupValues ? n_groups * kGroupValues : left;
  const uint64_t itemsize = float_format(dtype_).itemsize;
  const uint64_t begin = values_done_ * itemsize;
  if (n != 0) std::memcpy(out_ + kHeaderBytes + begin, values_ + begin, n * itemsize);
  values_done_ += n;
  return kHeaderBytes + values_done_ * itemsize;
}

size_t Encoder::finish() {
  advance(UINT64_MAX);
  if (fell_back_) return encode_raw(values_, count_, dtype_, options_.checksum, out_);
  if (coded_ != nullptr) return coded_->finish(options_.checksum);
  const size_t frame_bytes = bound(count_, dtype_);
  finish_frame(make_header(count_, dtype_, Codec::kRaw), frame_bytes, options_.checksum, out_);
  return frame_bytes;
}

}  // namespace uzip
