// Prints the lists of variables and profiles for libvma(7), after a change of vma_options.def or vma_profiles.def.
#include <cstdio>

#include "conf/vma_manual.h"

int main() {
  std::fputs(".SS Effect of the variables\n", stdout);
  std::fputs(ringsock::conf::vma_effects_section().c_str(), stdout);
  std::fputs(".SS Meaning of the variables\n", stdout);
  std::fputs(ringsock::conf::vma_environment_section().c_str(), stdout);
  std::fputs(".SH PROFILES\n", stdout);
  std::fputs(ringsock::conf::vma_profiles_section().c_str(), stdout);
}
