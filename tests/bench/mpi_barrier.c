/* The peer of the launch benchmark: what any MPI job does first. Rank 0 writes the Unix time in seconds at which
 * its first barrier was finished to the file named by argv[1]. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Barrier(MPI_COMM_WORLD);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int failed = 0;
  if (rank == 0) {
    FILE* file = argc > 1 ? fopen(argv[1], "w") : stdout;
    if (file != NULL) {
      fprintf(file, "%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
      if (file != stdout) fclose(file);
    } else {
      failed = 1;
    }
  }
  MPI_Finalize();
  return failed;
}
