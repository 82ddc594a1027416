// The same for tests.
#pragma once

#include <gtest/gtest.h>

#include "library_headers.h"
