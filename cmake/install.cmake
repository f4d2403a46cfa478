# What `cmake --install` puts where, and the packages that CPack makes of it: program, shared and static library, public
# headers, what pkg-config and CMake need to find them, pages of the manual, completions, the pages of docs, examples.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(LS_OPS_ONLY)
  install(TARGETS lockstep_ops_installed LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES include/lockstep/lockstep.h include/lockstep/ops.h include/lockstep/ops_base.h include/lockstep/ops_state.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep)
  return()
endif()

install(TARGETS lockstep-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS lockstep lockstep_shared
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# Of the libraries that the program is linked to, what the public interface needs. CUDA's is where this build found it.
set(LS_STATIC_NEEDS_LIST -ljansson -lpthread -lm)
if(LS_HAVE_CUDA)
  list(PREPEND LS_STATIC_NEEDS_LIST ${CUDA_cudart_static_LIBRARY} -lstdc++ -lrt -ldl)
endif()
list(JOIN LS_STATIC_NEEDS_LIST " " LS_STATIC_NEEDS)
set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH LS_PREFIX_FROM_PC /prefix/${pc_folder} /prefix)
configure_file(cmake/lockstep.pc.in ${CMAKE_BINARY_DIR}/package/lockstep.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/lockstep.pc DESTINATION ${pc_folder})

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
configure_package_config_file(cmake/LockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/package/LockstepConfig.cmake
  INSTALL_DESTINATION ${config_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/LockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/LockstepConfig.cmake ${CMAKE_BINARY_DIR}/package/LockstepConfigVersion.cmake
  DESTINATION ${config_folder})

# The manual and the completions are what the program's own --help says. Nobody installs a sanitizer.
find_program(LS_PYTHON3 python3)
if(LS_SANITIZE OR LS_FUZZ)
elseif(LS_PYTHON3)
  set(pages ${CMAKE_BINARY_DIR}/pages)
  add_custom_command(OUTPUT ${pages}/done
    COMMAND ${LS_PYTHON3} ${PROJECT_SOURCE_DIR}/script/pages $<TARGET_FILE:lockstep-cli> ${pages}
    COMMAND ${CMAKE_COMMAND} -E touch ${pages}/done
    DEPENDS lockstep-cli script/pages COMMENT "Manual and completions" VERBATIM)
  add_custom_target(pages ALL DEPENDS ${pages}/done)
  install(DIRECTORY ${pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
  install(FILES ${pages}/lockstep.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lockstep)
  install(FILES ${pages}/_lockstep DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
else()
  message(STATUS "No python3: neither manual nor completions are installed")
endif()

install(FILES README.md ARCHITECTURE.md NUMERICS.md CONTRIBUTING.md CHANGELOG.md LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR Lockstep)
set(CPACK_PACKAGE_CONTACT "Lockstep <lockstep@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Rollout engine and trainer that agree on every log-probability, bit for bit")
set(CPACK_PACKAGE_DESCRIPTION "Generates, scores and trains hybrid attention-Mamba language models with one order of every
 sum, so that rollout and trainer never differ in a bit. With the library, its headers and the manual.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libjansson-dev")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
