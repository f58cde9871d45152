#pragma once
// The processor's unit for products of small matrices of bf16 (AMX), on which f32 products are computed where there is one: kernels/cpu/gemm_split.h.

namespace lamina::detail {

/// Whether there is such a unit, the system lets this process use it, and the environment has no LAMINA_MATRIX_UNIT=0 (or off, false, no).
bool has_matrix_unit();

/// For tests: overrides the environment. Without effect where there is no unit.
void use_matrix_unit(bool use);

}  // namespace lamina::detail
