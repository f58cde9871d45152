# Finds OpenBLAS in its OpenMP flavour and makes the target OpenBLAS::openmp.
# Debian installs both flavours with one soname and lets the alternatives choose at run time; the pthread flavour fights OpenMP threads (2x slower).
# So the library is taken from the openmp directory by full path, which also puts that directory into the rpath of what links it.
# Elsewhere (other distributions) any libopenblas is taken, with a warning if its config does not say OpenMP; lamina checks again at run time.
find_library(OpenBLASOpenMP_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp NO_CMAKE_SYSTEM_PATH
             PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
if(OpenBLASOpenMP_LIBRARY)
  set(OpenBLASOpenMP_FLAVOUR openmp)
else()
  find_library(OpenBLASOpenMP_LIBRARY NAMES openblaso openblas_omp openblas)
  if(OpenBLASOpenMP_LIBRARY MATCHES "openblaso|openblas_omp")
    set(OpenBLASOpenMP_FLAVOUR openmp)
  elseif(OpenBLASOpenMP_LIBRARY)
    set(OpenBLASOpenMP_FLAVOUR unknown)
    message(WARNING "${OpenBLASOpenMP_LIBRARY} may not be the OpenMP flavour of OpenBLAS; the pthread flavour makes training about 2x slower. "
                    "On Debian: apt-get install libopenblas-openmp-dev")
  endif()
endif()
get_filename_component(openblas_real "${OpenBLASOpenMP_LIBRARY}" REALPATH)
get_filename_component(openblas_dir "${openblas_real}" DIRECTORY)
find_path(OpenBLASOpenMP_INCLUDE_DIR cblas.h PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp PATH_SUFFIXES openblas openblas-openmp)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLASOpenMP REQUIRED_VARS OpenBLASOpenMP_LIBRARY OpenBLASOpenMP_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "On Debian: apt-get install libopenblas-openmp-dev")
if(OpenBLASOpenMP_FOUND AND NOT TARGET OpenBLAS::openmp)
  add_library(OpenBLAS::openmp UNKNOWN IMPORTED)
  set_target_properties(OpenBLAS::openmp PROPERTIES IMPORTED_LOCATION "${OpenBLASOpenMP_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${OpenBLASOpenMP_INCLUDE_DIR}")
endif()
