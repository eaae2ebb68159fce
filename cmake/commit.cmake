# Sets FARINDEX_COMMIT to the commit of the sources, with "+" if they differed from it when CMake was last run, or to
# "unknown" outside of git. The build depends on the log of HEAD, which every commit changes, so CMake runs again after
# a commit.
set(FARINDEX_COMMIT unknown)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} describe --always --dirty=+ --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${GIT} rev-parse --git-path logs/HEAD
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(FARINDEX_COMMIT ${described})
    get_filename_component(log "${log}" ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
    if(EXISTS "${log}")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${log})
    endif()
  endif()
endif()
