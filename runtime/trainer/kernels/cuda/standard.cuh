// What the kernels' sources want of the standard library, for NVRTC, which has none: it finds this file under the names
// <cstdint>, <cstring> and the like. Only NVRTC reads it.
#pragma once

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
static_assert(sizeof(int64_t) == 8 && sizeof(uintptr_t) == sizeof(void*));

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e38F
#endif
