// Marks arithmetic that host and GPU share, so that it is written once.
#pragma once

#ifdef __CUDACC__
#define CIERA_HD __host__ __device__
#else
#define CIERA_HD
#endif
