# nibble_embed(target OUTPUT name.inc FILES path...): writes files as rows for a table in C++,
#   {"name", "SHA-256 in hex", "contents"sv},
# in the order given, into the target's build folder, where it may be included. The same files give the same rows.
#
# The second half is the script that does so while building: cmake -DOUTPUT=... -DFILES=... -P nibble_embed.cmake

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(NIBBLE_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

  function(nibble_embed target)
    cmake_parse_arguments(EMBED "" "OUTPUT" "FILES" ${ARGN})
    list(TRANSFORM EMBED_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${EMBED_OUTPUT})
    string(REPLACE ";" "|" files "${EMBED_FILES}")
    add_custom_command(OUTPUT ${output} VERBATIM
      COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} "-DFILES=${files}" -P ${NIBBLE_EMBED_SCRIPT}
      DEPENDS ${EMBED_FILES} ${NIBBLE_EMBED_SCRIPT})
    target_sources(${target} PRIVATE ${output})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
  endfunction()
  return()
endif()

string(REPLACE "|" ";" files "${FILES}")
set(rows "")
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME)
  file(SHA256 ${file} hash)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "\\\\x\\1" literal "${bytes}")
  string(APPEND rows "{\"${name}\", \"${hash}\", \"${literal}\"sv},\n")
endforeach()
file(WRITE ${OUTPUT} "${rows}")
