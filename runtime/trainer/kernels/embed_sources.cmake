# Writes OUTPUT: kernel_sources() of specialised.h in NAMESPACE, with the text of FILES (relative to ROOT) inside. A file
# given as NAME=FILE is found under that name.
set(text "// Generated from the files that it holds.\n#include \"runtime/trainer/kernels/specialised.h\"\n\nnamespace ${NAMESPACE} {\n\n")
string(APPEND text "std::span<const shardrun::kernels::SourceFile> kernel_sources();\n")
string(APPEND text "std::span<const shardrun::kernels::SourceFile> kernel_sources() {\n  static constexpr shardrun::kernels::SourceFile kFiles[] = {\n")
string(REPLACE "," ";" FILES "${FILES}")
foreach(entry IN LISTS FILES)
  string(REGEX REPLACE "=.*" "" name "${entry}")
  string(REGEX REPLACE ".*=" "" file "${entry}")
  file(READ ${ROOT}/${file} content)
  string(APPEND text "      {\"${name}\", R\"shardrun(${content})shardrun\"},\n")
endforeach()
string(APPEND text "  };\n  return kFiles;\n}\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUTPUT} "${text}")
