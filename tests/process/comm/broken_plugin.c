/* A plugin that is wrong in one way, chosen by the macro that it is compiled with; right without any. */
#include <stdlib.h>
#include <unistd.h>

#include "plugins/abi/comm_v1.h"

#ifndef WRONG_MAGIC
#define MAGIC SHARDRUN_PLUGIN_MAGIC
#else
#define MAGIC UINT64_C(0x1122334455667788)
#endif
#ifndef WRONG_MAJOR
#define MAJOR SHARDRUN_COMM_ABI_MAJOR
#else
#define MAJOR 9
#endif
#ifndef WRONG_SIZE
#define SIZE sizeof(shardrun_comm_v1_table)
#else
#define SIZE 64
#endif

#ifdef WRONG_SYMBOL
extern const shardrun_comm_v1_table something_else;
const shardrun_comm_v1_table something_else =
#else
extern const shardrun_comm_v1_table shardrun_comm_v1;
const shardrun_comm_v1_table shardrun_comm_v1 =
#endif
    {.header = {.magic = MAGIC, .abi_major = MAJOR, .struct_size = SIZE, .name = "broken", .build_id = "1"}};

#ifdef UNRESOLVED
extern int function_that_nobody_has(void);
int use_it(void);
int use_it(void) {
  return function_that_nobody_has();
}
#endif

#if defined(ABORTS) || defined(EXITS) || defined(HANGS)
__attribute__((constructor)) static void on_load(void) {
#if defined(ABORTS)
  abort();
#elif defined(HANGS)
  for (;;) pause();
#else
  exit(7);
#endif
}
#endif
