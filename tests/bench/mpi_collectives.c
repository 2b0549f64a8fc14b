/* The peer of collectives_bench: the same collectives by MPI, in the same words.
 *
 *   mpi_collectives BYTES...      a rank's part, as for collectives_bench
 *
 * What is gathered has been written: of memory that never was, all pages are one, which each reader has in its cache. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kGather, kScatter, kReduce, kOperations, kMostRounds = 99 };

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

static void once(int operation, float* mine, float* full, int count, int size) {
  if (operation == kGather) MPI_Allgather(mine, count, MPI_FLOAT, full, count, MPI_FLOAT, MPI_COMM_WORLD);
  if (operation == kScatter) MPI_Reduce_scatter_block(full, mine, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (operation == kReduce)
    MPI_Allreduce(MPI_IN_PLACE, full, count * size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  static const char* const names[] = {"all_gather", "reduce_scatter", "all_reduce"};
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char* only = getenv("COLLECTIVES_ONLY");
  const char* told = getenv("COLLECTIVES_ROUNDS");
  for (int i = 1; i < argc; ++i) {
    const long bytes = atol(argv[i]);
    const int count = (int)(bytes / (long)sizeof(float));
    float* mine = malloc((size_t)count * sizeof(float));
    float* full = malloc((size_t)count * (size_t)size * sizeof(float));
    if (mine == NULL || full == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int k = 0; k < count; ++k) mine[k] = (float)(k % 1000 + rank);
    for (int operation = 0; operation < kOperations; ++operation) {
      double seconds[kMostRounds];
      if (only != NULL && strcmp(only, names[operation]) != 0) continue;
      int rounds = told != NULL ? atoi(told) : bytes > (4 << 20) ? 3 : 7;
      if (rounds < 1 || rounds > kMostRounds) rounds = 7;
      const int in_row = bytes <= 65536 ? 10 : 1;
      /* What is added up again and again stays a number. */
      if (operation == kReduce) memset(full, 0, (size_t)count * (size_t)size * sizeof(float));
      for (int k = 0; k < in_row; ++k) once(operation, mine, full, count, size);
      for (int round = 0; round < rounds; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        for (int k = 0; k < in_row; ++k) once(operation, mine, full, count, size);
        MPI_Barrier(MPI_COMM_WORLD);
        seconds[round] = (MPI_Wtime() - begin) / in_row;
      }
      qsort(seconds, (size_t)rounds, sizeof(double), compare);
      if (rank == 0)
        printf("%-14s %8ld bytes a rank: %10.3f ms\n", names[operation], bytes, 1e3 * seconds[rounds / 2]);
    }
    fflush(stdout);
    free(mine);
    free(full);
  }
  MPI_Finalize();
  return 0;
}
