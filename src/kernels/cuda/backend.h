#pragma once
// Shared by the files of the CUDA backend. Its accessors are declared beside the CPU's, in kernels/kernels.h.

#include "kernels/kernels.h"
