# The C++ package: find_package(ciera CONFIG) gives ciera::ciera, and ciera::ciera_mpi when it was
# built. A wheel holds the extension module alone.
if(DEFINED SKBUILD)
  set(ciera_install_default OFF)
else()
  set(ciera_install_default ON)
endif()
option(CIERA_INSTALL "Install headers, libraries and the CMake package" ${ciera_install_default})

add_library(ciera::ciera ALIAS ciera)
if(NOT CIERA_INSTALL)
  return()
endif()

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(ciera_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ciera)

target_include_directories(ciera INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(ciera INTERFACE cxx_std_20)
install(DIRECTORY native/include/ciera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ciera EXPORT ciera_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ciera_targets NAMESPACE ciera:: FILE ciera-targets.cmake
        DESTINATION ${ciera_package_dir})
# Apart, so that a project without MPI can still use the core.
if(ciera_with_mpi)
  install(TARGETS ciera_mpi EXPORT ciera_mpi_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ciera_mpi_targets NAMESPACE ciera:: FILE ciera-mpi-targets.cmake
          DESTINATION ${ciera_package_dir})
endif()

configure_package_config_file(native/cmake/ciera-config.cmake.in ciera-config.cmake
                              INSTALL_DESTINATION ${ciera_package_dir})
write_basic_package_version_file(ciera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ciera-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/ciera-config-version.cmake
        DESTINATION ${ciera_package_dir})
