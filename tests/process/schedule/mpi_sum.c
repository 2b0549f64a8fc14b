/* A stock MPI program: every rank prints its rank, the size and the sum of all ranks' (rank + 1).
 *   mpi_sum          ends well
 *   mpi_sum abort    rank 1 calls MPI_Abort with 7 while the others wait in a barrier
 *   mpi_sum hang     rank 1 never comes to the last barrier */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d sum %d\n", rank, size, sum);
  fflush(stdout);
  if (argc > 1 && rank == 1 && strcmp(argv[1], "abort") == 0) MPI_Abort(MPI_COMM_WORLD, 7);
  if (argc > 1 && rank == 1 && strcmp(argv[1], "hang") == 0) pause();
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
