#include "core/matrix_unit.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lamina::detail {
namespace {

bool is_there() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned amx_bf16 = 1U << 22, amx_tile = 1U << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & amx_bf16) == 0 || (edx & amx_tile) == 0) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM: the system keeps tile registers for those who ask
  return __builtin_cpu_supports("avx512f") && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

bool wanted() {
  const char* const value = std::getenv("LAMINA_MATRIX_UNIT");
  const std::string_view wish = value ? value : "";
  return wish != "0" && wish != "off" && wish != "false" && wish != "no";
}

std::atomic<bool>& in_use() {
  static std::atomic<bool> use = wanted() && is_there();
  return use;
}

}  // namespace

bool has_matrix_unit() { return in_use().load(std::memory_order_relaxed); }
void use_matrix_unit(bool use) { in_use() = use && is_there(); }

}  // namespace lamina::detail
