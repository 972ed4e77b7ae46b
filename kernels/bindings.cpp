// The Python face of the codec: one m.def per function of codec.hpp.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_codec, m) { m.doc() = "Compiled codec of uzipmpi."; }
