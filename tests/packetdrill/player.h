// Plays a script on a stack that packetdrill's table stands for.
#pragma once

#include <string>

#include "tests/packetdrill/interface.h"
#include "tests/packetdrill/script.h"

namespace ringsock::packetdrill {

struct PlayerOptions {
  std::int64_t tolerance_us = 4000;
  bool kernel = false;   ///< the stack is the kernel's: commands are run, and what is left over is not looked for
  bool verbose = false;  ///< prints each packet and call
};

struct Played {
  std::string wrong;    ///< the first thing that went otherwise, as "script.pkt:LINE: ..."; empty: nothing
  bool in_use = false;  ///< a call of the script has not returned: the table must not be freed
};

Played play(const Script& script, packetdrill_interface& table, const PlayerOptions& options);

}  // namespace ringsock::packetdrill
