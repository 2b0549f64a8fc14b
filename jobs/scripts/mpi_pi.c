/* Pi as the integral of 4 / (1 + x * x) from 0 to 1, in as many steps as the argument says, shared among all ranks. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const long steps = argc > 1 ? atol(argv[1]) : 1000000;
  const double width = 1.0 / (double)steps;
  double mine = 0.0, pi = 0.0;
  for (long step = rank; step < steps; step += size) {
    const double x = width * ((double)step + 0.5);
    mine += 4.0 / (1.0 + x * x) * width;
  }
  MPI_Reduce(&mine, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks: pi is %.10f, off by %.1e\n", size, pi, fabs(pi - acos(-1.0)));
  MPI_Finalize();
  return 0;
}
