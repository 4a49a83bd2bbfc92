/* Prints the rate of the processor's time stamp counter, in kHz. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(void) {
  const struct timespec pause = {0, 200000000};
  const double begin = seconds();
  const unsigned long long first = __rdtsc();
  nanosleep(&pause, NULL);
  const unsigned long long last = __rdtsc();
  printf("%.0f\n", (double)(last - first) / (seconds() - begin) / 1000);
  return 0;
}
