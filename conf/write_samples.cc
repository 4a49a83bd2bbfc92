// Writes the sample files anew after a change of options.def, and prints the list of options for rsocket.conf(5).
// usage: write_samples DIRECTORY
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "conf/samples.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_samples DIRECTORY\n");
    return EXIT_FAILURE;
  }
  for (const auto& sample : ringsock::conf::samples()) {
    std::ofstream file(std::string(argv[1]) + "/" + sample.name);
    file << sample.text;
    if (!file.flush()) {
      std::perror(sample.name.c_str());
      return EXIT_FAILURE;
    }
  }
  std::fputs(ringsock::conf::manual_section().c_str(), stdout);
  return EXIT_SUCCESS;
}
