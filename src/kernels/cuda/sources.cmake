# The files of the CUDA backend, for nvcc (CMakeLists.txt beside this) and for the emulator (tests/CMakeLists.txt).
set(lamina_cuda_sources
  ${CMAKE_CURRENT_LIST_DIR}/elementwise.cu
  ${CMAKE_CURRENT_LIST_DIR}/elementwise_unary.cu
  ${CMAKE_CURRENT_LIST_DIR}/fault.cpp
  ${CMAKE_CURRENT_LIST_DIR}/gemm.cpp
  ${CMAKE_CURRENT_LIST_DIR}/gemm_bias.cu
  ${CMAKE_CURRENT_LIST_DIR}/index.cu
  ${CMAKE_CURRENT_LIST_DIR}/launch.cpp
  ${CMAKE_CURRENT_LIST_DIR}/move.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm.cpp
  ${CMAKE_CURRENT_LIST_DIR}/norm_channel.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm_row.cu
  ${CMAKE_CURRENT_LIST_DIR}/optimizer.cu
  ${CMAKE_CURRENT_LIST_DIR}/random.cu
  ${CMAKE_CURRENT_LIST_DIR}/reduce.cu
  ${CMAKE_CURRENT_LIST_DIR}/softmax.cu
)
