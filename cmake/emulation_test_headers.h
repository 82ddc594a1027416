// The same for tests of kernels on the emulation.
#pragma once

#include "emulation_headers.h"
#include "test_headers.h"
