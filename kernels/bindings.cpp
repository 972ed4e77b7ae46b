// The Python face of the codec: one m.def per function of codec.hpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "codec.hpp"
#include "reduce.hpp"
#include "simd.hpp"

namespace py = pybind11;

namespace {

// The bytes of a contiguous buffer, held for as long as this lives.
class Bytes {
 public:
  Bytes(const py::handle& object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

uzip::DType parse_dtype(int code) {
  if (code < 0 || code >= uzip::kDTypes) {
    throw py::value_error("expected a dtype code of 0..6, found " + std::to_string(code));
  }
  return static_cast<uzip::DType>(code);
}

uint64_t count_of(const Bytes& values, uzip::DType dtype) {
  const size_t itemsize = uzip::float_format(dtype).itemsize;
  if (values.size() % itemsize != 0) {
    throw py::value_error("expected a multiple of " + std::to_string(itemsize) + " bytes, found " +
                          std::to_string(values.size()));
  }
  return values.size() / itemsize;
}

uzip::EncodeOptions parse_options(const std::string& codec, bool verify, int threads) {
  uzip::EncodeOptions options;
  options.checksum = verify;
  options.threads = threads;
  if (codec == "raw") {
    options.codec = uzip::Codec::kRaw;
  } else if (codec == "tier") {
    options.codec = uzip::Codec::kTier;
  } else if (codec == "ans") {
    options.codec = uzip::Codec::kAns;
  } else if (codec != "auto") {
    throw py::value_error("expected codec auto, tier, ans or raw, found " + codec);
  }
  return options;
}

void check_room(const Bytes& out, uint64_t count, uzip::DType dtype) {
  const uint64_t bytes = uzip::bound(count, dtype);
  if (out.size() < bytes) {
    throw py::value_error("expected at least " + std::to_string(bytes) +
                          " bytes for a frame, found " + std::to_string(out.size()));
  }
}

size_t encode(const py::object& values, int dtype_code, const py::object& out,
              const std::string& codec, bool verify, int threads) {
  const uzip::DType dtype = parse_dtype(dtype_code);
  const uzip::EncodeOptions options = parse_options(codec, verify, threads);
  const Bytes source(values, false);
  const Bytes frame(out, true);
  const uint64_t count = count_of(source, dtype);
  check_room(frame, count, dtype);
  const py::gil_scoped_release release;
  return uzip::encode(source.data(), count, dtype, frame.data(), options);
}

void decode(const py::object& frame, int dtype_code, const py::object& out, bool verify,
            int threads) {
  const uzip::DType dtype = parse_dtype(dtype_code);
  const Bytes source(frame, false);
  const Bytes values(out, true);
  const uint64_t count = count_of(values, dtype);
  const py::gil_scoped_release release;
  uzip::decode(source.data(), source.size(), dtype, count, values.data(), {verify, threads});
}

double predict(const py::object& values, int dtype_code) {
  const uzip::DType dtype = parse_dtype(dtype_code);
  const Bytes source(values, false);
  const uint64_t count = count_of(source, dtype);
  const py::gil_scoped_release release;
  return uzip::predict(source.data(), count, dtype);
}

// (dtype, codec, flags, count, frame_bytes, menu, zero_planes, base, body_bytes)
py::tuple header(const py::object& frame) {
  const Bytes source(frame, false);
  const uzip::Header h = uzip::read_header(source.data(), source.size());
  return py::make_tuple(h.dtype, h.codec, h.flags, h.count, h.frame_bytes, h.menu, h.zero_planes,
                        h.base, h.body_bytes);
}

// An uzip::Encoder together with the buffers it works on.
class StepEncoder {
 public:
  StepEncoder(const py::object& values, int dtype_code, const py::object& out,
              const std::string& codec, bool verify)
      : values_(values, false), out_(out, true) {
    const uzip::DType dtype = parse_dtype(dtype_code);
    const uint64_t count = count_of(values_, dtype);
    check_room(out_, count, dtype);
    encoder_ = std::make_unique<uzip::Encoder>(values_.data(), count, dtype, out_.data(),
                                               parse_options(codec, verify, 1));
  }
  uint64_t fixed_stop() const { return encoder_->fixed_stop(); }
  bool fell_back() const { return encoder_->fell_back(); }
  uint64_t advance(uint64_t n_groups) {
    const py::gil_scoped_release release;
    return encoder_->advance(n_groups);
  }
  size_t finish() {
    const py::gil_scoped_release release;
    return encoder_->finish();
  }

 private:
  Bytes values_;
  Bytes out_;
  std::unique_ptr<uzip::Encoder> encoder_;
};

void check_count(const Bytes& values, size_t itemsize, uint64_t count) {
  if (values.size() != count * itemsize) {
    throw py::value_error("expected " + std::to_string(count * itemsize) + " bytes for " +
                          std::to_string(count) + " values, found " +
                          std::to_string(values.size()));
  }
}

void fold(int op, int dtype_code, const std::vector<py::object>& inputs, const py::object& out,
          int divisor) {
  if (op < 0 || op >= uzip::kReduceOps) {
    throw py::value_error("expected an operator code of 0..3, found " + std::to_string(op));
  }
  const uzip::DType dtype = parse_dtype(dtype_code);
  const Bytes result(out, true);
  const uint64_t count = count_of(result, dtype);
  std::deque<Bytes> sources;  // a Bytes cannot move
  std::vector<const void*> values;
  for (const py::object& input : inputs) {
    check_count(sources.emplace_back(input, false), uzip::float_format(dtype).itemsize, count);
    values.push_back(sources.back().data());
  }
  const py::gil_scoped_release release;
  uzip::fold(static_cast<uzip::ReduceOp>(op), dtype, values.data(), values.size(), result.data(),
             count, divisor);
}

void widen(int dtype_code, const py::object& values, const py::object& out) {
  const uzip::DType dtype = parse_dtype(dtype_code);
  const Bytes source(values, false);
  const Bytes wide(out, true);
  const uint64_t count = count_of(source, dtype);
  check_count(wide, sizeof(float), count);
  const py::gil_scoped_release release;
  uzip::widen(dtype, source.data(), reinterpret_cast<float*>(wide.data()), count);
}

void narrow(int dtype_code, const py::object& values, const py::object& out) {
  const uzip::DType dtype = parse_dtype(dtype_code);
  const Bytes wide(values, false);
  const Bytes result(out, true);
  const uint64_t count = count_of(result, dtype);
  check_count(wide, sizeof(float), count);
  const py::gil_scoped_release release;
  uzip::narrow(dtype, reinterpret_cast<const float*>(wide.data()), result.data(), count);
}

void translate(std::exception_ptr failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const uzip::FormatError& error) {
    PyErr_SetString(py::module_::import("uzipmpi.errors").attr("FormatError").ptr(), error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_codec, m) {
  m.doc() = "Compiled codec of uzipmpi.";
  py::register_exception_translator(&translate);
  m.def("encode", &encode);
  m.def("decode", &decode);
  m.def("predict", &predict);
  m.def("header", &header);
  m.def("fold", &fold);
  m.def("widen", &widen);
  m.def("narrow", &narrow);
  m.def("simd_path", [] { return std::string(uzip::simd_name(uzip::simd_path())); });
  m.def("simd_paths", &uzip::simd_paths);
  m.def("force_simd", &uzip::force_simd);
  py::class_<StepEncoder>(m, "StepEncoder")
      .def(py::init<const py::object&, int, const py::object&, const std::string&, bool>())
      .def_property_readonly("fixed_stop", &StepEncoder::fixed_stop)
      .def_property_readonly("fell_back", &StepEncoder::fell_back)
      .def("advance", &StepEncoder::advance)
      .def("finish", &StepEncoder::finish);
}
