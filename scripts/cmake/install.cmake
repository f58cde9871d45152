# The package that find_package(lamina) finds: the static library, the public headers, and a config that brings the libraries it links.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lamina)

install(TARGETS lamina EXPORT lamina-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lamina)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lamina DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT lamina FILES_MATCHING PATTERN "*.h")
install(EXPORT lamina-targets NAMESPACE lamina:: DESTINATION ${package_dir} COMPONENT lamina)
configure_package_config_file(${PROJECT_SOURCE_DIR}/scripts/cmake/lamina-config.cmake.in ${PROJECT_BINARY_DIR}/lamina-config.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lamina-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lamina-config.cmake ${PROJECT_BINARY_DIR}/lamina-config-version.cmake
              ${PROJECT_SOURCE_DIR}/scripts/cmake/FindOpenBLASOpenMP.cmake
        DESTINATION ${package_dir} COMPONENT lamina)
