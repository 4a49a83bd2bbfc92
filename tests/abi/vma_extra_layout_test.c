// Compiles the sizes and offsets of <mellanox/vma_extra.h> as C, and uses the header's function, without the library.
#include "tests/abi/vma_extra_layout.h"

#include <stdio.h>

int main(void) {
  if (vma_get_api() != NULL) {
    puts("not ok there is a table, and no library");
    return 1;
  }
  puts("ok the header is for C, too");
  return 0;
}
