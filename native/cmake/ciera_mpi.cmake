# The MPI transport: a library of its own, so that the core links no MPI. A wheel has no use for it
# (Python reaches MPI through mpi4py).
if(DEFINED SKBUILD)
  set(ciera_mpi_default OFF)
else()
  set(ciera_mpi_default AUTO)
endif()
set(CIERA_MPI ${ciera_mpi_default} CACHE STRING
    "Build the MPI transport: AUTO (when MPI is found), ON or OFF")
set_property(CACHE CIERA_MPI PROPERTY STRINGS AUTO ON OFF)

if(CIERA_MPI STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(C)  # FindMPI asks for the language of the component
  if(CMAKE_C_COMPILER)
    enable_language(C)
    find_package(MPI QUIET COMPONENTS C)
  endif()
elseif(CIERA_MPI)
  enable_language(C)
  find_package(MPI REQUIRED COMPONENTS C)
endif()

if(CIERA_MPI AND MPI_C_FOUND)
  set(ciera_with_mpi ON)
  file(GLOB ciera_mpi_sources CONFIGURE_DEPENDS native/src/transport/mpi/*.cpp)
  add_library(ciera_mpi STATIC ${ciera_mpi_sources})
  add_library(ciera::ciera_mpi ALIAS ciera_mpi)
  target_include_directories(ciera_mpi PRIVATE native/src)
  target_link_libraries(ciera_mpi PUBLIC ciera PRIVATE MPI::MPI_C)
  # The C++ bindings that old MPIs add to mpi.h for C++ need a library of their own.
  target_compile_definitions(ciera_mpi PRIVATE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
else()
  set(ciera_with_mpi OFF)
endif()
message(STATUS "ciera: MPI ${ciera_with_mpi}")
