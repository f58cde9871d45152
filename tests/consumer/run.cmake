# cmake -DBUILD=<lamina's build folder> -DWORK=<scratch folder> -DCXX=... -DGENERATOR=... -DBUILD_TYPE=... -P run.cmake
# Installs lamina to a prefix of its own, builds the consumer against it alone, and runs it. Installed programs must load the OpenBLAS they were built for.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix --component lamina)
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)

# Sets `result` to the line of ldd about OpenBLAS, without the address.
function(openblas_of program result)
  execute_process(COMMAND ldd ${program} OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "libopenblas[^(]*" line "${libraries}")
  set(${result} "${line}" PARENT_SCOPE)
endfunction()

find_program(ldd ldd)
if(ldd AND EXISTS ${BUILD}/bin/norm_table)
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix --component programs)
  openblas_of(${BUILD}/bin/norm_table built)
  openblas_of(${WORK}/prefix/bin/norm_table installed)
  if(NOT installed STREQUAL built)
    message(FATAL_ERROR "built to load ${built}\ninstalled, it loads ${installed}")
  endif()
endif()
