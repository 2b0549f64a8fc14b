/* Stands in for pyxis in the tests: has four of its options, under its name, and tells the task what it was given. It
 * starts no container. */
#include <slurm/spank.h>
#include <stddef.h>

SPANK_PLUGIN(pyxis, 1)

enum { kOptions = 4 };
static struct spank_option options[kOptions] = {
    {"container-image", "IMAGE", "the image", 1, 0, NULL},
    {"container-mounts", "SRC:DST", "the mounts", 1, 1, NULL},
    {"container-workdir", "PATH", "the working directory", 1, 2, NULL},
    {"container-env", "NAMES", "variables that win over the image's", 1, 3, NULL},
};
static const char* const variables[kOptions] = {"STAND_IN_IMAGE", "STAND_IN_MOUNTS", "STAND_IN_WORKDIR",
                                                "STAND_IN_ENV"};

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  (void)argc;
  (void)argv;
  if (spank_context() == S_CTX_SLURMD) return 0;
  for (int i = 0; i < kOptions; ++i) spank_option_register(spank, &options[i]);
  return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  (void)argc;
  (void)argv;
  for (int i = 0; i < kOptions; ++i) {
    char* value = NULL;
    if (spank_option_getopt(spank, &options[i], &value) == ESPANK_SUCCESS && value != NULL)
      spank_setenv(spank, variables[i], value, 1);
  }
  return 0;
}
