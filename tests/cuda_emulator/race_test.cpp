// Planted bugs around memory: the emulator must find each, and must not find fault with the right versions.

#include "cuda_emulator/test_support.h"

using namespace lamina::test;

namespace {

// Block sums: n threads store, a barrier, thread 0 adds up.
__global__ void sum_block(dptr<const int> in, dptr<int> out, bool barrier) {
  const dptr<int> all = shared<int>(blockDim.x);
  all[threadIdx.x] = in[threadIdx.x];
  if (barrier) __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += all[i];
  out[0] = sum;
}

__global__ void write_at(dptr<float> out, int at, float value) { out[at] = value; }
__global__ void copy_at(dptr<const float> in, dptr<float> out, int at) { out[0] = in[at]; }

__global__ void shared_at(int n, int at) {
  const dptr<float> memory = shared<float>(n);
  memory[at] = 1;
}
__global__ void static_at(int at) {
  __shared__ shared_array<float, 8> memory;
  memory[at] = 1;
}
__global__ void read_shared(dptr<float> out, bool write_first) {
  __shared__ shared_array<float, 4> memory;
  if (write_first) memory[2] = 5;
  out[0] = memory[2];
}
__global__ void second_block_reads(dptr<float> out) {
  __shared__ shared_array<float, 1> memory;
  if (blockIdx.x == 0) memory[0] = 5;
  out[blockIdx.x] = memory[0];
}

__global__ void all_write_one(dptr<int> out) { out[0] = static_cast<int>(threadIdx.x); }
__global__ void blocks_write_one(dptr<int> out) { out[0] = static_cast<int>(blockIdx.x); }
__global__ void all_add_one(dptr<int> out) { atomicAdd(out, 1); }
__global__ void add_and_read(dptr<int> out) {
  atomicAdd(out, 1);
  if (threadIdx.x == 0) out[1] = out[0];
}
// Everybody reads, one writes: wrong without a barrier in between, whichever comes first.
__global__ void read_then_write(dptr<int> data, dptr<int> out, bool barrier) {
  out[threadIdx.x] = data[0];
  if (barrier) __syncthreads();
  if (threadIdx.x == 7) data[0] = 3;
}
// Halves of a warp, ordered by __syncwarp of the whole, of the halves, or not at all.
__global__ void warp_reverse(dptr<int> out, int sync) {
  __shared__ shared_array<int, 32> all;
  const int lane = static_cast<int>(threadIdx.x);
  all[lane] = lane;
  if (sync == 1) __syncwarp();
  if (sync == 2) __syncwarp(lane < 16 ? 0x0000FFFF : 0xFFFF0000);
  if (sync == 3) __shfl_sync(all_lanes, lane, 0);  // orders no memory
  out[lane] = all[31 - lane];
}
__global__ void store_one_pack(dptr<float> out) {
  Pack<float> pack = {{1, 2, 3, 4}};
  if (threadIdx.x == 0)
    out[2] = 5;
  else
    store_pack<float>(out, pack);
}
__global__ void copy_pack(dptr<const float> in, dptr<float> out) { store_pack<float>(out, load_pack<float>(in)); }

}  // namespace

TEST_CASE("emulator: a missing barrier is a race, whatever the order of threads") {
  const DeviceArray<int> in(std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}), out(1);
  start(sum_block, 1, 8, 8 * sizeof(int), in.data(), out.data(), true);
  CHECK(out.host() == std::vector<int>{36});
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const Seed order(seed);
    // Thread 0 reads what was written without a barrier, or what was not written yet.
    const std::string text = error_of([&] { start(sum_block, 1, 8, 8 * sizeof(int), in.data(), out.data(), false); });
    const bool found = text.find("race on element") != std::string::npos || text.find("which was never written") != std::string::npos;
    CHECK(found);
    CHECK_THAT(text, contains("[test] block (0, 0, 0), thread (") && contains("of dynamic shared memory (32 bytes)"));
  }
}

TEST_CASE("emulator: out of bounds in global memory") {
  const DeviceArray<float> out(10);
  start(write_at, 1, 1, 0, out.data(), 9, 1.0F);
  CHECK_THAT(
      error_of([&] { start(write_at, 1, 1, 0, out.data(), 10, 1.0F); }),
      contains("[test] block (0, 0, 0), thread (0, 0, 0): write out of bounds: element 10 (4 bytes each) of the 10 there are, in device memory #"));
  CHECK_THAT(error_of([&] { start(write_at, 1, 1, 0, out.data(), -1, 1.0F); }), contains("element -1"));
}

TEST_CASE("emulator: out of bounds in shared memory, dynamic and static") {
  start(shared_at, 1, 1, 40, 10, 9);
  CHECK_THAT(error_of([&] { start(shared_at, 1, 1, 40, 10, 10); }), contains("write out of bounds: element 10"));
  CHECK_THAT(error_of([&] { start(shared_at, 1, 1, 40, 5, 5); }),
             contains("write out of bounds: element 5 (4 bytes each) of the 5"));  // another's part
  CHECK_THAT(error_of([&] { start(shared_at, 1, 1, 40, 11, 0); }), contains("44 bytes from byte 0 of dynamic shared memory (40 bytes) are wanted"));
  start(static_at, 1, 1, 0, 7);
  CHECK_THAT(error_of([&] { start(static_at, 1, 1, 0, 8); }),
             contains("write out of bounds: element 8 (4 bytes each) of the 8 there are, in a shared array"));
}

TEST_CASE("emulator: reads of memory that was never written") {
  const DeviceArray<float> empty(4), out(2);
  CHECK_THAT(error_of([&] { start(copy_at, 1, 1, 0, empty.data(), out.data(), 3); }), contains("read of element 3") && contains("never written"));
  start(write_at, 1, 1, 0, empty.data(), 3, 8.0F);
  start(copy_at, 1, 1, 0, empty.data(), out.data(), 3);
  start(read_shared, 1, 1, 0, out.data(), true);
  CHECK_THAT(error_of([&] { start(read_shared, 1, 1, 0, out.data(), false); }), contains("read of element 2") && contains("a shared array"));
  // Shared memory is new in every block.
  CHECK_THAT(error_of([&] { start(second_block_reads, 2, 1, 0, out.data()); }), contains("block (1, 0, 0)") && contains("never written"));
  CHECK_THAT(error_of([&] { static_cast<void>(empty.host()); }), contains("cudaMemcpy: byte 0 of device memory") && contains("was never written"));
}

TEST_CASE("emulator: use after free") {
  float* freed = nullptr;
  {
    const DeviceArray<float> memory(4);
    freed = memory.data();
  }
  CHECK_THAT(error_of([&] { start(write_at, 1, 1, 0, freed, 0, 1.0F); }), contains("write of device memory #") && contains("after it was freed"));
  float host[4] = {};
  CHECK_THAT(error_of([&] { cudaMemcpy(host, freed, 4, cudaMemcpyDeviceToHost); }), contains("after it was freed"));
  CHECK_THAT(error_of([&] { cudaFree(freed); }), contains("second free"));
}

TEST_CASE("emulator: threads and blocks that write one element") {
  const DeviceArray<int> out(1);
  CHECK_THAT(error_of([&] { start(all_write_one, 1, 2, 0, out.data()); }),
             contains("thread (1, 0, 0): race on element 0") && contains("this write and the write by thread 0 of block (0, 0, 0) after 0 barriers"));
  CHECK_THAT(error_of([&] { start(all_write_one, 1, 64, 0, out.data()); }), contains("race"));
  start(all_write_one, 1, 1, 0, out.data());
  CHECK_THAT(error_of([&] { start(blocks_write_one, 2, 1, 0, out.data()); }),
             contains("block (1, 0, 0), thread (0, 0, 0): race") && contains("of block (0, 0, 0)"));
  start(blocks_write_one, 1, 1, 0, out.data());
}

TEST_CASE("emulator: atomics are no races among themselves, but against plain accesses") {
  const DeviceArray<int> counter(std::vector<int>{0, 0});
  start(all_add_one, 3, 50, 0, counter.data());
  CHECK(counter.host()[0] == 150);
  CHECK_THAT(error_of([&] { start(add_and_read, 1, 50, 0, counter.data()); }), contains("race on element 0"));
}

TEST_CASE("emulator: a read before another thread's write is a race too") {
  for (const unsigned threads : {8, 40}) {
    const DeviceArray<int> data(std::vector<int>{1}), out(threads);
    start(read_then_write, 1, threads, 0, data.data(), out.data(), true);
    for (const uint64_t seed : {0, 1, 2}) {
      const Seed order(seed);
      CHECK_THAT(error_of([&] { start(read_then_write, 1, threads, 0, data.data(), out.data(), false); }), contains("race on element 0"));
    }
  }
}

TEST_CASE("emulator: __syncwarp orders the lanes of its mask, shuffles order nothing") {
  const DeviceArray<int> out(32);
  start(warp_reverse, 1, 32, 0, out.data(), 1);
  CHECK(out.host()[0] == 31);
  for (const int wrong : {0, 2, 3}) {
    const std::string text = error_of([&] { start(warp_reverse, 1, 32, 0, out.data(), wrong); });
    const bool found = text.find("race on element") != std::string::npos || text.find("never written") != std::string::npos;
    CHECK(found);
  }
}

TEST_CASE("emulator: 16-byte accesses must be aligned and inside") {
  const DeviceArray<float> in(std::vector<float>{1, 2, 3, 4, 5, 6}), out(4);
  start(copy_pack, 1, 1, 0, in.data(), out.data());
  CHECK(out.host() == std::vector<float>{1, 2, 3, 4});
  CHECK_THAT(error_of([&] { start(copy_pack, 1, 1, 0, in.data() + 1, out.data()); }), contains("16-byte read") && contains("not aligned to 16"));
  CHECK_THAT(error_of([&] { start(copy_pack, 1, 1, 0, in.data() + 4, out.data()); }), contains("16-byte read out of bounds"));
  const DeviceArray<float> partly(8);
  start(write_at, 1, 1, 0, partly.data(), 4, 1.0F);
  start(write_at, 1, 1, 0, partly.data(), 5, 1.0F);
  CHECK_THAT(error_of([&] { start(copy_pack, 1, 1, 0, partly.data() + 4, out.data()); }), contains("read of element 6 (4 bytes each)"));
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const Seed order(seed);
    CHECK_THAT(error_of([&] { start(store_one_pack, 1, 2, 0, out.data()); }), contains("race on element 2 (4 bytes each)"));
  }
}
