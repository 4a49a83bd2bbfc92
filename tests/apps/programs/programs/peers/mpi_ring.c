/* Each rank sends to the next and to all, in several sizes; rank 0 prints "correct". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char at(int rank, int round, size_t i) { return (unsigned char)(rank * 31 + round * 7 + i * 13 + (i >> 8)); }

int main(int argc, char** argv) {
  int rank, size, wrong = 0, all = 0;
  size_t i;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int round = 0; round < 40; ++round) {
    size_t length = (size_t)1 << (round % 21);
    unsigned char* out = malloc(length);
    unsigned char* in = malloc(length);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    for (i = 0; i < length; ++i) out[i] = at(rank, round, i);
    memset(in, 0, length);
    MPI_Sendrecv(out, (int)length, MPI_BYTE, next, round, in, (int)length, MPI_BYTE, last, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (i = 0; i < length; ++i) wrong += in[i] != at(last, round, i);
    if (rank == 1) memcpy(in, out, length);
    MPI_Bcast(in, (int)length, MPI_BYTE, 1, MPI_COMM_WORLD);
    for (i = 0; i < length; ++i) wrong += in[i] != at(1, round, i);
    MPI_Barrier(MPI_COMM_WORLD);
    free(out);
    free(in);
  }
  MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf(all == 0 ? "correct\n" : "wrong: %d bytes\n", all);
  MPI_Finalize();
  return 0;
}
