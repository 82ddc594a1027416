// Functions that host and device share.
#pragma once

#ifdef __CUDACC__
#define NIBBLE_HOST_DEVICE __host__ __device__
#else
#define NIBBLE_HOST_DEVICE
#endif
