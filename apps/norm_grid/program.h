#pragma once
// A program that trains a net for every norm, batch size and seed, and ends with a table and a figure.

#include "norm_grid/options.h"

namespace lamina::norm_grid {

/// All that main() does. Returns the exit code.
int main(const Program& program, int argc, char** argv);

}  // namespace lamina::norm_grid
